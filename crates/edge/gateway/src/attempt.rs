//! A request's stay with one worker, from the decision to whatever ends it.
//!
//! A attempt that is dropped before anybody said how it ended was cancelled by the client: that is true wherever in the code
//! hyper lets go of it, before the worker answered or in the middle of a stream. Only a drain whose time is over lets go of it, too,
//! and that is no client's doing. The booking inside is released at the same moment.

use std::sync::Arc;

use http::HeaderValue;
use warmroute_fleet::{ProbeResult, Worker};
use warmroute_record::Entry;
use warmroute_router::{Answered, Change, Content, Decision, Outcome};
use warmroute_types::{Micros, Usage};

use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::history::PastDecision;
use crate::metrics::AttemptOutcome;
use crate::parsed_request::{ParsedRequest, PromptKeys};
use crate::status_class::StatusClass;
use crate::upstream::UpstreamError;

/// One stay. A retry is another.
pub(crate) struct Attempt {
    gateway: Arc<Gateway>,
    request: Arc<ParsedRequest>,
    pub(crate) decision: Decision,
    /// When the request came, not when this stay began: that is what the client waits for.
    received: Micros,
    /// How the decision is remembered.
    past_decision: Arc<PastDecision>,
    outcome: AttemptOutcome,
    /// Whether the request goes on elsewhere after this stay.
    fate: RequestFate,
    /// What the engine said it used.
    usage: Option<Usage>,
    /// Tells whether everything is ended.
    drain: Drain,
}

#[derive(Clone, Copy, PartialEq)]
enum RequestFate {
    Over,
    /// Another worker is tried, or what became of it is told otherwise.
    Continues,
}

impl Attempt {
    pub(crate) fn new(
        gateway: &Arc<Gateway>,
        request: &Arc<ParsedRequest>,
        decision: Decision,
        received: Micros,
        request_id: Option<&HeaderValue>,
        drain: &Drain,
    ) -> Attempt {
        let past_decision = gateway.history.record(&decision, request.model.as_deref(), request_id);
        let (gateway, request) = (Arc::clone(gateway), Arc::clone(request));
        let (outcome, fate) = (AttemptOutcome::Cancelled, RequestFate::Over);
        Attempt {
            gateway,
            request,
            decision,
            received,
            past_decision,
            outcome,
            fate,
            usage: None,
            drain: drain.clone(),
        }
    }

    /// The first token was seen.
    pub(crate) fn mark_first_token(&mut self) {
        let at = self.gateway.now();
        self.gateway.router.observe(&mut self.decision, Outcome::FirstToken { at });
        self.gateway.notify_peers();
        self.gateway.metrics.observe_first_token(at.since(self.received));
        // What was predicted is the time from the decision: reading the body, or failing elsewhere, is not its fault.
        let observed = at.since(self.decision.made);
        self.gateway.upstreams.count_first_token(
            &self.decision.worker,
            self.decision.expected_ttft_ms(),
            observed,
        );
        self.past_decision.set_ttft(observed);
        if let Some(until) = self.gateway.router.compare_first_token(&self.decision, at) {
            let (worker, for_s) = (&self.decision.worker.label, until.since(at).as_secs_f64());
            tracing::warn!(%worker, for_s, "worker is far slower than predicted: left alone for a while");
        }
    }

    /// The worker answered to the end. Only a success has computed the prompt.
    pub(crate) fn end(mut self, outcome: AttemptOutcome, class: StatusClass) {
        self.outcome = outcome;
        if !matches!(class, StatusClass::ServerError | StatusClass::WorkerFailure) {
            let event = if outcome == AttemptOutcome::Ok { Outcome::Ended } else { Outcome::Refused };
            self.gateway.router.observe(&mut self.decision, event);
        }
    }

    /// The worker would not have the request, and another is tried.
    pub(crate) fn reject(mut self, class: StatusClass) {
        self.fate = RequestFate::Continues;
        self.end(AttemptOutcome::ServerError, class);
    }

    /// The worker wants to be left alone for a while.
    pub(crate) fn back_off(&self, pause: Micros) {
        let (worker, until) = (Arc::clone(&self.decision.worker), self.gateway.now() + pause);
        self.gateway.upstreams.count_backpressure(&worker);
        let change = Change::Resting { worker, until };
        self.gateway.router.apply(change).expect("only a join can find the fleet full");
    }

