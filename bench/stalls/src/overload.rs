//! What admission costs under overload: 10,000 requests wait, for 8 models on 256 workers that are all full.
//!
//! Each step is what the gateway does: a new request is predicted, queued and asks for room; a request ends, the next one
//! is admitted and routed, and asks for another one. CPU time of the thread for each request, without routing. The last
//! row gives every request a route of its own, so that room is asked for each request: that is what a plain list costs.

use std::collections::{BTreeMap, VecDeque};

use warmroute_admission::{Admission, AdmissionPosition, AdmissionRequest, Class, Config, RefusalCause};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Decision, Request, Router, Scratch, Usable, Vacancy};
use warmroute_types::Micros;

use crate::thread_time::cpu_ns;
use crate::world::{self, BEGIN};

const WAITING: usize = 10_000;
const WORKERS: usize = 256;
const MODELS: usize = 8;
/// Requests of the model that has room in some rows. They come last.
const LAST: usize = 2_000;
/// Time between two requests that end.
const INTERVAL: Micros = Micros::from_millis(1);
/// The shortest time budget. Others have up to twice as much.
const BUDGET: Micros = Micros::from_secs(30);

pub fn run() {
    println!(
        "\n{:<42}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "CPU µs for each request that is", "queued", "refused", "admitted", "canceled", "dropped", "expired"
    );
    for room in [Room::AllModels, Room::LastModel] {
        for due in [Due::Never, Due::Always] {
            for tenants in [1, 100, WAITING] {
                row(&Load { room, due, tenants, routes: Routes::Models, steps: 1_000 });
            }
        }
    }
    // Fewer steps, because each takes so long.
    row(&Load { room: Room::AllModels, due: Due::Never, tenants: 100, routes: Routes::Requests, steps: 10 });
}

/// For which requests there is room after another ends.
#[derive(Clone, Copy, PartialEq)]
enum Room {
    /// All workers have all models.
    AllModels,
    /// Each worker has one model, and only requests for the last one end.
    LastModel,
}

/// Which requests have a time budget.
#[derive(Clone, Copy, PartialEq)]
enum Due {
    Never,
    Always,
}

/// Which requests share a route.
#[derive(Clone, Copy, PartialEq)]
enum Routes {
    /// Those for the same model.
    Models,
    /// None.
    Requests,
}

struct Load {
    room: Room,
    due: Due,
    tenants: usize,
    routes: Routes,
    /// Requests that are measured.
    steps: usize,
}

impl Load {
    fn name(&self) -> String {
        let room = if self.room == Room::AllModels { "all models have room" } else { "one model has room" };
        let due = if self.due == Due::Never { "" } else { ", budgets" };
        let routes = if self.routes == Routes::Models { "" } else { ", own routes" };
        format!("{room}, {} tenants{due}{routes}", self.tenants)
    }

    fn model(&self, number: usize) -> usize {
        match self.room {
            Room::AllModels => number % MODELS,
            Room::LastModel if number < WAITING - LAST => number % (MODELS - 1),
            Room::LastModel => MODELS - 1,
        }
    }

    fn request(&self, number: usize, now: Micros) -> AdmissionRequest {
        let noise = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let route = if self.routes == Routes::Models { self.model(number) } else { number };
        let budget = BUDGET + Micros(noise % BUDGET.0);
        AdmissionRequest {
            class: Class::ALL[number % 3],
            tenant: noise % self.tenants as u64,
            cost: 500 + noise as u32 % 1_000,
            route: route as u64,
            due: (self.due == Due::Always).then_some(now + budget),
        }
    }
}

