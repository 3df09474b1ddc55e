//! One attempt: a request at one worker, from the routing decision to its end.
//!
//! An attempt that is dropped without a recorded outcome was cancelled by the client: hyper drops it wherever the
//! request stands, before the worker responds or in the middle of a stream. The one exception is a drain that aborts.
//! The booking in the decision is released at the same moment.

use std::sync::Arc;

use http::HeaderValue;
use warmroute_fleet::{ProbeResult, Worker};
use warmroute_policy::Standard;
use warmroute_record::TraceEntry;
use warmroute_router::{Answered, Change, Decision, Outcome, Router};
use warmroute_types::{Micros, Usage};

use crate::attempt_outcome::AttemptOutcome;
use crate::attempt_span::AttemptSpan;
use crate::clock::Clock;
use crate::drain::Drain;
use crate::forwarding::Forwarding;
use crate::history::{PastDecision, PastEnd};
use crate::parsed_request::ParsedRequest;
use crate::request_log::{RequestLog, text_of};
use crate::status_class::StatusClass;
use crate::stored_objects::hash_of;
use crate::stored_reference::{StoredCall, StoredKind};
use crate::stored_use::NamedObject;
use crate::tenant_tokens::PartialTokens;
use crate::upstream::UpstreamError;

/// A request at one worker. A retry is another attempt.
pub(crate) struct Attempt {
    forwarding: Arc<Forwarding>,
    request: Arc<ParsedRequest>,
    pub(crate) decision: Box<Decision>,
    /// When the request arrived, not when the attempt started: the client waits from then on.
    received: Micros,
    /// The decision's entry in the history.
    past_decision: Arc<PastDecision>,
    outcome: AttemptOutcome,
    /// Whether the request continues after this attempt.
    fate: RequestFate,
    /// Token counts that the engine reported.
    usage: Option<Usage>,
    /// Whether the attempt is the first one that the client sees tokens of.
    position: AttemptPosition,
    /// When the first token must come, if the request has a budget for it.
    ttft_due: Option<Micros>,
    /// Whether a response has begun, whose tokens are counted at its end.
    is_answered: bool,
    /// Tells whether a shutdown aborts requests.
    drain: Drain,
    log: RequestLog,
    pub(crate) span: AttemptSpan,
}

#[derive(Clone, Copy, PartialEq)]
enum RequestFate {
    Over,
    /// Another attempt follows, or the error response is accounted for elsewhere.
    Continues,
}

#[derive(Clone, Copy, PartialEq)]
enum AttemptPosition {
    First,
    /// It continues a stream that another worker began.
    Continues,
}

impl Attempt {
    pub(crate) fn new(
        forwarding: &Arc<Forwarding>,
        request: &Arc<ParsedRequest>,
        mut decision: Box<Decision>,
        received: Micros,
        request_id: Option<&HeaderValue>,
        drain: &Drain,
        log: &RequestLog,
    ) -> Attempt {
        let past_decision =
            forwarding.observers.history.record(&mut decision, request.model.as_deref(), request_id);
        if !past_decision.all_candidates.is_empty() {
            forwarding.observers.console.add_row(&past_decision);
        }
        let (forwarding, request) = (Arc::clone(forwarding), Arc::clone(request));
        let (outcome, fate) = (AttemptOutcome::Cancelled, RequestFate::Over);
        let mut attempt = Attempt {
            forwarding,
            request,
            decision,
            received,
            past_decision,
            outcome,
            fate,
            usage: None,
            position: AttemptPosition::First,
            ttft_due: None,
            is_answered: false,
            drain: drain.clone(),
            log: log.clone(),
            span: AttemptSpan::default(),
        };
        attempt.note_decision();
        attempt.span = AttemptSpan::begin(log, &attempt.decision, &attempt.request);
        attempt
    }

