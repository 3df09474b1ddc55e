//! The routing phase: asks the router for a decision, counts it and tells peers.

use std::cell::RefCell;

use http::HeaderValue;
use warmroute_admission::ExpectedWait;
use warmroute_policy::Standard;
use warmroute_router::{Decision, Router, Scratch};
use warmroute_types::{Micros, WorkerId};

use crate::forwarding::Forwarding;
use crate::gateway_error::GatewayError;
use crate::parsed_request::ParsedRequest;
use crate::random::random;
use crate::request_log::text_of;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Chooses a worker outside `avoid` and books the request on it.
pub(crate) fn route(
    forwarding: &Forwarding,
    request: &ParsedRequest,
    avoid: &[WorkerId],
    request_id: Option<&HeaderValue>,
) -> Result<Box<Decision>, GatewayError> {
    let texts = request.texts();
    let request = request.routing_request(&texts, avoid);
    let (now, random) = (forwarding.clock.now(), random());
    let decision = SCRATCH.with_borrow_mut(|scratch| {
        scratch.kept = forwarding.observers.console.wanted_candidates();
        forwarding.router.route(&request, scratch, now, random)
    });
    // A decision is large, and moves through many hands.
    let decision = decision.map(Box::new).map_err(|why| GatewayError::no_route(&why, request.model))?;
    forwarding.peers.notify();
    forwarding.observers.metrics.count_decision(decision.policy, decision.reason);
    tracing::debug!(
        request = request_id.map_or("none", text_of), worker = %decision.worker.label,
        policy = decision.policy, reason = decision.reason, view = %decision.view,
        query_tokens = decision.prompt_tokens, matched_tokens = decision.cached_tokens,
        longest_match_tokens = decision.longest_match, "routed",
    );
    Ok(decision)
}

/// The expected time to first token of a request that would be routed now; `None` if no worker can take it.
pub(crate) fn expected_ttft(
    router: &Router<Standard>,
    now: Micros,
    request: &ParsedRequest,
    avoid: &[WorkerId],
) -> Option<Micros> {
    let texts = request.texts();
    let request = request.routing_request(&texts, avoid);
    let preview =
        SCRATCH.with_borrow_mut(|scratch| router.inspect().preview(&request, scratch, now, random())).ok()?;
    let chosen = preview.candidates.get(preview.chosen)?;
    Some(as_micros(chosen.numbers.estimate.ttft_ms()))
}

/// The expected time to first token of a decision.
pub(crate) fn expected_ttft_of(decision: &Decision) -> ExpectedWait {
    let ahead_ms = decision.expected_queue_ms();
    ExpectedWait { ahead: as_micros(ahead_ms), own: as_micros(decision.expected_ttft_ms() - ahead_ms) }
}

fn as_micros(ms: f32) -> Micros {
    // A float beyond the type's range saturates.
    Micros((f64::from(ms.max(0.0)) * 1e3) as u64)
}

/// All workers except the one with this label, which a client requests.
pub(crate) fn all_but(router: &Router<Standard>, requested: &str) -> Result<Vec<WorkerId>, GatewayError> {
    let workers = router.inspect().workers();
    let others = workers.iter().filter(|view| *view.worker.label != *requested).map(|view| view.worker.id);
    let others: Vec<WorkerId> = others.collect();
    if others.len() == workers.len() {
        return Err(GatewayError::UnknownWorker(requested.to_owned()));
    }
    Ok(others)
}