fn row(load: &Load) {
    let mut overload = Overload::new(load);
    let admitted = overload.admit(load.steps);
    let canceled = overload.cancel(load.steps);
    let queued = overload.queue_new(load.steps);
    overload.reach_limit();
    let refused = overload.refuse(load.steps);
    let dropped = (load.due == Due::Always).then(|| overload.drop_hopeless());
    let expired = overload.expire();
    let columns = [Some(queued), Some(refused), Some(admitted), Some(canceled), dropped, Some(expired)];
    let shown = |us: &Option<f64>| us.map_or(format!("{:>10}", "-"), |us| format!("{us:>10.2}"));
    println!("{:<42}{}", load.name(), columns.iter().map(shown).collect::<String>());
}

struct Overload<'a> {
    load: &'a Load,
    router: std::sync::Arc<Router<Standard>>,
    models: Vec<String>,
    admission: Admission<usize>,
    positions: BTreeMap<usize, AdmissionPosition>,
    /// Model and position of requests in flight.
    running: VecDeque<(Decision, usize, AdmissionPosition)>,
    scratch: Scratch,
    now: Micros,
}

impl Overload<'_> {
    fn new(load: &Load) -> Overload<'_> {
        let models: Vec<String> = (0..MODELS).map(|number| format!("model-{number}")).collect();
        let router = world::router(warmroute_index::Config::default());
        for number in 0..WORKERS {
            let one = &models[number % MODELS..][..1];
            let served = if load.room == Room::AllModels { &models } else { one };
            world::join(&router, number, &Models::named(served));
        }
        router.apply(Change::InFlightMax { requests: 1 });
        let config = Config { running_max: 0, waiting_max: WAITING, wait_max: Micros::from_secs(60) };
        let mut overload = Overload {
            load,
            router,
            models,
            admission: Admission::new(config),
            positions: BTreeMap::new(),
            running: VecDeque::new(),
            scratch: Scratch::default(),
            now: BEGIN,
        };
        for number in 0..WORKERS {
            let request = AdmissionRequest { class: Class::Normal, ..load.request(number, BEGIN) };
            let position = overload.admission.enter(request, || true).expect("a worker has room");
            overload.route(number % MODELS, position);
        }
        (0..WAITING).for_each(|number| overload.wait(number));
        overload
    }

    fn route(&mut self, model: usize, position: AdmissionPosition) {
        let request =
            Request { model: Some(&self.models[model]), prompt_tokens: 1_000, ..Request::default() };
        let decision = self.router.route(&request, &mut self.scratch, BEGIN, 1);
        self.running.push_back((decision.expect("a worker has room"), model, position));
    }

    fn wait(&mut self, number: usize) {
        let request = self.load.request(number, self.now);
        let position = self.admission.wait(request, number, self.now).expect("the queue has room");
        self.positions.insert(number, position);
    }

    fn next(&mut self) -> Option<usize> {
        let (inspect, models, load) = (self.router.inspect(), &self.models, self.load);
        let usable = Usable::default();
        let has_room =
            |number: &usize| inspect.vacancy(Some(&models[load.model(*number)]), usable) == Vacancy::Free;
        self.admission.next(self.now, has_room)
    }

    /// Admits this many requests.
    fn admit(&mut self, requests: usize) -> f64 {
        mean_us(requests, |_| {
            let freed = match self.load.room {
                Room::AllModels => 0,
                Room::LastModel => {
                    let is_last = |(_, model, _): &(Decision, usize, AdmissionPosition)| *model == MODELS - 1;
                    self.running.iter().position(is_last).expect("some run")
                }
            };
            let (_, _, ended) = self.running.remove(freed).expect("requests are in flight");
            self.now = self.now + INTERVAL;
            let began = cpu_ns();
            self.admission.end(ended, self.now);
            let number = self.next().expect("a worker has room");
            let mut took = cpu_ns() - began;
            let position = self.positions.remove(&number).expect("it waits");
            self.route(self.load.model(number), position);
            let began = cpu_ns();
            assert!(self.next().is_none(), "all workers are full again");
            took += cpu_ns() - began;
            took
        })
    }

    /// Clients of requests from all parts of the queue disconnect.
    fn cancel(&mut self, requests: usize) -> f64 {
        let every = self.positions.len() / requests;
        let leaving: Vec<usize> = self.positions.keys().copied().step_by(every).take(requests).collect();
        mean_us(requests, |at| {
            let position = self.positions.remove(&leaving[at]).expect("it waits");
            let began = cpu_ns();
            assert!(self.admission.leave(position).is_some(), "it waits");
            cpu_ns() - began
        })
    }

    /// New requests queue, for models without room.
    fn queue_new(&mut self, requests: usize) -> f64 {
        let free = WAITING - self.positions.len();
        mean_us(requests.min(free), |at| {
            let number = WAITING * 3 + at;
            let request = AdmissionRequest { due: None, ..self.load.request(number, self.now) };
            let began = cpu_ns();
            self.admission.expected_wait(&request, self.now);
            let position = self.admission.wait(request, number, self.now).expect("the queue has room");
            assert!(self.next().is_none(), "all workers are full");
            let took = cpu_ns() - began;
            self.positions.insert(number, position);
            took
        })
    }

    /// From now on the limit of requests in flight is reached, and the rate of admissions under it is known.
    fn reach_limit(&mut self) {
        let running_max = self.admission.running();
        let config = Config { running_max, waiting_max: 2 * WAITING, wait_max: BUDGET + BUDGET };
        self.admission.set_config(config);
        self.admit(10);
    }

    /// New requests are predicted to be late. Requests of the lowest class and of a tenant that has used its share have the
    /// most before them.
    fn refuse(&mut self, requests: usize) -> f64 {
        let waiting = self.positions.len() as u64;
        let due = self.now + Micros(INTERVAL.0 * waiting / 2);
        let route = self.load.request(WAITING - 1, self.now).route;
        mean_us(requests, |at| {
            let tenant = at as u64 % self.load.tenants as u64;
            let request = AdmissionRequest { class: Class::Low, tenant, cost: 1_000, route, due: Some(due) };
            let began = cpu_ns();
            self.admission.expected_wait(&request, self.now);
            let refused = self.admission.wait_until(request, usize::MAX, due, self.now);
            let took = cpu_ns() - began;
            match refused {
                Err(refused) => assert_eq!(refused.cause, RefusalCause::TooLate),
                Ok(position) => _ = self.admission.leave(position),
            }
            took
        })
    }

    /// No request ends for a while. With the next one that comes, all whose turn would come too late are dropped.
    fn drop_hopeless(&mut self) -> f64 {
        let waiting = |overload: &Self| Class::ALL.map(|class| overload.admission.waiting(class));
        let before: usize = waiting(self).iter().sum();
        self.now = self.now + Micros(INTERVAL.0 * 10);
        let request =
            AdmissionRequest { class: Class::High, due: None, ..self.load.request(WAITING - 1, self.now) };
        let began = cpu_ns();
        self.admission.wait(request, usize::MAX, self.now).expect("the queue has room");
        let took = cpu_ns() - began;
        let dropped = before + 1 - waiting(self).iter().sum::<usize>();
        assert!(dropped > 100, "{dropped} were dropped");
        took as f64 / 1e3 / dropped as f64
    }

    /// All that wait expire. Returns the CPU time for each.
    fn expire(&mut self) -> f64 {
        let waiting: usize = Class::ALL.iter().map(|&class| self.admission.waiting(class)).sum();
        self.now = self.now + BUDGET + BUDGET + BUDGET;
        let (_, _, ended) = self.running.pop_front().expect("requests are in flight");
        let began = cpu_ns();
        self.admission.end(ended, self.now);
        assert!(self.next().is_none(), "all are late");
        (cpu_ns() - began) as f64 / 1e3 / waiting as f64
    }
}

/// The mean of some steps that return nanoseconds, in microseconds.
fn mean_us(steps: usize, step: impl FnMut(usize) -> u64) -> f64 {
    (0..steps).map(step).sum::<u64>() as f64 / 1e3 / steps as f64
}