    /// Notes that the client has received tokens of an earlier attempt.
    pub(crate) fn mark_continuation(&mut self) {
        self.position = AttemptPosition::Continues;
        self.forwarding.observers.metrics.count_continuation("continued");
        self.log.note(|entry| entry.continuations += 1);
    }

    /// Sets when the first token must come.
    pub(crate) fn set_ttft_due(&mut self, due: Option<Micros>) {
        self.ttft_due = due;
    }

    /// Notes that a response has begun.
    pub(crate) fn mark_answered(&mut self) {
        self.is_answered = true;
    }

    /// The prompt's tokens, as the tenant's limits count them.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.request.prompt_tokens
    }

    /// Whether tokens are counted for a tenant.
    pub(crate) fn has_tenant(&self) -> bool {
        self.request.tenant_tokens.is_some()
    }

    /// The tokens of a response that ended early, if they are counted for a tenant.
    pub(crate) fn partial_tokens(&self, usage: Usage) -> Option<PartialTokens> {
        let tenant = self.request.tenant_tokens.as_ref().map(Arc::clone);
        tenant.map(|tenant| PartialTokens { tenant, usage })
    }

    /// Frees the prompt of a request whose answer will not be seen. The router keeps what it presumed.
    pub(crate) fn forget_prompt(&mut self) {
        if let Some(request) = Arc::get_mut(&mut self.request) {
            request.prompt = None;
        }
    }

    /// Whether the identifier of the response is needed: the worker may store it for its client, or compute it after
    /// its answer.
    pub(crate) fn needs_response_id(&self) -> bool {
        self.request.stored.stores.is_some() || self.is_background()
    }

    /// Notes that the worker stored an object with this identifier. The client does not have it yet, so its next request
    /// finds this. Returns the identifier's hash.
    pub(crate) fn note_stored(&self, id: &str) -> Option<u128> {
        let Some((kind, owner)) = self.request.stored.stores else {
            // A response that is computed in the background has an identifier even if it may not be stored.
            return self.is_background().then(|| hash_of(StoredKind::Response, id));
        };
        let (id, worker) = (hash_of(kind, id), Arc::clone(&self.decision.worker));
        self.forwarding.router.apply(Change::ResponseStored { id, owner, worker });
        self.forwarding.peers.notify();
        Some(id)
    }

    /// Number of answers that the request asks for.
    pub(crate) fn answers(&self) -> u32 {
        self.request.answers
    }

    /// Whether the engine answers before it has computed the response.
    pub(crate) fn is_background(&self) -> bool {
        self.request.stored.is_background
    }

    /// The stored object that the request reads, changes or cancels.
    pub(crate) fn named_object(&self) -> Option<NamedObject> {
        self.request.stored.named
    }

    /// Whether the request reads a stored response.
    pub(crate) fn reads_response(&self) -> bool {
        self.named_object().is_some_and(|named| named.call == StoredCall::Read)
            && self.request.stored.references.iter().any(|one| one.kind == StoredKind::Response)
    }

    /// Settles the limits of a response that was computed in the background.
    pub(crate) fn end_background(&self, id: u128, usage: Option<Usage>) {
        self.forwarding.gate.end_background(id, usage);
    }

    /// Whether the engine counts tokens in `meta_info` and not in a usage.
    pub(crate) fn returns_meta_info(&self) -> bool {
        self.request.returns_meta_info
    }

    /// The longest answer that the request allows, if limited.
    pub(crate) fn answer_tokens_max(&self) -> Option<u32> {
        self.request.answer_tokens_max
    }

    /// Reports the first token to the router, the metrics and the history.
    pub(crate) fn mark_first_token(&mut self) {
        let at = self.forwarding.clock.now();
        let observed = self.forwarding.router.observe(&mut self.decision, Outcome::FirstToken { at });
        self.forwarding.peers.notify();
        if self.position == AttemptPosition::First {
            self.forwarding.observers.metrics.observe_first_token(at.since(self.received));
        }
        if let Some(due) = self.ttft_due {
            self.forwarding.observers.metrics.count_ttft_budget(if at <= due { "met" } else { "missed" });
        }
        // Predictions start at the decision, so time for reading the body or for failed attempts does not count.
        let ttft = at.since(self.decision.made);
        let worker = &self.decision.worker;
        self.forwarding.upstreams.count_first_token(worker, self.decision.expected_ttft_ms(), ttft);
        self.past_decision.set_ttft(ttft);
        self.forwarding.observers.console.count_first_token(self.decision.expected_ttft_ms(), ttft);
        self.span.mark_first_token(at, ttft);
        if let Some(until) = observed.ejected_until {
            let (worker, for_s) = (&worker.label, until.since(at).as_secs_f64());
            let request = self.request_id();
            tracing::warn!(request, %worker, for_s, "worker is far slower than predicted and is avoided for a while");
        }
    }

    /// Ends the attempt after a complete response. Only a successful one has computed the prompt. `usage` is what the
    /// engine reported.
    pub(crate) fn end(mut self, outcome: AttemptOutcome, class: StatusClass, usage: Option<Usage>) {
        self.outcome = outcome;
        if let Some(usage) = usage {
            self.note_usage(usage);
        }
        match outcome {
            _ if matches!(class, StatusClass::ServerError | StatusClass::WorkerFailure) => {}
            AttemptOutcome::Ok => self.observe_end(usage),
            _ => _ = self.forwarding.router.observe(&mut self.decision, Outcome::Refused),
        }
        if let (Some(tokens), Some(usage)) = (&self.request.tenant_tokens, self.usage.or(usage)) {
            tokens.count(usage);
        }
    }

    /// Reports a successful end to the router, which compares the token counts with its prediction.
    fn observe_end(&mut self, usage: Option<Usage>) {
        let texts = self.request.texts();
        let request = &self.request.routing_request(&texts, &[]);
        // Of a continued stream, the client's usage is not what this worker has computed and found.
        let is_whole = self.request.is_single && self.position == AttemptPosition::First;
        let usage = usage.filter(|_| is_whole);
        let answered = usage.map(|usage| Answered { request, usage, at: self.forwarding.clock.now() });
        let observed = self.forwarding.router.observe(&mut self.decision, Outcome::Ended { answered });
        if let (Some(usage), Some(feedback)) = (usage, observed.feedback) {
            self.forwarding.upstreams.count_feedback(&self.decision.worker, &feedback, self.request.silence);
            let usage = Usage { cached_tokens: feedback.cached, ..usage };
            self.note_usage(usage);
            self.usage = Some(usage);
        }
    }

    fn note_usage(&mut self, usage: Usage) {
        self.span.set_usage(usage);
        self.log.note(|entry| {
            entry.prompt_tokens = Some(usage.prompt_tokens);
            entry.output_tokens = Some(usage.output_tokens);
            entry.cached_tokens = usage.cached_tokens;
        });
    }

    /// The request's id, for log lines.
    pub(crate) fn request_id(&self) -> &str {
        self.past_decision.request_id.as_ref().map_or("none", text_of)
    }

    /// Adds the decision to the request's line in the access log. A retry overwrites what the attempt before it added.
    fn note_decision(&self) {
        let decision = &self.decision;
        self.log.note(|entry| {
            entry.worker = Some(Arc::from(&*decision.worker.label));
            (entry.policy, entry.reason) = (Some(decision.policy), Some(decision.reason));
            entry.attempts += 1;
            entry.prompt_tokens = Some(decision.prompt_tokens);
            entry.expected_cached_tokens = decision.cached_tokens;
            entry.wait = Some(decision.made.since(self.received));
            entry.expected_ttft = Some(Micros((decision.expected_ttft_ms().max(0.0) * 1e3) as u64));
        });
    }

    /// Ends the attempt after a response that sends the request to another worker.
    pub(crate) fn reject(mut self, class: StatusClass) {
        self.fate = RequestFate::Continues;
        self.end(AttemptOutcome::ServerError, class, None);
    }

    /// Stops routing to the worker for the time it asked for.
    pub(crate) fn back_off(&self, pause: Micros) {
        let (worker, until) = (Arc::clone(&self.decision.worker), self.forwarding.clock.now() + pause);
        self.forwarding.upstreams.count_backpressure(&worker);
        let change = Change::Resting { worker, until };
        self.forwarding.router.apply(change);
    }

    /// Writes a line to the trace, if one is recorded.
    fn record_trace(&self) {
        let (Some(recorder), Some(trace_fields)) =
            (&self.forwarding.observers.recorder, &self.request.trace_fields)
        else {
            return;
        };
        recorder.record(TraceEntry {
            received: self.forwarding.clock.since_start(self.received),
            took: self.forwarding.clock.now().since(self.received),
            prompt_tokens: self.usage.map_or(self.decision.prompt_tokens, |usage| usage.prompt_tokens),
            output_tokens: self.usage.map(|usage| usage.output_tokens),
            cached_tokens: self.usage.and_then(|usage| usage.cached_tokens),
            model: self.request.model.clone(),
            session: trace_fields.session,
            sketch: trace_fields.sketch.clone(),
        });
    }

    /// Ends the attempt with an error. Whether the worker is blamed is decided elsewhere, see [`blame_worker`].
    pub(crate) fn fail(mut self, error: &UpstreamError) {
        self.outcome =
            if error.is_worker_fault() { AttemptOutcome::Failed } else { AttemptOutcome::EndedByGateway };
        self.span.set_error(error.code());
        self.fate = RequestFate::Continues;
    }

    /// Ends an attempt that another proxy forwarded and whose response was not seen. Its time is an estimate, so it
    /// does not count in the histogram of durations.
    pub(crate) fn end_unobserved(mut self) {
        (self.outcome, self.fate) = (AttemptOutcome::Unobserved, RequestFate::Continues);
        self.forwarding.router.observe(&mut self.decision, Outcome::Unobserved);
    }

    /// Ends an attempt whose request another worker answered, or the proxy in its place. The worker is not blamed: the
    /// proxy does not say why.
    pub(crate) fn end_elsewhere(mut self) {
        (self.outcome, self.fate) = (AttemptOutcome::Failed, RequestFate::Continues);
    }

    /// Counts the prompt of a request whose client left before the response began.
    fn count_unanswered(&self) {
        let is_free = self.is_background() || self.request.stored.is_free();
        if self.outcome == AttemptOutcome::Cancelled && !self.is_answered && !is_free {
            let usage = Usage { prompt_tokens: self.prompt_tokens(), output_tokens: 0, cached_tokens: None };
            self.partial_tokens(usage).into_iter().for_each(PartialTokens::count);
        }
    }

    fn final_outcome(&self) -> AttemptOutcome {
        match self.outcome {
            AttemptOutcome::Cancelled if self.drain.is_aborted() => AttemptOutcome::EndedByGateway,
            outcome => outcome,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let outcome = self.final_outcome();
        self.log.note(|entry| {
            entry.outcome = outcome.as_str();
            entry.ttft = self.past_decision.ttft();
        });
        self.span.end(outcome);
        self.forwarding.upstreams.count_outcome(&self.decision.worker, outcome);
        let took = self.forwarding.clock.now().since(self.received);
        let cached_tokens = self.usage.and_then(|usage| usage.cached_tokens);
        self.past_decision.set_end(PastEnd { outcome, took, cached_tokens });
        if self.fate == RequestFate::Over {
            self.forwarding.observers.metrics.observe_request_end(took);
            self.forwarding.observers.console.count_end(took);
            self.count_unanswered();
        }
        if matches!(outcome, AttemptOutcome::Ok | AttemptOutcome::Cancelled) {
            self.record_trace();
        }
    }
}

