//! A request's stay with one worker, from the decision to whatever ends it.
//!
//! A trip that is dropped before anybody said how it ended was cancelled by the client: that is true wherever in the code
//! hyper lets go of it, before the worker answered or in the middle of a stream. Only a drain whose time is over lets go of it, too,
//! and that is no client's doing. The booking inside is released at the same moment.

use std::sync::Arc;

use http::HeaderValue;
use warmroute_fleet::{ProbeResult, Worker};
use warmroute_record::TraceEntry;
use warmroute_router::{Answered, Change, Content, Decision, Outcome};
use warmroute_types::{Micros, Usage};

use crate::asked::{Asked, Cut};
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::history::Past;
use crate::metrics::Ending;
use crate::upstream::Fault;
use crate::verdict::Verdict;

/// One stay. A retry is another.
pub(crate) struct Trip {
    gateway: Arc<Gateway>,
    asked: Arc<Asked>,
    pub(crate) decision: Decision,
    /// When the request came, not when this stay began: that is what the client waits for.
    received: Micros,
    /// How the decision is remembered.
    past: Arc<Past>,
    ending: Ending,
    /// Whether the request goes on elsewhere after this stay.
    after: After,
    /// What the engine said it used.
    usage: Option<Usage>,
    /// Tells whether everything is ended.
    drain: Drain,
}

#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    /// Another worker is tried, or what became of it is told otherwise.
    More,
}

impl Trip {
    pub(crate) fn new(
        gateway: &Arc<Gateway>,
        asked: &Arc<Asked>,
        decision: Decision,
        received: Micros,
        request_id: Option<&HeaderValue>,
        drain: &Drain,
    ) -> Trip {
        let past = gateway.history.remember(&decision, asked.model.as_deref(), request_id);
        let (gateway, asked) = (Arc::clone(gateway), Arc::clone(asked));
        let (ending, after) = (Ending::Cancelled, After::Nothing);
        Trip { gateway, asked, decision, received, past, ending, after, usage: None, drain: drain.clone() }
    }

    /// The first token was seen.
    pub(crate) fn first_token(&mut self) {
        let at = self.gateway.now();
        self.gateway.router.observe(&mut self.decision, Outcome::FirstToken { at });
        self.gateway.has_news();
        self.gateway.metrics.first_token(at.since(self.received));
        // What was predicted is the time from the decision: reading the body, or failing elsewhere, is not its fault.
        let observed = at.since(self.decision.made);
        self.gateway.upstreams.count_first_token(
            &self.decision.worker,
            self.decision.expected_ttft_ms(),
            observed,
        );
        self.past.saw_first_token(observed);
        if let Some(until) = self.gateway.router.compare_first_token(&self.decision, at) {
            let (worker, for_s) = (&self.decision.worker.label, until.since(at).as_secs_f64());
            tracing::warn!(%worker, for_s, "worker is far slower than predicted: left alone for a while");
        }
    }

    /// The worker answered to the end. Only a success has computed the prompt.
    pub(crate) fn end(mut self, ending: Ending, verdict: Verdict) {
        self.ending = ending;
        if !matches!(verdict, Verdict::Error | Verdict::Fault) {
            let outcome = if ending == Ending::Ok { Outcome::Ended } else { Outcome::Refused };
            self.gateway.router.observe(&mut self.decision, outcome);
        }
    }

    /// The worker would not have the request, and another is tried.
    pub(crate) fn turned_away(mut self, verdict: Verdict) {
        self.after = After::More;
        self.end(Ending::ServerError, verdict);
    }

    /// The worker wants to be left alone for a while.
    pub(crate) fn rest(&self, rest: Micros) {
        let (worker, until) = (Arc::clone(&self.decision.worker), self.gateway.now() + rest);
        self.gateway.upstreams.count_backpressure(&worker);
        let change = Change::Resting { worker, until };
        self.gateway.router.apply(change).expect("only a join can find the fleet full");
    }

    /// The engine said what it used.
    pub(crate) fn used(&mut self, usage: Usage) {
        if !self.asked.is_single {
            return;
        }
        let texts = self.asked.texts();
        let answered = Answered {
            model: self.asked.model.as_deref(),
            prompt: self.asked.prompt.as_ref().map(Cut::chunks),
            texts: &texts,
            usage,
            silence: self.asked.silence,
            content: self.asked.prompt.as_ref().map_or_else(Content::default, |cut| cut.content),
        };
        let feedback = self.gateway.router.feedback(&mut self.decision, answered, self.gateway.now());
        self.gateway.upstreams.count_feedback(&self.decision.worker, &feedback, self.asked.silence);
        self.usage = Some(Usage { cached_tokens: feedback.cached, ..usage });
    }

