//! The routing phase: asks the router for a decision, counts it and tells peers.

use std::cell::RefCell;

use http::HeaderValue;
use warmroute_router::{Decision, Scratch};
use warmroute_types::WorkerId;

use crate::gateway::Gateway;
use crate::gateway_error::GatewayError;
use crate::parsed_request::ParsedRequest;
use crate::random::random;
use crate::request_log::text_of;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Chooses a worker outside `avoid` and books the request on it.
pub(crate) fn route(
    gateway: &Gateway,
    request: &ParsedRequest,
    avoid: &[WorkerId],
    request_id: Option<&HeaderValue>,
) -> Result<Decision, GatewayError> {
    let texts = request.texts();
    let request = request.routing_request(&texts, avoid);
    let (now, random) = (gateway.now(), random());
    let decision = SCRATCH.with_borrow_mut(|scratch| {
        scratch.kept = gateway.console.wanted_candidates();
        gateway.router.route(&request, scratch, now, random)
    });
    let decision = decision.map_err(|why| GatewayError::no_route(&why, request.model))?;
    gateway.notify_peers();
    gateway.metrics.count_decision(decision.policy, decision.reason);
    tracing::debug!(
        request = request_id.map_or("none", text_of), worker = %decision.worker.label,
        policy = decision.policy, reason = decision.reason, view = %decision.view,
        query_tokens = decision.prompt_tokens, matched_tokens = decision.cached_tokens,
        longest_match_tokens = decision.longest_match, "routed",
    );
    Ok(decision)
}

/// All workers except the one that stores what the request continues. None, if any worker will do.
pub(crate) fn all_but_stored(gateway: &Gateway, request: &ParsedRequest) -> Vec<WorkerId> {
    let Some(stored_at) = request.stored.worker else { return Vec::new() };
    let workers = gateway.router.inspect().workers();
    workers.iter().map(|view| view.worker.id).filter(|id| *id != stored_at).collect()
}

/// All workers except the one with this label, which a client requests.
pub(crate) fn all_but(gateway: &Gateway, requested: &str) -> Result<Vec<WorkerId>, GatewayError> {
    let workers = gateway.router.inspect().workers();
    let others = workers.iter().filter(|view| *view.worker.label != *requested).map(|view| view.worker.id);
    let others: Vec<WorkerId> = others.collect();
    if others.len() == workers.len() {
        return Err(GatewayError::UnknownWorker(requested.to_owned()));
    }
    Ok(others)
}
