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
use warmroute_admission::{Admission, Ask, Class, Expected, Limits, Place, Rates, Reserved};
use warmroute_router::Vacancy;
use warmroute_types::{Micros, Usage, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::gateway::Gateway;
use crate::keys::Tenant;
use crate::parsed_request::ParsedRequest;
use crate::random::random;
use crate::refusal::Refusal;

/// How many requests are taken, from whom.
#[derive(Clone, Debug)]
pub struct AdmissionConfig {
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
    /// The highest class that it may name where the key says nothing about that. Whoever may wake himself urgent will.
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

impl AdmissionConfig {
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

impl Default for AdmissionConfig {
    fn default() -> AdmissionConfig {
        AdmissionConfig {
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
const WAIT_BUCKETS_S: [f64; 10] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// One door for all requests.
pub(crate) struct AdmissionGate {
    admission: Mutex<Admission<Waiter>>,
    rates: Mutex<Rates>,
    /// Keys are hashed with it: nobody can choose whose bucket he empties.
    seed: u64,
    pub(crate) queue_waits_s: Histogram,
}

/// Somebody who waits: for which model, and how to wake him.
struct Waiter {
    request: Arc<ParsedRequest>,
    /// Workers that are of no use to him, free or not.
    avoid: Vec<WorkerId>,
    wake: oneshot::Sender<()>,
}

/// A request that is in. Dropped, it has ended, and another one may come.
pub(crate) struct Permit {
    gateway: Arc<Gateway>,
    ask: Ask,
    /// How many answers it wants.
    answers: u32,
    /// What was set aside for it; `None` where rates are not limited.
    reserved: Option<Reserved>,
    /// What it has taken so far, in tokens: that is what it is charged when it ends, however it does.
    charged_tokens: u32,
    /// `None` where only rates are limited.
    admitted: Option<Admitted>,
}

#[derive(Clone, Copy)]
struct Admitted {
    place: Place,
    /// Until when it may wait, should it have to again.
    deadline: Micros,
}

impl AdmissionGate {
    pub(crate) fn new(config: &AdmissionConfig) -> AdmissionGate {
        let admission = Mutex::new(Admission::new(config.for_admission()));
        AdmissionGate {
            admission,
            rates: Mutex::default(),
            seed: random(),
            queue_waits_s: Histogram::new(WAIT_BUCKETS_S),
        }
    }

    /// Other limits from now on. Requests that came while nothing was limited are not counted as under way.
    pub(crate) fn set_config(&self, config: &AdmissionConfig) {
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
    fn admission_request(
        &self,
        config: &AdmissionConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
        request: &ParsedRequest,
    ) -> Ask {
        let named = |name: &HeaderName| headers.get(name).filter(|value| !value.is_empty());
        let claimed = match &config.tenant_header {
            Some(name) => named(name),
            None => named(&header::AUTHORIZATION).or_else(|| named(&HeaderName::from_static("x-api-key"))),
        };
        let name = tenant.map(|tenant| tenant.name.as_bytes()).or(claimed.map(HeaderValue::as_bytes));
        Ask {
            class: config.priority_header.as_ref().map_or_else(Class::default, |header| {
                let wanted = named(header).and_then(|name| name.to_str().ok()).and_then(Class::named);
                let granted = tenant.and_then(|tenant| tenant.class_max).unwrap_or(config.class_max);
                wanted.unwrap_or_default().at_most(granted)
            }),
            tenant: name.map_or(0, |name| xxh3_64_with_seed(name, self.seed)),
            cost: request.prompt_tokens,
        }
    }

    /// Lets the next one in for whom there is room.
    pub(crate) fn admit_next(&self, gateway: &Gateway) {
        let has_room = |waiter: &Waiter| vacancy(gateway, &waiter.request, &waiter.avoid) != Vacancy::Full;
        loop {
            let next = self.admission.lock().next(gateway.now(), has_room);
            if next.is_none_or(|waiter| waiter.wake.send(()).is_ok()) {
                return;
            }
            // He has just left, and will not hear it: his place is the next one's.
            self.admission.lock().end(gateway.now());
        }
    }
}

fn vacancy(gateway: &Gateway, request: &ParsedRequest, avoid: &[WorkerId]) -> Vacancy {
    gateway.router.vacancy(request.model.as_deref(), avoid)
}

/// Takes a request in, as soon as it is its turn. `None`: nothing is limited, and nothing was asked.
pub(crate) async fn admit(
    gateway: &Arc<Gateway>,
    config: &AdmissionConfig,
    headers: &HeaderMap,
    tenant: Option<&Tenant>,
    request: &Arc<ParsedRequest>,
) -> Result<Option<Permit>, Refusal> {
    let limits = tenant.map_or(config.limits, |tenant| tenant.limits.over(config.limits));
    let has_rates = limits != Limits::default();
    if !has_rates && !config.is_limited() {
        return Ok(None);
    }
    let ask = gateway.admission_gate.admission_request(config, headers, tenant, request);
    let mut permit = Permit {
        gateway: Arc::clone(gateway),
        ask,
        answers: request.answers,
        reserved: None,
        charged_tokens: 0,
        admitted: None,
    };
    if has_rates {
        let ParsedRequest { prompt_tokens: prompt, answers, answer_tokens_max: answer_max, .. } = **request;
        let expected = Expected { prompt, answers, answer_max };
        let reserved =
            gateway.admission_gate.rates.lock().reserve(ask.tenant, limits, expected, gateway.now());
        permit.reserved = Some(reserved.map_err(Refusal::TooMany)?);
    }
    if config.is_limited() {
        permit.admitted = Some(enter_or_queue(gateway, config, ask, request).await?);
    }
    Ok(Some(permit))
}

async fn enter_or_queue(
    gateway: &Arc<Gateway>,
    config: &AdmissionConfig,
    ask: Ask,
    request: &Arc<ParsedRequest>,
) -> Result<Admitted, Refusal> {
    let (gate, now) = (&gateway.admission_gate, gateway.now());
    let deadline = now + config.wait_max.into();
    if let Some(place) = gate.admission.lock().enter(ask, || vacancy(gateway, request, &[]) != Vacancy::Full)
    {
        return Ok(Admitted { place, deadline });
    }
    let (wake, woken) = oneshot::channel();
    let waiter = Waiter { request: Arc::clone(request), avoid: Vec::new(), wake };
    let place = gate.admission.lock().wait(ask, waiter, now);
    let place = place.map_err(|refused| Refusal::QueueFull { retry_after_s: refused.retry_after_s })?;
    let admitted = Admitted { place, deadline };
    // There may be room for this one and not for those before it.
    gate.admit_next(gateway);
    wait_for_turn(gateway, admitted, woken).await
}

/// Waits to be woken.
async fn wait_for_turn(
    gateway: &Arc<Gateway>,
    admitted: Admitted,
    woken: oneshot::Receiver<()>,
) -> Result<Admitted, Refusal> {
    let since = gateway.now();
    let mut guard = QueueGuard { gateway, place: Some(admitted.place), woken };
    let outcome = tokio::time::timeout(admitted.deadline.since(since).into(), &mut guard.woken).await;
    gateway.admission_gate.queue_waits_s.observe(gateway.now().since(since).as_secs_f64());
    match outcome {
        Ok(Ok(())) => {
            guard.disarm();
            Ok(admitted)
        }
        // Taken out of the queue because its time was over: there is nothing to give back.
        Ok(Err(_)) => {
            guard.disarm();
            Err(queue_timeout(gateway))
        }
        Err(_) => Err(queue_timeout(gateway)),
    }
}

fn queue_timeout(gateway: &Gateway) -> Refusal {
    Refusal::QueueTimeout {
        retry_after_s: gateway.admission_gate.admission.lock().retry_after_s(gateway.now()),
    }
}

/// Takes somebody out of the queue who waits no more: because his time is over, or because his client has left, which drops
/// whatever waits for it.
struct QueueGuard<'a> {
    gateway: &'a Arc<Gateway>,
    place: Option<Place>,
    woken: oneshot::Receiver<()>,
}

impl QueueGuard<'_> {
    fn disarm(mut self) {
        self.place = None;
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if self.gateway.admission_gate.admission.lock().leave(place).is_some() {
            return;
        }
        // He is out of the queue: let in, or dropped because his time was over, and only the first has a place to give back. Who has
        // not woken him yet finds the line closed, and gives it to another.
        self.woken.close();
        if self.woken.try_recv().is_ok() {
            self.gateway.admission_gate.admission.lock().end(self.gateway.now());
            self.gateway.admit_next();
        }
    }
}

impl Permit {
    /// The request has a worker, which will compute its prompt; and if there is room for another one, it may come.
    pub(crate) fn mark_routed(&mut self) {
        self.charged_tokens = self.ask.cost;
        self.gateway.admit_next();
    }

    /// There was no room after all: another router's view, another model's request on the same worker, or a worker that failed while
    /// the others are full. It waits again, where it stood, for room at any worker but these.
    pub(crate) async fn requeue(
        &mut self,
        request: &Arc<ParsedRequest>,
        avoid: Vec<WorkerId>,
    ) -> Result<(), Refusal> {
        let gateway = Arc::clone(&self.gateway);
        let admitted = self.admitted.take().ok_or(Refusal::NotReady)?;
        let (wake, woken) = oneshot::channel();
        let waiter = Waiter { request: Arc::clone(request), avoid, wake };
        gateway.admission_gate.admission.lock().wait_again(admitted.place, waiter, admitted.deadline);
        // It counts as under way no more, and a worker may have become free meanwhile: for it, or for another one.
        gateway.admit_next();
        self.admitted = Some(wait_for_turn(&gateway, admitted, woken).await?);
        Ok(())
    }

    /// So many tokens of its answer have come, or about. They were computed, so they count, should it end without a word about that
    /// because its client leaves or its worker fails.
    pub(crate) fn charge_streamed(&mut self, output_tokens: u32) {
        self.charged_tokens = self.ask.cost.saturating_add(output_tokens);
        let charged_tokens = self.charged_tokens;
        let exceeded = |reserved: &&mut Reserved| reserved.is_limited() && charged_tokens > reserved.tokens();
        if let Some(reserved) = self.reserved.as_mut().filter(exceeded) {
            self.gateway.admission_gate.rates.lock().extend(reserved, charged_tokens);
        }
    }

    /// It is known now how many tokens it charged_tokens.
    pub(crate) fn charge_usage(&mut self, usage: Usage) {
        self.charged_tokens = usage.prompt_tokens.saturating_add(usage.output_tokens);
    }

    /// The same at the end of a whole answer, of which something can be learned for the next.
    pub(crate) fn charge_answer(&mut self, usage: Usage) {
        self.charge_usage(usage);
        let limited = self.reserved.as_ref().filter(|reserved| reserved.is_limited());
        if let (Some(reserved), Some(each)) = (limited, usage.output_tokens.checked_div(self.answers)) {
            self.gateway.admission_gate.rates.lock().learn(reserved, each);
        }
    }

    /// Nobody served it.
    pub(crate) fn refund(&mut self) {
        self.charged_tokens = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let gate = &self.gateway.admission_gate;
        if let Some(reserved) = &self.reserved {
            gate.rates.lock().settle(reserved, self.charged_tokens);
        }
        if let Some(admitted) = self.admitted {
            let mut admission = gate.admission.lock();
            admission.correct(admitted.place, self.charged_tokens);
            admission.end(self.gateway.now());
            drop(admission);
            self.gateway.admit_next();
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
        let admission = AdmissionConfig { running_max: 1, ..AdmissionConfig::default() };
        Gateway::new(router, Config { admission, ..Config::default() }, None).unwrap()
    }

    async fn enter(gateway: &Arc<Gateway>) -> Result<Option<Permit>, Refusal> {
        admit(gateway, &gateway.config().admission, &HeaderMap::new(), None, &Arc::default()).await
    }

    /// How many are in, and how many wait.
    fn counts(gateway: &Gateway) -> (u32, usize) {
        (gateway.admission_gate.counts().0, gateway.admission_gate.waiting())
    }

    #[tokio::test]
    async fn one_who_was_called_and_leaves_without_hearing_it_gives_his_place_back() {
        let gateway = gateway();
        let first = enter(&gateway).await.unwrap();
        {
            let mut second = pin!(enter(&gateway));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            drop(first);
            assert_eq!(counts(&gateway), (1, 0), "the second one has been woken");
        }
        assert_eq!(counts(&gateway), (0, 0));
    }

    #[tokio::test]
    async fn one_whose_time_is_over_and_who_leaves_has_no_place_to_give_back() {
        let gateway = gateway();
        let _first = enter(&gateway).await.unwrap();
        {
            let mut second = pin!(enter(&gateway));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            let mut admission = gateway.admission_gate.admission.lock();
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
        let mut first = enter(&gateway).await.unwrap().unwrap();
        let mut second = pin!(enter(&gateway));
        assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
        // Nobody serves anything here, which is not full: whoever is asked for first is let in.
        let request = Arc::default();
        let mut again = pin!(first.requeue(&request, Vec::new()));
        _ = poll_fn(|cx| Poll::Ready(again.as_mut().poll(cx).is_pending())).await;
        assert_eq!(counts(&gateway), (1, 1), "one of them is in, and the place is not left empty");
    }
}