    /// The engine said what it used.
    pub(crate) fn report_usage(&mut self, usage: Usage) {
        if !self.request.is_single {
            return;
        }
        let texts = self.request.texts();
        let answered = Answered {
            model: self.request.model.as_deref(),
            prompt: self.request.prompt.as_ref().map(PromptKeys::chunks),
            texts: &texts,
            usage,
            silence: self.request.silence,
            content: self.request.prompt.as_ref().map_or_else(Content::default, |keys| keys.content),
        };
        let feedback = self.gateway.router.feedback(&mut self.decision, answered, self.gateway.now());
        self.gateway.upstreams.count_feedback(&self.decision.worker, &feedback, self.request.silence);
        self.usage = Some(Usage { cached_tokens: feedback.cached, ..usage });
    }

    /// Leaves a line in the record, where there is one.
    fn record_trace(&self) {
        let (Some(recorder), Some(trace_fields)) = (&self.gateway.recorder, &self.request.trace_fields)
        else {
            return;
        };
        recorder.record(Entry {
            received: self.gateway.since_start(self.received),
            took: self.gateway.now().since(self.received),
            prompt_tokens: self.usage.map_or(self.decision.prompt_tokens, |usage| usage.prompt_tokens),
            output_tokens: self.usage.map(|usage| usage.output_tokens),
            cached_tokens: self.usage.and_then(|usage| usage.cached_tokens),
            model: self.request.model.clone(),
            session: trace_fields.session,
            sketch: trace_fields.sketch.clone(),
        });
    }

    /// The worker failed, or we stopped waiting for it. Whether it is to be blamed is another question: see [`blame_worker`].
    pub(crate) fn fail(mut self, error: &UpstreamError) {
        self.outcome =
            if error.is_worker_fault() { AttemptOutcome::Failed } else { AttemptOutcome::EndedByGateway };
        self.fate = RequestFate::Continues;
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
        self.gateway.upstreams.count_outcome(&self.decision.worker, outcome);
        if self.fate == RequestFate::Over {
            self.gateway.metrics.observe_request_end(self.gateway.now().since(self.received));
        }
        if matches!(outcome, AttemptOutcome::Ok | AttemptOutcome::Cancelled) {
            self.record_trace();
        }
    }
}

/// Counts a failure against a worker.
pub(crate) fn blame_worker(gateway: &Gateway, worker: &Arc<Worker>, error: &UpstreamError) {
    let at = gateway.now();
    let change = match error.is_unreachable() {
        true => Change::Probed { worker: Arc::clone(worker), result: ProbeResult::Failed, at },
        false => Change::Faulted { worker: Arc::clone(worker), at },
    };
    apply_and_log(gateway, worker, change);
}

/// A worker took a request and broke off. That may have been the request's fault, so it counts against the worker only beside others;
/// of a body that was streamed through, it cannot be told whether it is another.
pub(crate) fn suspect_worker(gateway: &Gateway, worker: &Arc<Worker>, fingerprint: Option<u64>) {
    if let Some(request) = fingerprint {
        apply_and_log(
            gateway,
            worker,
            Change::Broke { worker: Arc::clone(worker), request, at: gateway.now() },
        );
    }
}

/// Tells the router of a worker's failure, and the operator where that changes something.
fn apply_and_log(gateway: &Gateway, worker: &Worker, change: Change) {
    let before = gateway.router.worker_state(worker.id);
    gateway.router.apply(change).expect("only a join can find the fleet full");
    let after = gateway.router.worker_state(worker.id);
    if before != after {
        tracing::warn!(worker = %worker.label, state = %after, "worker changed state: its requests failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_fleet::Models;
    use warmroute_policy::Standard;
    use warmroute_router::{Router, Scratch};
    use warmroute_types::Address;

    use crate::Config;
    use crate::drain::DrainMode;

    /// How one attempt is counted that is made and ended so.
    fn counted_outcomes(end: impl FnOnce(Attempt, &Drain)) -> Vec<AttemptOutcome> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        router.apply(Change::Join { address: Address::new("http://a"), models: Models::Any }).unwrap();
        let worker = Arc::clone(&router.workers()[0].worker);
        let result = ProbeResult::Answered;
        router.apply(Change::Probed { worker: Arc::clone(&worker), result, at: Micros(1) }).unwrap();
        let gateway = Gateway::new(router, Config::default(), None).unwrap();
        gateway.upstreams.get_or_create(&worker).unwrap();
        let (parsed, drain) = (Arc::new(ParsedRequest::default()), Drain::default());
        let request = parsed.routing_request(&[], &[]);
        let decision = gateway.router.route(&request, &mut Scratch::default(), Micros(1), 1).unwrap();
        end(Attempt::new(&gateway, &parsed, decision, Micros::ZERO, None, &drain), &drain);
        let counts = AttemptOutcome::ALL.into_iter().zip(gateway.upstreams.outcome_counts(&worker));
        counts.filter(|(_, count)| *count > 0).map(|(outcome, _)| outcome).collect()
    }

    #[test]
    fn what_we_end_is_neither_the_workers_failure_nor_the_clients_leaving() {
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
