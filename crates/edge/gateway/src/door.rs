//! The door: where requests wait until it is their turn, and what is counted while they are in.
//!
//! [`warmroute_admission`] decides; this parks, wakes and keeps the clock. Without limits the door is open and nothing is
//! asked. One that waits has not been routed. It is woken when another one ends, and when it has been routed itself it wakes
//! the next, if there is still room: so a worker that comes or recovers is filled as fast as requests can be routed, and
//! nobody is woken in vain.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;
use warmroute_admission::{
    Admission, AdmissionPosition, AdmissionRequest, Class, ExpectedTokens, Limits, RateLimiter, Reservation,
};
use warmroute_router::Vacancy;
use warmroute_types::{Micros, Usage, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::asked::Asked;
use crate::gateway::Gateway;
use crate::keys::Tenant;
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
    /// The highest class that it may name where the key says nothing about that. Whoever may call himself urgent will.
    pub class_max: Class,
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

impl DoorConfig {
    /// Whether anybody may have to wait.
    fn is_limited(&self) -> bool {
        self.running_max > 0 || self.worker_limit == WorkerLimit::On
    }

    fn for_admission(&self) -> warmroute_admission::Config {
        warmroute_admission::Config {
            running_max: self.running_max,
            waiting_max: self.waiting_max,
            wait_max: self.wait_max.into(),
        }
    }
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
            class_max: Class::Normal,
        }
    }
}

/// Wait times, from a millisecond to minutes.
const WAITS_S: [f64; 10] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// One door for all requests.
pub(crate) struct Door {
    admission: Mutex<Admission<Waiter>>,
    rates: Mutex<RateLimiter>,
    /// Keys are hashed with it: nobody can choose whose bucket he empties.
    seed: u64,
    pub(crate) waits_s: Histogram,
}

/// Somebody who waits: for which model, and how to wake him.
struct Waiter {
    asked: Arc<Asked>,
    /// Workers that are of no use to him, free or not.
    avoid: Vec<WorkerId>,
    call: oneshot::Sender<()>,
}

/// A request that is in. Dropped, it has ended, and another one may come.
pub(crate) struct Permit {
    gateway: Arc<Gateway>,
    ask: AdmissionRequest,
    /// How many answers it wants.
    answers: u32,
    /// What was set aside for it; `None` where rates are not limited.
    reserved: Option<Reservation>,
    /// What it has taken so far, in tokens: that is what it is charged when it ends, however it does.
    took: u32,
    /// `None` where only rates are limited.
    stay: Option<Stay>,
}

#[derive(Clone, Copy)]
struct Stay {
    place: AdmissionPosition,
    /// Until when it may wait, should it have to again.
    deadline: Micros,
}

impl Door {
    pub(crate) fn new(config: &DoorConfig) -> Door {
        let admission = Mutex::new(Admission::new(config.for_admission()));
        Door { admission, rates: Mutex::default(), seed: random(), waits_s: Histogram::new(WAITS_S) }
    }

    /// Other limits from now on. Requests that came while nothing was limited are not counted as under way.
    pub(crate) fn set_config(&self, config: &DoorConfig) {
        self.admission.lock().set_config(config.for_admission());
    }

    /// Requests under way, and those of each class that wait.
    pub(crate) fn counts(&self) -> (u32, [usize; 3]) {
        let admission = self.admission.lock();
        (admission.running(), Class::ALL.map(|class| admission.waiting(class)))
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.counts().1.iter().sum()
    }

    /// A key that let somebody in says whose he is; whatever else he claims to be does not count then.
    fn ask(
        &self,
        config: &DoorConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
        asked: &Asked,
    ) -> AdmissionRequest {
        let named = |name: &HeaderName| headers.get(name).filter(|value| !value.is_empty());
        let claimed = match &config.tenant_header {
            Some(name) => named(name),
            None => named(&header::AUTHORIZATION).or_else(|| named(&HeaderName::from_static("x-api-key"))),
        };
        let name = tenant.map(|tenant| tenant.name.as_bytes()).or(claimed.map(HeaderValue::as_bytes));
        AdmissionRequest {
            class: config.priority_header.as_ref().map_or_else(Class::default, |header| {
                let wanted = named(header).and_then(|name| name.to_str().ok()).and_then(Class::named);
                let granted = tenant.and_then(|tenant| tenant.class_max).unwrap_or(config.class_max);
                wanted.unwrap_or_default().at_most(granted)
            }),
            tenant: name.map_or(0, |name| xxh3_64_with_seed(name, self.seed)),
            cost: asked.prompt_tokens,
        }
    }