    /// Leaves a line in the record, where there is one.
    fn note(&self) {
        let (Some(recorder), Some(noted)) = (&self.gateway.recorder, &self.asked.noted) else { return };
        recorder.record(TraceEntry {
            received: self.gateway.since_start(self.received),
            took: self.gateway.now().since(self.received),
            prompt_tokens: self.usage.map_or(self.decision.prompt_tokens, |usage| usage.prompt_tokens),
            output_tokens: self.usage.map(|usage| usage.output_tokens),
            cached_tokens: self.usage.and_then(|usage| usage.cached_tokens),
            model: self.asked.model.clone(),
            session: noted.session,
            sketch: noted.sketch.clone(),
        });
    }

    /// The worker failed, or we stopped waiting for it. Whether it is to be blamed is another question: see [`blame`].
    pub(crate) fn fail(mut self, fault: &Fault) {
        self.ending = if fault.is_the_workers() { Ending::Failed } else { Ending::Cut };
        self.after = After::More;
    }

    fn ending(&self) -> Ending {
        match self.ending {
            Ending::Cancelled if self.drain.is_over() => Ending::Cut,
            ending => ending,
        }
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        let ending = self.ending();
        self.gateway.upstreams.count(&self.decision.worker, ending);
        if self.after == After::Nothing {
            self.gateway.metrics.ended(self.gateway.now().since(self.received));
        }
        if matches!(ending, Ending::Ok | Ending::Cancelled) {
            self.note();
        }
    }
}

/// Counts a failure against a worker.
pub(crate) fn blame(gateway: &Gateway, worker: &Arc<Worker>, fault: &Fault) {
    let at = gateway.now();
    let change = match fault.is_unreachable() {
        true => Change::Probed { worker: Arc::clone(worker), result: ProbeResult::Failed, at },
        false => Change::Faulted { worker: Arc::clone(worker), at },
    };
    report(gateway, worker, change);
}

/// A worker took a request and broke off. That may have been the request's fault, so it counts against the worker only beside others;
/// of a body that was streamed through, it cannot be told whether it is another.
pub(crate) fn suspect(gateway: &Gateway, worker: &Arc<Worker>, fingerprint: Option<u64>) {
    if let Some(request) = fingerprint {
        report(gateway, worker, Change::Broke { worker: Arc::clone(worker), request, at: gateway.now() });
    }
}

/// Tells the router of a worker's failure, and the operator where that changes something.
fn report(gateway: &Gateway, worker: &Worker, change: Change) {
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
    use crate::drain::Farewell;

    /// How one trip is counted that is made and ended so.
    fn counted(end: impl FnOnce(Trip, &Drain)) -> Vec<Ending> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        router.apply(Change::Join { address: Address::new("http://a"), models: Models::Any }).unwrap();
        let worker = Arc::clone(&router.workers()[0].worker);
        let result = ProbeResult::Answered;
        router.apply(Change::Probed { worker: Arc::clone(&worker), result, at: Micros(1) }).unwrap();
        let gateway = Gateway::new(router, Config::default(), None).unwrap();
        gateway.upstreams.of(&worker).unwrap();
        let (asked, drain) = (Arc::new(Asked::default()), Drain::default());
        let request = asked.request(&[], &[]);
        let decision = gateway.router.route(&request, &mut Scratch::default(), Micros(1), 1).unwrap();
        end(Trip::new(&gateway, &asked, decision, Micros::ZERO, None, &drain), &drain);
        let counts = Ending::ALL.into_iter().zip(gateway.upstreams.counts(&worker));
        counts.filter(|(_, count)| *count > 0).map(|(ending, _)| ending).collect()
    }

    #[test]
    fn what_we_end_is_neither_the_workers_failure_nor_the_clients_leaving() {
        assert_eq!(counted(|trip, _| trip.fail(&Fault::Closed)), [Ending::Failed]);
        assert_eq!(counted(|trip, _| trip.fail(&Fault::Overdue)), [Ending::Cut]);
        assert_eq!(counted(|trip, _| trip.fail(&Fault::Stopping)), [Ending::Cut]);
        let dropped = |step: Farewell| {
            counted(|trip, drain| {
                drain.begin(step);
                drop(trip);
            })
        };
        assert_eq!(dropped(Farewell::Short), [Ending::Cancelled]);
        assert_eq!(dropped(Farewell::Over), [Ending::Cut]);
    }
}