/// Counts a failed connection against a worker.
pub(crate) fn note_unreachable(router: &Router<Standard>, clock: Clock, worker: &Arc<Worker>) {
    let (worker_of_change, at) = (Arc::clone(worker), clock.now());
    let change = Change::Probed { worker: worker_of_change, result: ProbeResult::Failed, at };
    apply_and_log(router, worker, change);
}

/// Counts a request that failed at this time against a worker.
pub(crate) fn blame_worker(router: &Router<Standard>, worker: &Arc<Worker>, at: Micros) {
    apply_and_log(router, worker, Change::Faulted { worker: Arc::clone(worker), at });
}

/// Notes that a worker failed on this request. The request may be the cause, so the worker is only blamed once it
/// fails on different requests. Streamed uploads have no fingerprint to tell them apart and are not counted.
pub(crate) fn suspect_worker(
    router: &Router<Standard>,
    clock: Clock,
    worker: &Arc<Worker>,
    fingerprint: Option<u64>,
) {
    if let Some(request) = fingerprint {
        let change = Change::Broke { worker: Arc::clone(worker), request, at: clock.now() };
        apply_and_log(router, worker, change);
    }
}

/// Applies a failure and logs the change of state that it causes.
fn apply_and_log(router: &Router<Standard>, worker: &Worker, change: Change) {
    let before = router.inspect().worker_state(worker.id);
    router.apply(change);
    let after = router.inspect().worker_state(worker.id);
    if before != after {
        tracing::warn!(worker = %worker.label, state = %after, "worker changed state after failed requests");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_fleet::Models;
    use warmroute_router::Scratch;
    use warmroute_types::Address;

    use crate::drain::DrainMode;
    use crate::forwarding::tests::forwarding;

    /// The outcomes counted for one attempt that `end` ends.
    fn counted_outcomes(end: impl FnOnce(Attempt, &Drain)) -> Vec<AttemptOutcome> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        router.join(Address::new("http://a"), Models::Any).unwrap();
        let worker = Arc::clone(&router.inspect().workers()[0].worker);
        let result = ProbeResult::Answered;
        router.apply(Change::Probed { worker: Arc::clone(&worker), result, at: Micros(1) });
        let forwarding = forwarding(router);
        forwarding.upstreams.get_or_create(&worker).unwrap();
        let (parsed, drain) = (Arc::new(ParsedRequest::default()), Drain::default());
        let request = parsed.routing_request(&[], &[]);
        let decision =
            forwarding.router.route(&request, &mut Scratch::default(), Micros(1), 1).map(Box::new).unwrap();
        end(
            Attempt::new(&forwarding, &parsed, decision, Micros::ZERO, None, &drain, &RequestLog::default()),
            &drain,
        );
        let counts = AttemptOutcome::ALL.into_iter().zip(forwarding.upstreams.outcome_counts(&worker));
        counts.filter(|(_, count)| *count > 0).map(|(outcome, _)| outcome).collect()
    }

    #[test]
    fn an_attempt_ended_by_the_gateway_counts_neither_as_failed_nor_as_cancelled() {
        assert_eq!(
            counted_outcomes(|attempt, _| attempt.fail(&UpstreamError::Closed)),
            [AttemptOutcome::Failed]
        );
        assert_eq!(
            counted_outcomes(|attempt, _| attempt.fail(&UpstreamError::RequestTimeout)),
            [AttemptOutcome::EndedByGateway]
        );
        assert_eq!(
            counted_outcomes(|attempt, _| attempt.fail(&UpstreamError::ShuttingDown)),
            [AttemptOutcome::EndedByGateway]
        );
        let dropped = |step: DrainMode| {
            counted_outcomes(|attempt, drain| {
                drain.begin(step);
                drop(attempt);
            })
        };
        assert_eq!(dropped(DrainMode::CloseIdle), [AttemptOutcome::Cancelled]);
        assert_eq!(dropped(DrainMode::Abort), [AttemptOutcome::EndedByGateway]);
    }
}
