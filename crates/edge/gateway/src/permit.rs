//! Admission of one request: it enters, or waits in the queue, and holds a permit while it runs.
//!
//! [`warmroute_admission`] decides who is next; this module parks and wakes requests and supplies the clock. Without
//! limits it does nothing. A waiting request has not been routed. It is woken when another request ends; once routed, it
//! wakes the next one if there is still room. A worker that joins or recovers thus fills as fast as requests can be
//! routed, and no request is woken without room for it.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::oneshot;
use warmroute_admission::{
    AdmissionPosition, AdmissionRequest, ExpectedTokens, Lease, Limits, RefusalCause, Refused, TtftBudget,
};
use warmroute_router::{Usable, Vacancy};
use warmroute_types::{Micros, Usage, WorkerId};

use crate::admission_config::AdmissionConfig;
use crate::admission_gate::{AdmissionGate, Waiter, place_cost};
use crate::cached_tokens::CachedTokens;
use crate::early_lease::EarlyLease;
use crate::gateway_error::GatewayError;
use crate::keys::Tenant;
use crate::parsed_request::ParsedRequest;
use crate::routing;
use crate::shares::Shares;
use crate::ttft_budget;

/// An admitted request. Dropping it ends the request: it settles the rate limits and admits the next one.
pub(crate) struct Permit {
    gate: Arc<AdmissionGate>,
    tenant: u64,
    prompt_tokens: u32,
    /// Number of answers the request asks for (`n`).
    answers: u32,
    /// The request's part of its tenant's limits; `None` without limits.
    lease: Option<Lease>,
    /// Whether the engine answers before it has computed the response.
    is_background: bool,
    /// Whether the engine may compute it after the request has ended.
    may_run_on: bool,
    /// Tokens used so far. When the request ends, for whatever reason, its tenant is charged this number.
    charged_tokens: u32,
    /// `None` if only rates are limited.
    admitted: Option<Admitted>,
}

/// A place among the running requests.
#[derive(Clone, Copy)]
struct Admitted {
    place: AdmissionPosition,
    /// Latest time until which the request may wait, also if it has to queue again.
    deadline: Micros,
    /// When it was admitted.
    since: Micros,
}

/// The request's budget for its time to first token, if it has one. It begins now.
pub(crate) fn ttft_budget(
    gate: &AdmissionGate,
    config: &AdmissionConfig,
    headers: &HeaderMap,
    tenant: Option<&Tenant>,
) -> Result<Option<TtftBudget>, GatewayError> {
    let of_key = tenant.and_then(|tenant| tenant.ttft_budget);
    let budget = ttft_budget::ttft_budget(headers, of_key, config.ttft_budget.into())?;
    let class = || gate.class_of(config, headers, tenant);
    Ok(budget.map(|budget| TtftBudget::new(class(), budget, gate.clock.now())))
}

/// What is decided about a request before it is admitted.
#[derive(Default)]
pub(crate) struct Entry {
    /// Its place among its tenant's concurrent requests, if it has one since its head.
    pub early: Option<EarlyLease>,
    /// Its budget for the time to first token.
    pub budget: Option<TtftBudget>,
}