    /// Lets the next one in for whom there is room.
    pub(crate) fn let_in(&self, gateway: &Gateway) {
        let has_room = |waiter: &Waiter| vacancy(gateway, &waiter.asked, &waiter.avoid) != Vacancy::Full;
        loop {
            let next = self.admission.lock().next(gateway.now(), has_room);
            if next.is_none_or(|waiter| waiter.call.send(()).is_ok()) {
                return;
            }
            // He has just left, and will not hear it: his place is the next one's.
            self.admission.lock().end(gateway.now());
        }
    }
}

fn vacancy(gateway: &Gateway, asked: &Asked, avoid: &[WorkerId]) -> Vacancy {
    gateway.router.vacancy(asked.model.as_deref(), avoid)
}

/// Takes a request in, as soon as it is its turn. `None`: nothing is limited, and nothing was asked.
pub(crate) async fn enter(
    gateway: &Arc<Gateway>,
    config: &DoorConfig,
    headers: &HeaderMap,
    tenant: Option<&Tenant>,
    asked: &Arc<Asked>,
) -> Result<Option<Permit>, Refusal> {
    let limits = tenant.map_or(config.limits, |tenant| tenant.limits.over(config.limits));
    let has_rates = limits != Limits::default();
    if !has_rates && !config.is_limited() {
        return Ok(None);
    }
    let ask = gateway.door.ask(config, headers, tenant, asked);
    let mut permit = Permit {
        gateway: Arc::clone(gateway),
        ask,
        answers: asked.answers,
        reserved: None,
        took: 0,
        stay: None,
    };
    if has_rates {
        let Asked { prompt_tokens: prompt, answers, answer_tokens_max: answer_max, .. } = **asked;
        let expected = ExpectedTokens { prompt, answers, answer_max };
        let reserved = gateway.door.rates.lock().reserve(ask.tenant, limits, expected, gateway.now());
        permit.reserved = Some(reserved.map_err(Refusal::TooMany)?);
    }
    if config.is_limited() {
        permit.stay = Some(admit(gateway, config, ask, asked).await?);
    }
    Ok(Some(permit))
}

async fn admit(
    gateway: &Arc<Gateway>,
    config: &DoorConfig,
    ask: AdmissionRequest,
    asked: &Arc<Asked>,
) -> Result<Stay, Refusal> {
    let (door, now) = (&gateway.door, gateway.now());
    let deadline = now + config.wait_max.into();
    if let Some(place) = door.admission.lock().enter(ask, || vacancy(gateway, asked, &[]) != Vacancy::Full) {
        return Ok(Stay { place, deadline });
    }
    let (call, called) = oneshot::channel();
    let waiter = Waiter { asked: Arc::clone(asked), avoid: Vec::new(), call };
    let place = door.admission.lock().wait(ask, waiter, now);
    let place = place.map_err(|refused| Refusal::QueueFull { retry_after_s: refused.retry_after_s })?;
    let stay = Stay { place, deadline };
    // There may be room for this one and not for those before it.
    door.let_in(gateway);
    wait(gateway, stay, called).await
}

/// Waits to be called.
async fn wait(gateway: &Arc<Gateway>, stay: Stay, called: oneshot::Receiver<()>) -> Result<Stay, Refusal> {
    let since = gateway.now();
    let mut leaving = Leaving { gateway, place: Some(stay.place), called };
    let outcome = tokio::time::timeout(stay.deadline.since(since).into(), &mut leaving.called).await;
    gateway.door.waits_s.observe(gateway.now().since(since).as_secs_f64());
    match outcome {
        Ok(Ok(())) => {
            leaving.stay();
            Ok(stay)
        }
        // Taken out of the queue because its time was over: there is nothing to give back.
        Ok(Err(_)) => {
            leaving.stay();
            Err(too_late(gateway))
        }
        Err(_) => Err(too_late(gateway)),
    }
}

fn too_late(gateway: &Gateway) -> Refusal {
    Refusal::QueueTimeout { retry_after_s: gateway.door.admission.lock().retry_after_s(gateway.now()) }
}

/// Takes somebody out of the queue who waits no more: because his time is over, or because his client has left, which drops
/// whatever waits for it.
struct Leaving<'a> {
    gateway: &'a Arc<Gateway>,
    place: Option<AdmissionPosition>,
    called: oneshot::Receiver<()>,
}

impl Leaving<'_> {
    fn stay(mut self) {
        self.place = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if self.gateway.door.admission.lock().leave(place).is_some() {
            return;
        }
        // He is out of the queue: let in, or dropped because his time was over, and only the first has a place to give back. Who has
        // not called him yet finds the line closed, and gives it to another.
        self.called.close();
        if self.called.try_recv().is_ok() {
            self.gateway.door.admission.lock().end(self.gateway.now());
            self.gateway.let_in();
        }
    }
}

impl Permit {
    /// The request has a worker, which will compute its prompt; and if there is room for another one, it may come.
    pub(crate) fn routed(&mut self) {
        self.took = self.ask.cost;
        self.gateway.let_in();
    }

