//! What admission costs under overload: 10,000 requests wait, for 8 models on 256 workers that are all full.
//!
//! A request ends, the next one is admitted and routed, and asks for another one as the gateway does. Then all that still
//! wait expire. CPU time of the thread, per request. The last row gives every request a route of its own, so that room
//! is asked for each request: that is what a plain list costs.

use std::collections::VecDeque;

use warmroute_admission::{Admission, AdmissionRequest, Class, Config};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Decision, Request, Router, Scratch, Vacancy};
use warmroute_types::Micros;

use crate::thread_time::cpu_ns;
use crate::world::{self, BEGIN};

const WAITING: usize = 10_000;
const WORKERS: usize = 256;
const MODELS: usize = 8;
const ADMITTED: usize = 2_000;
/// Fewer, because each takes so long.
const ADMITTED_BY_LIST: usize = 20;

pub fn run() {
    println!("\n{:<34}{:>14}{:>14}", "10,000 wait, 8 models, 256 workers", "admitted, µs", "expired, µs");
    row("one route per model", |model, _| model as u64, ADMITTED);
    row("each request has its own route", |_, number| number as u64, ADMITTED_BY_LIST);
}

fn row(name: &str, route_of: fn(usize, usize) -> u64, admitted: usize) {
    let mut overload = Overload::new(route_of);
    let admitted_us = overload.admit(admitted);
    let expired_us = overload.expire();
    println!("{name:<34}{admitted_us:>14.1}{expired_us:>14.2}");
}

struct Overload {
    router: std::sync::Arc<Router<Standard>>,
    models: Vec<String>,
    admission: Admission<usize>,
    running: VecDeque<Decision>,
    scratch: Scratch,
}

impl Overload {
    fn new(route_of: fn(usize, usize) -> u64) -> Overload {
        let models: Vec<String> = (0..MODELS).map(|number| format!("model-{number}")).collect();
        let router = world::router(warmroute_index::Config::default());
        (0..WORKERS).for_each(|number| _ = world::join(&router, number, &Models::named(&models)));
        router.apply(Change::InFlightMax { requests: 1 });
        let config = Config { running_max: 0, waiting_max: WAITING, wait_max: Micros::from_secs(60) };
        let mut overload = Overload {
            router,
            models,
            admission: Admission::new(config),
            running: VecDeque::new(),
            scratch: Scratch::default(),
        };
        (0..WORKERS).for_each(|number| overload.route(number % MODELS));
        for number in 0..WAITING {
            let (class, tenant) = (Class::ALL[number % 3], number as u64 % 100);
            let route = route_of(number % MODELS, number);
            let request = AdmissionRequest { class, tenant, cost: 1_000, route };
            overload.admission.wait(request, number % MODELS, BEGIN).expect("the queue has room");
        }
        overload
    }

    fn route(&mut self, model: usize) {
        let request =
            Request { model: Some(&self.models[model]), prompt_tokens: 1_000, ..Request::default() };
        let decision = self.router.route(&request, &mut self.scratch, BEGIN, 1);
        self.running.push_back(decision.expect("a worker has room"));
    }

    fn next(&mut self, now: Micros) -> Option<usize> {
        let (inspect, models) = (self.router.inspect(), &self.models);
        self.admission.next(now, |&model| inspect.vacancy(Some(&models[model]), &[]) == Vacancy::Free)
    }

    /// Admits this many requests. Returns the CPU time of admission for each, without routing.
    fn admit(&mut self, requests: usize) -> f64 {
        let mut admitting_ns = 0;
        for _ in 0..requests {
            self.running.pop_front();
            let began = cpu_ns();
            self.admission.end(BEGIN);
            let model = self.next(BEGIN).expect("a worker has room");
            admitting_ns += cpu_ns() - began;
            self.route(model);
            let began = cpu_ns();
            assert!(self.next(BEGIN).is_none(), "all workers are full again");
            admitting_ns += cpu_ns() - began;
        }
        admitting_ns as f64 / 1e3 / requests as f64
    }

    /// All that wait expire. Returns the CPU time for each.
    fn expire(&mut self) -> f64 {
        let waiting: usize = Class::ALL.iter().map(|&class| self.admission.waiting(class)).sum();
        let began = cpu_ns();
        assert!(self.next(BEGIN + Micros::from_secs(61)).is_none(), "all are late");
        (cpu_ns() - began) as f64 / 1e3 / waiting as f64
    }
}
