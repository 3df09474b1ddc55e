//! The door: where requests wait until it is their turn, and what is counted while they are in.
//!
//! [`warmroute_admission`] decides; this parks, wakes and keeps the clock. Without limits there is no door and nothing is
//! asked. One that waits has not been routed. It is woken when another one ends, and when it has been routed itself it wakes
//! the next, if there is still room: so a worker that comes or recovers is filled as fast as requests can be routed, and
//! nobody is woken in vain.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, header};
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;
use warmroute_admission::{Admission, Ask, Class, Limits, Place, Rates};
use warmroute_router::Vacancy;
use warmroute_types::{Micros, Usage};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::asked::Asked;
use crate::gateway::Gateway;
use crate::random::random;
use crate::refusal::Refusal;

/// How many requests are taken, from whom.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Requests under way at once; 0: as many as come.
    pub running_max: u32,
    /// Whether the router takes no more than so many for a worker: then requests wait for workers too.
    pub worker_limit: WorkerLimit,
    /// Requests that may wait.
    pub waiting_max: usize,
    /// How long one may wait.
    pub wait_max: Duration,
    /// What one tenant may ask for.
    pub limits: Limits,
    /// The header that says whose a request is; without one, its API key does.
    pub tenant_header: Option<HeaderName>,
    /// The header that says how urgent a request is; `None`: all are alike.
    pub priority_header: Option<HeaderName>,
}

/// Whether a worker can be full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerLimit {
    /// No.
    #[default]
    Off,
    /// Yes: see `warmroute_router::Config::in_flight_max`.
    On,
}

impl Default for DoorConfig {
    fn default() -> DoorConfig {
        DoorConfig {
            running_max: 0,
            worker_limit: WorkerLimit::Off,
            waiting_max: 100,
            wait_max: Duration::from_secs(60),
            limits: Limits::default(),
            tenant_header: None,
            priority_header: Some(HeaderName::from_static("x-warmroute-priority")),
        }
    }
}

/// Wait times, from a millisecond to minutes.
const WAITS_S: [f64; 10] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// One door for all requests.
pub(crate) struct Door {
    config: DoorConfig,
    /// `None` where only rates are limited.
    admission: Option<Mutex<Admission<Waiter>>>,
    rates: Option<Mutex<Rates>>,
    /// Keys are hashed with it: nobody can choose whose bucket he empties.
    seed: u64,
    pub(crate) waits_s: Histogram,
}

/// Somebody who waits: for which model, and how to wake him.
struct Waiter {
    asked: Arc<Asked>,
    call: oneshot::Sender<()>,
}

/// A request that is in. Dropped, it has ended, and another one may come.
pub(crate) struct Permit {
    gateway: Arc<Gateway>,
    ask: Ask,
    /// `None` where only rates are limited.
    stay: Option<Stay>,
}

#[derive(Clone, Copy)]
struct Stay {
    place: Place,
    /// Until when it may wait, should it have to again.
    deadline: Micros,
}

impl Door {
    /// A door, where anything is limited.
    pub(crate) fn new(config: &DoorConfig) -> Option<Arc<Door>> {
        let rates = Rates::new(config.limits).map(Mutex::new);
        let is_limited = config.running_max > 0 || config.worker_limit == WorkerLimit::On;
        let admission = is_limited.then(|| {
            Mutex::new(Admission::new(warmroute_admission::Config {
                running_max: config.running_max,
                waiting_max: config.waiting_max,
                wait_max: config.wait_max.into(),
            }))
        });
        let (config, waits_s) = (config.clone(), Histogram::new(WAITS_S));
        let is_needed = admission.is_some() || rates.is_some();
        is_needed.then(|| Arc::new(Door { config, admission, rates, seed: random(), waits_s }))
    }

    /// Requests under way, and those of each class that wait.
    pub(crate) fn counts(&self) -> (u32, [usize; 3]) {
        let admission = self.admission.as_ref().map(|admission| admission.lock());
        admission.map_or((0, [0; 3]), |door| (door.running(), Class::ALL.map(|class| door.waiting(class))))
    }

    fn ask(&self, headers: &HeaderMap, asked: &Asked) -> Ask {
        let named = |name: &HeaderName| headers.get(name).filter(|value| !value.is_empty());
        let key = match &self.config.tenant_header {
            Some(name) => named(name),
            None => named(&header::AUTHORIZATION).or_else(|| named(&HeaderName::from_static("x-api-key"))),
        };
        let class = self.config.priority_header.as_ref().and_then(named).and_then(|name| name.to_str().ok());
        Ask {
            class: class.map_or_else(Class::default, Class::named),
            tenant: key.map_or(0, |key| xxh3_64_with_seed(key.as_bytes(), self.seed)),
            cost: asked.prompt_tokens,
        }
    }

    /// Lets the next one in for whom there is room.
    pub(crate) fn let_in(&self, gateway: &Gateway) {
        let Some(admission) = &self.admission else { return };
        let has_room = |waiter: &Waiter| vacancy(gateway, &waiter.asked) != Vacancy::Full;
        let next = admission.lock().next(gateway.now(), has_room);
        // If he has just left, his leaving gives the place back.
        next.into_iter().for_each(|waiter| _ = waiter.call.send(()));
    }
}