/// Admits a request, after waiting in the queue if necessary for a worker outside `avoid`. Returns `None` if nothing is
/// limited.
pub(crate) async fn admit(
    gate: &Arc<AdmissionGate>,
    config: &AdmissionConfig,
    headers: &HeaderMap,
    tenant: Option<&Tenant>,
    request: &Arc<ParsedRequest>,
    Entry { early, budget }: Entry,
    avoid: &[WorkerId],
) -> Result<Option<Permit>, GatewayError> {
    let limits = tenant.map_or(config.limits, |tenant| tenant.limits.over(config.limits));
    let has_rates = limits != Limits::default();
    if has_rates {
        gate.expire_background();
    }
    if !has_rates && !config.is_limited() {
        return Ok(None);
    }
    let mut ask = gate.admission_request(config, headers, tenant, request.prompt_tokens);
    if let Some(budget) = budget.filter(|_| config.is_limited()) {
        ask.due = Some(budget.admission_due(expected_ttft(gate, request, avoid)));
    }
    let mut permit = Permit {
        gate: Arc::clone(gate),
        tenant: ask.tenant,
        prompt_tokens: request.prompt_tokens,
        answers: request.answers,
        is_background: request.stored.is_background,
        may_run_on: false,
        lease: None,
        charged_tokens: 0,
        admitted: None,
    };
    if has_rates {
        let limits = gate.limits_for(limits, ask.tenant, request.stored.named);
        let expected = expected_tokens(request);
        let lease = match early {
            Some(early) => early.admit(expected).await,
            None => gate.reserve(ask.tenant, limits, expected, None).await,
        };
        permit.lease = Some(lease.map_err(GatewayError::RateLimited)?);
    }
    if config.is_limited() {
        let shares = tenant.map_or(config.shares, |tenant| tenant.shares.over(config.shares));
        let admitted = enter_or_queue(gate, config, shares, ask, request, avoid).await;
        let shown = |refusal| in_terms_of(budget, ask, refusal, gate, request.cached_tokens);
        permit.admitted = Some(admitted.map_err(shown)?);
    }
    Ok(Some(permit))
}

/// The tokens that a request may use. Those of an upload are not known before its answer, but not none.
fn expected_tokens(request: &ParsedRequest) -> ExpectedTokens {
    let ParsedRequest { prompt_tokens, answers, answer_tokens_max: answer_max, .. } = *request;
    match request.stored.is_free() {
        true => ExpectedTokens { prompt: 0, answers: 0, answer_max: Some(0) },
        false => ExpectedTokens { prompt: prompt_tokens.max(1), answers, answer_max },
    }
}

/// The expected time to first token of a request that is admitted now, and without room that of recent ones.
fn expected_ttft(gate: &AdmissionGate, request: &ParsedRequest, avoid: &[WorkerId]) -> Micros {
    routing::expected_ttft(&gate.router, gate.clock.now(), request, avoid)
        .unwrap_or_else(|| gate.typical_ttft.get())
}

/// A refusal by the queue as one by the time budget, if the request has one: the queue knows when a request must be
/// admitted, and the client when it wants its first token.
fn in_terms_of(
    budget: Option<TtftBudget>,
    ask: AdmissionRequest,
    refusal: GatewayError,
    gate: &AdmissionGate,
    cached_tokens: CachedTokens,
) -> GatewayError {
    let (Some(budget), GatewayError::QueueTooLate { wait, retry_after_s }) = (budget, &refusal) else {
        return refusal;
    };
    let after_admission = budget.due.since(ask.due.unwrap_or(budget.due));
    let spent = (gate.clock.now() + budget.budget).since(budget.due);
    let expected = ttft_budget::shown(spent + *wait + after_admission, cached_tokens);
    // The queue accepts what begins in time.
    let accepted = budget.budget;
    GatewayError::TtftBudget { expected, accepted, budget: budget.budget, retry_after_s: *retry_after_s }
}

/// The route of a request in the queue. Clients may invent names of models; those that no worker lists have one route, so that
/// routes are no more than models.
fn route_of(gate: &AdmissionGate, model: Option<&str>, usable: Usable<'_>, joins: u64) -> u64 {
    let listed = model.filter(|model| gate.router.inspect().lists_model(model));
    gate.route(if model.is_some() { listed.or(Some("")) } else { None }, usable, joins)
}

