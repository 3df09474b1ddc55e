//! A worker chosen for a request that another proxy forwards, from the choice to the end of the response.
//!
//! A pick owns the request's booking and permit, as a response does in the gateway. A pick that is dropped without an
//! end was cancelled by the client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use warmroute_router::CandidateRecord;
use warmroute_types::{Micros, Usage};

use crate::attempt::{Attempt, suspect_worker};
use crate::attempt_outcome::AttemptOutcome;
use crate::body_budget::BodyBudget;
use crate::forwarding::Forwarding;
use crate::framing::Framing;
use crate::headers;
use crate::permit::Permit;
use crate::response_content::Follows;
use crate::response_watch::ResponseWatch;
use crate::status_class::StatusClass;
use crate::tenant_tokens::PartialTokens;
use crate::upstream::Upstream;
use crate::upstream_body::BufferedBody;

/// Answer tokens of an unseen response whose request sets no limit, and the most that a limit counts for: limits are
/// usually far above what is generated.
const ANSWER_TOKENS_ASSUMED: u32 = 256;

/// Time per answer token of an unseen response. Engines under load take 10 to 50 ms.
const TOKEN_TIME_ASSUMED: Duration = Duration::from_millis(20);

/// Longest time for which an unseen response counts as load, whatever its prediction.
const UNSEEN_TIME_MAX: Duration = Duration::from_secs(120);

/// A report that arrives so long after the choice includes the request: the proxy has forwarded it by then.
const FORWARD_TIME_MAX: Micros = Micros::from_secs(1);

/// An estimated prompt length may be wrong by so much: an engine surely refuses a prompt that is longer than its limit by more.
const LENGTH_ERROR_MAX: u64 = 2;

/// Headers that the proxy must set and remove before it forwards a request.
#[derive(Clone, Debug, Default)]
pub struct HeaderChanges {
    /// Headers to set in place of the client's.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Headers to remove.
    pub remove: Vec<HeaderName>,
}

/// Whether the response of a request will be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseSight {
    /// The proxy reports the response: its first token and its end are known.
    Seen,
    /// The proxy does not. The end of the request is estimated.
    Unseen,
}

/// A chosen worker.
pub struct Pick {
    forwarding: Arc<Forwarding>,
    upstream: Arc<Upstream>,
    body: BufferedBody,
    /// The body's share of the memory budget.
    budget: Option<BodyBudget>,
    /// Identifies the request body, to tell apart requests on which a worker fails. `None` if the response is not seen.
    fingerprint: Option<u64>,
    header_changes: HeaderChanges,
    sight: ResponseSight,
    /// What the status said, once the response has begun.
    begun: Option<(AttemptOutcome, StatusClass)>,
    /// `None` once the request is over.
    watch: Option<ResponseWatch>,
}

impl Pick {
    pub(crate) fn new(
        forwarding: &Arc<Forwarding>,
        attempt: Attempt,
        permit: Option<Permit>,
        upstream: Arc<Upstream>,
    ) -> Pick {
        let mut header_changes = HeaderChanges::default();
        match upstream.rank() {
            Some(rank) => header_changes.set.push((headers::DATA_PARALLEL_RANK, HeaderValue::from(rank))),
            // Clients cannot choose a rank.
            None => header_changes.remove.push(headers::DATA_PARALLEL_RANK),
        }
        Pick {
            forwarding: Arc::clone(forwarding),
            upstream,
            body: BufferedBody::default(),
            budget: None,
            fingerprint: None,
            header_changes,
            sight: ResponseSight::Unseen,
            begun: None,
            // Until the head arrives it is not known whether a stream follows.
            watch: Some(ResponseWatch::new(attempt, permit, Framing::Document, StatusCode::OK)),
        }
    }

    /// Sets the body as the worker gets it. `has_length`: the client has sent its length, which may no longer be right.
    pub(crate) fn set_body(
        &mut self,
        body: BufferedBody,
        budget: BodyBudget,
        sight: ResponseSight,
        has_length: bool,
    ) {
        if has_length && body.is_changed() {
            self.header_changes.set.push((header::CONTENT_LENGTH, HeaderValue::from(body.len())));
        }
        self.fingerprint = (sight == ResponseSight::Seen).then(|| body.fingerprint());
        (self.body, self.budget, self.sight) = (body, Some(budget), sight);
    }

    /// Keeps the client from steering the worker, and from choosing the request's name in it.
    pub(crate) fn remove_steering(&mut self, headers: &HeaderMap) {
        let id = headers::worker_request_id(&headers::request_id(headers));
        self.header_changes.set.push((headers::REQUEST_ID, id));
        self.header_changes.remove.extend(headers::steering(headers));
    }

    /// Keeps the client's credentials from the worker unless they are passed, and adds our own.
    pub(crate) fn set_credentials(&mut self, passes_clients: bool, ours: Option<HeaderValue>) {
        if !passes_clients {
            let is_replaced = |name: &HeaderName| ours.is_some() && *name == header::AUTHORIZATION;
            let removed = headers::CREDENTIALS.into_iter().filter(|name| !is_replaced(name));
            self.header_changes.remove.extend(removed);
        }
        self.header_changes.set.extend(ours.map(|ours| (header::AUTHORIZATION, ours)));
    }