fn vacancy(gateway: &Gateway, asked: &Asked) -> Vacancy {
    gateway.router.vacancy(asked.model.as_deref(), &[])
}

/// Takes a request in, as soon as it is its turn. `None`: there is no door.
pub(crate) async fn enter(
    gateway: &Arc<Gateway>,
    headers: &HeaderMap,
    asked: &Arc<Asked>,
) -> Result<Option<Permit>, Refusal> {
    let Some(door) = &gateway.door else { return Ok(None) };
    let ask = door.ask(headers, asked);
    if let Some(rates) = &door.rates {
        rates.lock().take(ask.tenant, ask.cost, gateway.now()).map_err(Refusal::TooMany)?;
    }
    let stay = match &door.admission {
        Some(admission) => Some(admit(gateway, door, admission, ask, asked).await?),
        None => None,
    };
    Ok(Some(Permit { gateway: Arc::clone(gateway), ask, stay }))
}

async fn admit(
    gateway: &Arc<Gateway>,
    door: &Door,
    admission: &Mutex<Admission<Waiter>>,
    ask: Ask,
    asked: &Arc<Asked>,
) -> Result<Stay, Refusal> {
    let now = gateway.now();
    let deadline = now + door.config.wait_max.into();
    if let Some(place) = admission.lock().enter(ask, || vacancy(gateway, asked) != Vacancy::Full) {
        return Ok(Stay { place, deadline });
    }
    let (call, called) = oneshot::channel();
    let waiter = Waiter { asked: Arc::clone(asked), call };
    let place = admission.lock().wait(ask, waiter, now);
    let place = place.map_err(|refused| Refusal::QueueFull { retry_after_s: refused.retry_after_s })?;
    let stay = Stay { place, deadline };
    // There may be room for this one and not for those before it.
    door.let_in(gateway);
    wait(gateway, door, admission, stay, called).await
}

/// Waits to be called.
async fn wait(
    gateway: &Arc<Gateway>,
    door: &Door,
    admission: &Mutex<Admission<Waiter>>,
    stay: Stay,
    called: oneshot::Receiver<()>,
) -> Result<Stay, Refusal> {
    let since = gateway.now();
    let leaving = Leaving { gateway, admission, place: Some(stay.place) };
    let outcome = tokio::time::timeout(stay.deadline.since(since).into(), called).await;
    door.waits_s.observe(gateway.now().since(since).as_secs_f64());
    match outcome {
        Ok(Ok(())) => {
            leaving.stay();
            Ok(stay)
        }
        // Taken out of the queue because its time was over: there is nothing to give back.
        Ok(Err(_)) => {
            leaving.stay();
            Err(too_late(gateway, admission))
        }
        Err(_) => Err(too_late(gateway, admission)),
    }
}

fn too_late(gateway: &Gateway, admission: &Mutex<Admission<Waiter>>) -> Refusal {
    Refusal::QueueTimeout { retry_after_s: admission.lock().retry_after_s(gateway.now()) }
}

/// Takes somebody out of the queue who waits no more: because his time is over, or because his client has left, which drops
/// whatever waits for it.
struct Leaving<'a> {
    gateway: &'a Arc<Gateway>,
    admission: &'a Mutex<Admission<Waiter>>,
    place: Option<Place>,
}

impl Leaving<'_> {
    fn stay(mut self) {
        self.place = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let left = self.admission.lock().leave(place);
        if left.is_none() {
            // He had just been let in: somebody else may come instead.
            self.admission.lock().end(self.gateway.now());
            self.gateway.let_in();
        }
    }
}

impl Permit {
    /// The request has a worker: if there is room for another one, it may come.
    pub(crate) fn routed(&self) {
        self.gateway.let_in();
    }

    /// There was no room after all: another router's view, or another model's request on the same worker. It waits again, where
    /// it stood.
    pub(crate) async fn wait_again(&mut self, asked: &Arc<Asked>) -> Result<(), Refusal> {
        let gateway = Arc::clone(&self.gateway);
        let (Some(door), Some(stay)) = (&gateway.door, self.stay.take()) else {
            return Err(Refusal::NotReady);
        };
        let Some(admission) = &door.admission else { return Err(Refusal::NotReady) };
        let (call, called) = oneshot::channel();
        let waiter = Waiter { asked: Arc::clone(asked), call };
        admission.lock().wait_again(stay.place, waiter, stay.deadline);
        self.stay = Some(wait(&gateway, door, admission, stay, called).await?);
        Ok(())
    }

    /// It is known now how many tokens it took.
    pub(crate) fn settle(&self, usage: Usage) {
        let Some(door) = &self.gateway.door else { return };
        let took = usage.prompt_tokens.saturating_add(usage.output_tokens);
        door.rates.iter().for_each(|rates| rates.lock().correct(self.ask.tenant, self.ask.cost, took));
        if let (Some(admission), Some(stay)) = (&door.admission, self.stay) {
            admission.lock().correct(stay.place, took);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(door) = self.gateway.door.as_ref().filter(|_| self.stay.is_some()) else { return };
        if let Some(admission) = &door.admission {
            admission.lock().end(self.gateway.now());
        }
        self.gateway.let_in();
    }
}
