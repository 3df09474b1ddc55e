//! `/explain`: why requests went where they went, and where a given request would go.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Method, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};
use warmroute_policy::Standard;
use warmroute_prompt::Api;
use warmroute_router::{CandidateRecord, Preview, Router, Scratch};

use super::workers::parameter;
use super::{AdminError, AdminResult, as_json};
use crate::client_path::is_client_path;
use crate::forwarding::Forwarding;
use crate::gateway::Gateway;
use crate::gateway_error::{ErrorFormat, GatewayError};
use crate::history::{HISTORY_LEN, PastDecision};
use crate::intake;
use crate::random::random;

/// Number of decisions shown by default.
const DEFAULT_COUNT: usize = 20;

/// The endpoint for which a previewed request is taken by default.
const DEFAULT_PATH: &str = "/v1/chat/completions";

/// `GET /explain[?n=…]`: the last decisions, newest first. `last` is another name for `n`.
pub(super) fn last(forwarding: &Forwarding, query: &str) -> AdminResult {
    let wanted = parameter(query, "n").or_else(|| parameter(query, "last"));
    let wanted = wanted.map_or(Ok(DEFAULT_COUNT), |n| n.parse());
    let bad = |_| AdminError(StatusCode::BAD_REQUEST, format!("n must be a number, up to {HISTORY_LEN}"));
    let (wanted, now) = (wanted.map_err(bad)?, SystemTime::now());
    let decisions = forwarding.observers.history.last(wanted);
    Ok(as_json(&decisions.iter().map(|past| describe_past(&forwarding.router, past, now)).collect()))
}

/// `POST /explain[?path=…]`: where the request in the body would go now. It is neither sent nor booked.
pub(super) async fn preview(
    gateway: &Gateway,
    parts: &request::Parts,
    query: &str,
    body: Incoming,
) -> Response<Full<Bytes>> {
    let path = parameter(query, "path").unwrap_or_else(|| DEFAULT_PATH.to_owned());
    match compute_preview(gateway, parts, &path, body).await {
        Ok(answer) => as_json(&answer),
        Err(refusal) => {
            let mut response = Response::new(Full::from(refusal.to_json(ErrorFormat::of_path(&path))));
            *response.status_mut() = refusal.status();
            response
        }
    }
}

async fn compute_preview(
    gateway: &Gateway,
    parts: &request::Parts,
    path: &str,
    body: Incoming,
) -> Result<Value, GatewayError> {
    let api = Api::of_path(path);
    if api == Api::Other && !is_client_path(path) {
        return Err(GatewayError::UnknownPath(path.to_owned()));
    }
    let config = gateway.config();
    let received = intake::receive(&Method::POST, api, &parts.headers, body, &gateway.reader, &config, None);
    let parsed = received.await?.request;
    let texts = parsed.texts();
    let request = parsed.routing_request(&texts, &[]);
    let preview =
        gateway.router.inspect().preview(&request, &mut Scratch::default(), gateway.now(), random());
    let preview = preview.map_err(|why| GatewayError::no_route(&why, request.model))?;
    Ok(describe_preview(&gateway.router, &preview, request.model))
}

pub(super) fn describe_past(router: &Router<Standard>, past: &PastDecision, now: SystemTime) -> Value {
    let chosen = past.considered[0].as_ref().map(|chosen| &chosen.worker);
    let kept = past.considered.iter().flatten();
    // All of them, where the console asked for them.
    let others =
        past.all_candidates.iter().filter(|other| kept.clone().all(|one| one.worker != other.worker));
    let candidates: Value = kept
        .clone()
        .chain(others)
        .map(|one| describe(router, one, CandidateRole::of(chosen == Some(&one.worker))))
        .collect();
    let end = past.end();
    json!({
        "at_unix_ms": past.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        "age_ms": now.duration_since(past.at).unwrap_or_default().as_millis() as u64,
        "request_id": past.request_id.as_ref().and_then(|id| id.to_str().ok()),
        "model": past.model,
        "policy": past.policy,
        "reason": past.reason,
        "prompt_tokens": past.prompt_tokens,
        "reachable_tokens": past.longest_match,
        "cached_tokens": end.and_then(|end| end.cached_tokens),
        "observed_ttft_ms": past.ttft().map(|after| rounded(after.as_millis_f64())),
        "outcome": end.map(|end| end.outcome.as_str()),
        "duration_ms": end.map(|end| rounded(end.took.as_millis_f64())),
        "candidates": candidates,
    })
}

fn describe_preview(router: &Router<Standard>, preview: &Preview, model: Option<&str>) -> Value {
    let candidates = preview.candidates.iter().enumerate();
    let candidates: Value = candidates
        .map(|(index, candidate)| describe(router, candidate, CandidateRole::of(index == preview.chosen)))
        .collect();
    json!({
        "model": model,
        "policy": preview.policy,
        "reason": preview.reason,
        "prompt_tokens": preview.prompt_tokens,
        "candidates": candidates,
    })
}

/// A candidate's role in the decision.
#[derive(PartialEq)]
enum CandidateRole {
    Chosen,
    Other,
}

impl CandidateRole {
    fn of(is_chosen: bool) -> CandidateRole {
        if is_chosen { CandidateRole::Chosen } else { CandidateRole::Other }
    }
}

fn describe(router: &Router<Standard>, candidate: &CandidateRecord, role: CandidateRole) -> Value {
    let CandidateRecord { worker, view, numbers } = candidate;
    let estimate = &numbers.estimate;
    json!({
        "worker": worker.address.url,
        "rank": worker.address.rank,
        "chosen": role == CandidateRole::Chosen,
        "view": view.as_str(),
        "overlap_tokens": numbers.overlap_tokens,
        "restorable_tokens": numbers.restorable_tokens,
        "in_flight": numbers.in_flight,
        "prompts_ahead": estimate.prompts_ahead,
        "followers": rounded(estimate.followers.into()),
        "queue_ms": rounded(estimate.queue_ms.into()),
        "adapter_ms": rounded(estimate.adapter_ms.into()),
        "prefill_ms": rounded(estimate.prefill_ms.into()),
        "uncached_ms": rounded(estimate.uncached_ms.into()),
        "lacking_ms": rounded(estimate.lacking_ms.into()),
        "anywhere_ms": rounded(estimate.anywhere_ms.into()),
        "step_ms": rounded(estimate.step_ms.into()),
        "eviction_ms": rounded(estimate.eviction_ms.into()),
        "expected_ttft_ms": rounded(estimate.ttft_ms().into()),
        "cost_ms": router.inspect().policy().cost_ms(numbers).map(|ms| rounded(ms.into())),
    })
}

/// Rounds to microseconds: more digits would be noise.
fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}