async fn enter_or_queue(
    gate: &AdmissionGate,
    config: &AdmissionConfig,
    shares: Shares,
    ask: AdmissionRequest,
    request: &Arc<ParsedRequest>,
    avoid: &[WorkerId],
) -> Result<Admitted, GatewayError> {
    let now = gate.clock.now();
    let model = request.model.as_deref();
    let (usable, joins) = (request.usable(avoid), gate.router.inspect().joins());
    let ask = AdmissionRequest { route: route_of(gate, model, usable, joins), ..ask };
    let vacancy = gate.router.inspect().vacancy(model, usable);
    if let (Vacancy::UnknownModel, Some(model)) = (vacancy, model) {
        // No place in the queue would help it.
        return Err(GatewayError::UnknownModel(model.to_owned()));
    }
    let awaits_worker = vacancy == Vacancy::NoWorker && config.waits_for_workers();
    let deadline = now + if awaits_worker { config.wake_max } else { config.wait_max }.into();
    let deadline = ask.due.map_or(deadline, |due| deadline.min(due));
    if let Some(place) = gate.admission.lock().enter(ask, || config.may_route(vacancy)) {
        return Ok(Admitted { place, deadline, since: now });
    }
    let (wake, woken) = oneshot::channel();
    let (model_name, within) = (request.model.clone(), request.within.clone());
    let (stored_at, avoid_now) = (usable.stored_at, avoid.to_vec());
    let waiter = Waiter { model: model_name, stored_at, avoid: avoid_now, joins, within, wake };
    let (place, wait) = {
        let mut admission = gate.admission.lock();
        if admission.waiting_of(ask.tenant) >= shares.of_queue(config.waiting_max) {
            return Err(GatewayError::QueueShareFull { retry_after_s: admission.retry_after_s(now) });
        }
        let wait = admission.expected_wait(&ask, now);
        (admission.wait_until(ask, waiter, deadline, now), wait)
    };
    let _counted = awaits_worker.then(|| gate.await_worker(model));
    let place = place.map_err(|Refused { cause, retry_after_s }| match cause {
        RefusalCause::Full => GatewayError::QueueFull { retry_after_s },
        RefusalCause::TooLate => GatewayError::QueueTooLate { wait, retry_after_s },
    })?;
    let admitted = Admitted { place, deadline, since: now };
    // There may be room for this request but not for those before it, which may need other workers.
    gate.admit_next();
    wait_for_turn(gate, admitted, woken, request, avoid).await
}

/// Waits in the queue until woken or until the deadline, for a worker outside `avoid`.
async fn wait_for_turn(
    gate: &AdmissionGate,
    admitted: Admitted,
    woken: oneshot::Receiver<()>,
    request: &ParsedRequest,
    avoid: &[WorkerId],
) -> Result<Admitted, GatewayError> {
    let since = gate.clock.now();
    let mut guard = QueueGuard { gate, place: Some(admitted.place), woken };
    let outcome = tokio::time::timeout(admitted.deadline.since(since).into(), &mut guard.woken).await;
    let waited = gate.clock.now().since(since);
    gate.queue_waits_s.observe(waited.as_secs_f64());
    match outcome {
        Ok(Ok(())) => {
            guard.disarm();
            Ok(Admitted { since: gate.clock.now(), ..admitted })
        }
        // The queue dropped the waiter, so there is no place to give back.
        Ok(Err(_)) => {
            guard.disarm();
            match gate.clock.now() < admitted.deadline {
                true => Err(GatewayError::Shed { retry_after_s: retry_after_s(gate) }),
                false => Err(queue_timeout(gate, request, avoid, waited)),
            }
        }
        Err(_) => Err(queue_timeout(gate, request, avoid, waited)),
    }
}

fn queue_timeout(
    gate: &AdmissionGate,
    request: &ParsedRequest,
    avoid: &[WorkerId],
    waited: Micros,
) -> GatewayError {
    let waits_for_workers = gate.settings.load().admission.waits_for_workers();
    let vacancy = gate.router.inspect().vacancy(request.model.as_deref(), request.usable(avoid));
    match vacancy {
        Vacancy::NoWorker if waits_for_workers => GatewayError::NoWorkerInTime { waited },
        Vacancy::UnknownModel if waits_for_workers => {
            GatewayError::UnknownModel(request.model.clone().unwrap_or_default())
        }
        _ => GatewayError::QueueTimeout { waited, retry_after_s: retry_after_s(gate) },
    }
}

fn retry_after_s(gate: &AdmissionGate) -> u32 {
    gate.admission.lock().retry_after_s(gate.clock.now())
}