    /// There was no room after all: another router's view, another model's request on the same worker, or a worker that failed while
    /// the others are full. It waits again, where it stood, for room at any worker but these.
    pub(crate) async fn wait_again(
        &mut self,
        asked: &Arc<Asked>,
        avoid: Vec<WorkerId>,
    ) -> Result<(), Refusal> {
        let gateway = Arc::clone(&self.gateway);
        let stay = self.stay.take().ok_or(Refusal::NotReady)?;
        let (call, called) = oneshot::channel();
        let waiter = Waiter { asked: Arc::clone(asked), avoid, call };
        gateway.door.admission.lock().wait_again(stay.place, waiter, stay.deadline);
        // It counts as under way no more, and a worker may have become free meanwhile: for it, or for another one.
        gateway.let_in();
        self.stay = Some(wait(&gateway, stay, called).await?);
        Ok(())
    }

    /// So many tokens of its answer have come, or about. They were computed, so they count, should it end without a word about that
    /// because its client leaves or its worker fails.
    pub(crate) fn streamed(&mut self, output_tokens: u32) {
        self.took = self.ask.cost.saturating_add(output_tokens);
        let took = self.took;
        let exceeded = |reserved: &&mut Reservation| reserved.is_limited() && took > reserved.tokens();
        if let Some(reserved) = self.reserved.as_mut().filter(exceeded) {
            self.gateway.door.rates.lock().extend(reserved, took);
        }
    }

    /// It is known now how many tokens it took.
    pub(crate) fn used(&mut self, usage: Usage) {
        self.took = usage.prompt_tokens.saturating_add(usage.output_tokens);
    }

    /// The same at the end of a whole answer, of which something can be learned for the next.
    pub(crate) fn answered(&mut self, usage: Usage) {
        self.used(usage);
        let limited = self.reserved.as_ref().filter(|reserved| reserved.is_limited());
        if let (Some(reserved), Some(each)) = (limited, usage.output_tokens.checked_div(self.answers)) {
            self.gateway.door.rates.lock().learn(reserved, each);
        }
    }

    /// Nobody served it.
    pub(crate) fn refund(&mut self) {
        self.took = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let door = &self.gateway.door;
        if let Some(reserved) = &self.reserved {
            door.rates.lock().settle(reserved, self.took);
        }
        if let Some(stay) = self.stay {
            let mut admission = door.admission.lock();
            admission.correct(stay.place, self.took);
            admission.end(self.gateway.now());
            drop(admission);
            self.gateway.let_in();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use warmroute_policy::Standard;
    use warmroute_router::Router;

    use crate::Config;

    /// A gateway that takes one request at a time.
    fn gateway() -> Arc<Gateway> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let door = DoorConfig { running_max: 1, ..DoorConfig::default() };
        Gateway::new(router, Config { door, ..Config::default() }, None).unwrap()
    }

    async fn come(gateway: &Arc<Gateway>) -> Result<Option<Permit>, Refusal> {
        enter(gateway, &gateway.config().door, &HeaderMap::new(), None, &Arc::default()).await
    }

    /// How many are in, and how many wait.
    fn counts(gateway: &Gateway) -> (u32, usize) {
        (gateway.door.counts().0, gateway.door.waiting())
    }

    #[tokio::test]
    async fn one_who_was_called_and_leaves_without_hearing_it_gives_his_place_back() {
        let gateway = gateway();
        let first = come(&gateway).await.unwrap();
        {
            let mut second = pin!(come(&gateway));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            drop(first);
            assert_eq!(counts(&gateway), (1, 0), "the second one has been called");
        }
        assert_eq!(counts(&gateway), (0, 0));
    }

    #[tokio::test]
    async fn one_whose_time_is_over_and_who_leaves_has_no_place_to_give_back() {
        let gateway = gateway();
        let _first = come(&gateway).await.unwrap();
        {
            let mut second = pin!(come(&gateway));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            let mut admission = gateway.door.admission.lock();
            admission.set_config(warmroute_admission::Config {
                running_max: 2,
                waiting_max: 9,
                wait_max: Micros(0),
            });
            assert!(admission.next(Micros(u64::MAX), |_| true).is_none(), "he is dropped, late");
        }
        assert_eq!(counts(&gateway), (1, 0), "the first one is still in");
    }

    #[tokio::test]
    async fn one_who_waits_again_leaves_his_place_to_whoever_has_room() {
        let gateway = gateway();
        let mut first = come(&gateway).await.unwrap().unwrap();
        let mut second = pin!(come(&gateway));
        assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
        // Nobody serves anything here, which is not full: whoever is asked for first is let in.
        let asked = Arc::default();
        let mut again = pin!(first.wait_again(&asked, Vec::new()));
        _ = poll_fn(|cx| Poll::Ready(again.as_mut().poll(cx).is_pending())).await;
        assert_eq!(counts(&gateway), (1, 1), "one of them is in, and the place is not left empty");
    }
}