    /// The worker's address, then up to `fallbacks` addresses of the next best workers.
    pub fn endpoints(&self, fallbacks: usize) -> Vec<SocketAddr> {
        let chosen = self.upstream.endpoint;
        let mut endpoints: Vec<SocketAddr> = chosen.into_iter().collect();
        let Some(watch) = &self.watch else { return endpoints };
        let others = watch.attempt.decision.candidate_records.iter().skip(1).flatten();
        // A fallback gets the same headers, so it cannot be a rank of its own.
        let others = others.filter(|_| self.upstream.rank().is_none());
        for endpoint in others.filter_map(|record| self.endpoint_without_rank(record)) {
            if endpoints.len() <= fallbacks && !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        endpoints
    }

    fn endpoint_without_rank(&self, record: &CandidateRecord) -> Option<SocketAddr> {
        let upstream = self.forwarding.upstreams.get_or_create(&record.worker).ok()?;
        upstream.endpoint.filter(|_| upstream.rank().is_none())
    }

    /// Headers that change before the request is forwarded.
    pub fn header_changes(&self) -> &HeaderChanges {
        &self.header_changes
    }

    /// The body as the worker gets it, in pieces that are not empty.
    pub fn body(&self) -> impl Iterator<Item = &Bytes> {
        self.body.pieces()
    }

    /// Whether that body differs from the client's: fields were dropped, or an alias, a salt or options were written.
    pub fn is_body_changed(&self) -> bool {
        self.body.is_changed()
    }

    /// Frees the body and its share of the memory budget, and the prompt unless a response will be compared with it.
    pub fn release_body(&mut self) {
        (self.body, self.budget) = (BufferedBody::default(), None);
        if self.sight == ResponseSight::Unseen {
            self.watch.iter_mut().for_each(|watch| watch.attempt.forget_prompt());
        }
    }

    /// Takes the head of the worker's response.
    pub fn begin_response(&mut self, status: StatusCode, headers: &HeaderMap) {
        let Some(ResponseWatch { attempt, permit, .. }) = self.watch.take() else { return };
        let (outcome, class) = (AttemptOutcome::of(status), StatusClass::of(status, headers));
        match class {
            StatusClass::Backpressure { pause } => attempt.back_off(pause),
            StatusClass::ServerError | StatusClass::WorkerFailure => {
                suspect_worker(
                    &self.forwarding.router,
                    self.forwarding.clock,
                    &attempt.decision.worker,
                    self.fingerprint,
                );
            }
            StatusClass::Normal => {}
        }
        self.begun = Some((outcome, class));
        self.watch = Some(ResponseWatch::new(attempt, permit, Framing::of(headers), status));
    }

    /// Notes the first token of a response that another picker reads.
    pub(crate) fn mark_first_token(&mut self) {
        self.watch.iter_mut().for_each(ResponseWatch::mark_first_token);
    }

    /// Ends the request after a whole response that another picker has read.
    pub(crate) fn end_as_reported(mut self, usage: Option<Usage>, id: Option<&str>, is_computed: bool) {
        if let Some(watch) = &mut self.watch {
            watch.note_report(usage, id, is_computed);
        }
        self.end();
    }

    /// Reads a chunk of the response.
    pub fn read_chunk(&mut self, chunk: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.observe(chunk, Follows::More);
        }
    }

    /// Ends the request after a whole response. Without a response it ends as [`Pick::end_unseen`].
    pub fn end(mut self) {
        let Some((outcome, class)) = self.begun else { return self.end_unseen() };
        if let Some(mut watch) = self.watch.take() {
            let usage = watch.charge_answer(outcome, class);
            watch.attempt.end(outcome, class, usage);
        }
    }

    /// Ends a request whose response was not seen. Its prompt counts as computed, and its tenant is charged what was reserved. A
    /// prompt that is far too long for the engine was refused.
    pub fn end_unseen(mut self) {
        if self.is_too_long() {
            return self.end_elsewhere();
        }
        if let Some(mut watch) = self.watch.take() {
            watch.permit.iter_mut().for_each(Permit::mark_computed);
            watch.permit.iter_mut().for_each(Permit::charge_reserved);
            watch.attempt.end_unobserved();
        }
    }

    /// Ends a request that another worker answered, or the proxy itself.
    pub fn end_elsewhere(mut self) {
        if let Some(mut watch) = self.watch.take() {
            watch.permit.iter_mut().for_each(Permit::refund);
            watch.attempt.end_elsewhere();
        }
    }

    /// How long the request counts as load if its response is not seen: the predicted time to first token and an
    /// assumed time for the answer.
    pub fn unseen_time(&self) -> Duration {
        let Some(watch) = &self.watch else { return Duration::ZERO };
        if self.is_too_long() {
            return Duration::ZERO;
        }
        let ttft = Micros::from_millis_f64(watch.attempt.decision.expected_ttft_ms().into());
        let tokens = watch.attempt.answer_tokens_max().unwrap_or(u32::MAX).min(ANSWER_TOKENS_ASSUMED);
        (Duration::from(ttft) + TOKEN_TIME_ASSUMED * tokens).min(UNSEEN_TIME_MAX)
    }

    /// Whether the worker has reported since that it has no request, so the estimate was too long.
    pub fn is_reported_over(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| {
            let decision = &watch.attempt.decision;
            let report = self.forwarding.router.inspect().load_report(decision.worker.id);
            report.is_some_and(|report| {
                report.at.since(decision.made) >= FORWARD_TIME_MAX && report.running + report.waiting == 0
            })
        })
    }

    /// Whether the engine refuses the prompt for its length.
    fn is_too_long(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| {
            let decision = &watch.attempt.decision;
            let limit = self.forwarding.router.inspect().max_model_len(decision.worker.id);
            limit.is_some_and(|tokens| u64::from(decision.prompt_tokens) > tokens * LENGTH_ERROR_MAX)
        })
    }
}

impl Drop for Pick {
    /// A pick without an end was cancelled by the client. The attempt is released before the permit, see `relay`.
    fn drop(&mut self) {
        if let Some(mut watch) = self.watch.take() {
            watch.charge_partial_answer().into_iter().for_each(PartialTokens::count);
            drop(watch.attempt);
            drop(watch.permit);
        }
    }
}