/// Takes a request out of the queue when it stops waiting: on timeout, or when its client disconnects and the waiting
/// future is dropped.
struct QueueGuard<'a> {
    gate: &'a AdmissionGate,
    place: Option<AdmissionPosition>,
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
        if self.gate.admission.lock().leave(place).is_some() {
            return;
        }
        // The request is no longer queued: it was either admitted, or dropped at its deadline. Only an admitted
        // request has a place to give back. A waker that has not sent yet finds the channel closed and admits another
        // request.
        self.woken.close();
        if self.woken.try_recv().is_ok() {
            self.gate.admission.lock().withdraw();
            self.gate.admit_next();
        }
    }
}

impl Permit {
    /// Notes that a worker was chosen and will compute the prompt, and admits the next request if there is room.
    pub(crate) fn mark_routed(&mut self) {
        self.charged_tokens = self.prompt_tokens;
        self.may_run_on = self.is_background;
        self.gate.admit_next();
    }

    /// Queues the request again because no worker had room after all: another router or another model took the room, or
    /// the chosen worker failed while the others were full. It keeps its place and waits for any worker not in `avoid`.
    pub(crate) async fn requeue(
        &mut self,
        request: &Arc<ParsedRequest>,
        avoid: Vec<WorkerId>,
    ) -> Result<(), GatewayError> {
        let gate = Arc::clone(&self.gate);
        let model = request.model.as_deref();
        let mut admitted = self.admitted.take().ok_or(GatewayError::NotReady)?;
        let (usable, joins) = (request.usable(&avoid), gate.router.inspect().joins());
        admitted.place = admitted.place.on_route(route_of(&gate, model, usable, joins));
        let awaits_worker = gate.router.inspect().vacancy(model, usable) == Vacancy::NoWorker;
        let _counted = awaits_worker.then(|| gate.await_worker(model));
        let (wake, woken) = oneshot::channel();
        let (model_name, within) = (request.model.clone(), request.within.clone());
        let stored_at = usable.stored_at;
        let waiter = Waiter { model: model_name, stored_at, avoid: avoid.clone(), joins, within, wake };
        gate.admission.lock().wait_again(admitted.place, waiter, admitted.deadline);
        // The request no longer counts as running, so a worker may have room for it or for another one.
        gate.admit_next();
        self.admitted = Some(wait_for_turn(&gate, admitted, woken, request, &avoid).await?);
        Ok(())
    }

    /// Charges the output tokens streamed so far, so that a request that ends early is charged for what was computed.
    pub(crate) fn charge_streamed(&mut self, output_tokens: u32) {
        self.charged_tokens = self.prompt_tokens.saturating_add(output_tokens);
        let charged_tokens = self.charged_tokens;
        let exceeded = |lease: &&mut Lease| lease.is_limited() && charged_tokens > lease.tokens();
        if let Some(lease) = self.lease.as_mut().filter(exceeded) {
            self.gate.limits.extend(lease, charged_tokens);
        }
    }

    /// Charges what was reserved, because a worker served the request without saying how much it used.
    pub(crate) fn charge_reserved(&mut self) {
        let reserved = self.lease.as_ref().map_or(0, Lease::tokens);
        self.charge_at_least(reserved);
    }

    /// Charges this many tokens, or more if more were streamed.
    pub(crate) fn charge_at_least(&mut self, tokens: u32) {
        self.charged_tokens = self.charged_tokens.max(tokens);
    }

    /// Charges the usage that the engine reported.
    pub(crate) fn charge_usage(&mut self, usage: Usage) {
        self.charged_tokens = usage.prompt_tokens.saturating_add(usage.output_tokens);
    }

    /// Charges a complete answer, and learns its length for later reservations.
    pub(crate) fn charge_answer(&mut self, usage: Usage) {
        self.charge_usage(usage);
        let limited = self.lease.as_ref().filter(|lease| lease.is_limited());
        if let (Some(lease), Some(each)) = (limited, usage.output_tokens.checked_div(self.answers)) {
            self.gate.limits.learn(lease, each);
        }
    }

    /// Keeps the request's part of its tenant's limits, because the engine may go on after its answer. Without an
    /// identifier no request can show that it has ended.
    pub(crate) fn keep_in_background(&mut self, id: Option<u128>) {
        self.may_run_on = false;
        if let Some(lease) = self.lease.take() {
            self.gate.keep_in_background(id, self.tenant, lease);
        }
    }

    /// Whether the engine may compute the response after the request has ended.
    pub(crate) fn may_run_on(&self) -> bool {
        self.may_run_on
    }

    /// Notes that the engine does not compute the response any more.
    pub(crate) fn mark_computed(&mut self) {
        self.may_run_on = false;
    }

    /// Charges nothing, because no worker served the request.
    pub(crate) fn refund(&mut self) {
        (self.charged_tokens, self.may_run_on) = (0, false);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.may_run_on {
            // The client has left before the answer.
            self.keep_in_background(None);
        }
        let gate = &self.gate;
        if let Some(lease) = &self.lease {
            gate.limits.settle(lease, self.charged_tokens);
            self.gate.peers.notify();
        }
        if let Some(admitted) = self.admitted {
            let now = self.gate.clock.now();
            let cost = place_cost(self.charged_tokens, now.since(admitted.since));
            let mut admission = gate.admission.lock();
            admission.correct(admitted.place, cost);
            admission.end(admitted.place, now);
            drop(admission);
            self.gate.admit_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use crate::Config;
    use crate::admission_gate::tests::gate;

    /// A gate that lets one request run at a time.
    fn narrow_gate() -> Arc<AdmissionGate> {
        let admission = AdmissionConfig { running_max: 1, ..AdmissionConfig::default() };
        gate(Config { admission, ..Config::default() })
    }

    async fn enter(gate: &Arc<AdmissionGate>) -> Result<Option<Permit>, GatewayError> {
        admit(
            gate,
            &gate.settings.load().admission,
            &HeaderMap::new(),
            None,
            &Arc::default(),
            Entry::default(),
            &[],
        )
        .await
    }

    /// Running and waiting requests.
    fn counts(gate: &AdmissionGate) -> (u32, usize) {
        (gate.counts().0, gate.waiting())
    }

    #[tokio::test]
    async fn a_woken_request_that_disconnects_before_running_gives_its_place_back() {
        let gate = narrow_gate();
        let first = enter(&gate).await.unwrap();
        {
            let mut second = pin!(enter(&gate));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            drop(first);
            assert_eq!(counts(&gate), (1, 0), "the second request has been admitted");
        }
        assert_eq!(counts(&gate), (0, 0));
    }

    #[tokio::test]
    async fn a_request_that_timed_out_in_the_queue_has_no_place_to_give_back() {
        let gate = narrow_gate();
        let _first = enter(&gate).await.unwrap();
        {
            let mut second = pin!(enter(&gate));
            assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
            let mut admission = gate.admission.lock();
            admission.set_config(warmroute_admission::Config {
                running_max: 2,
                waiting_max: 9,
                wait_max: Micros(0),
            });
            assert!(
                admission.next(Micros(u64::MAX), |_| true).is_none(),
                "the second request is dropped at its deadline"
            );
        }
        assert_eq!(counts(&gate), (1, 0), "the first request is still running");
    }

    #[tokio::test]
    async fn a_request_that_queues_again_frees_its_place_for_the_next() {
        let gate = narrow_gate();
        let mut first = enter(&gate).await.unwrap().unwrap();
        let mut second = pin!(enter(&gate));
        assert!(poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
        // A fleet without workers is not full, so the first request in the queue is admitted.
        let request = Arc::default();
        let mut again = pin!(first.requeue(&request, Vec::new()));
        _ = poll_fn(|cx| Poll::Ready(again.as_mut().poll(cx).is_pending())).await;
        assert_eq!(counts(&gate), (1, 1), "one of them runs, so the place is not left empty");
    }
}
