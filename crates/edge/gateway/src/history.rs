//! The last routing decisions, for `GET /explain`.
//!
//! A ring of slots with a lock each: a request takes the next number and writes its slot, so requests wait neither for
//! each other nor for readers. Entries contain numbers and names, never prompts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::HeaderValue;
use parking_lot::Mutex;
use warmroute_router::{CANDIDATE_RECORDS_MAX, CandidateRecord, Decision};
use warmroute_types::Micros;

use crate::attempt_outcome::AttemptOutcome;

/// Number of decisions kept.
pub(crate) const HISTORY_LEN: usize = 256;

/// Bytes kept of a model name. A fleet that serves any model accepts names of any length.
const MODEL_BYTES_MAX: usize = 128;

/// The last decisions.
pub(crate) struct History {
    slots: Box<[Mutex<Option<Arc<PastDecision>>>]>,
    written: AtomicU64,
}

/// A past decision.
pub(crate) struct PastDecision {
    /// Decisions before it since the start.
    pub number: u64,
    pub at: SystemTime,
    pub request_id: Option<HeaderValue>,
    pub model: Option<Box<str>>,
    pub policy: &'static str,
    pub reason: &'static str,
    pub prompt_tokens: u32,
    /// The chosen candidate first.
    pub considered: [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX],
    /// All candidates; empty unless a page of the console is open and has sampled the decision.
    pub all_candidates: Vec<CandidateRecord>,
    /// The longest predicted overlap of any candidate.
    pub longest_match: Option<u32>,
    end: OnceLock<PastEnd>,
    /// Time from the decision to the first token, in microseconds; 0 until it arrives.
    ttft_us: AtomicU64,
}

/// How an attempt ended.
#[derive(Clone, Copy)]
pub(crate) struct PastEnd {
    pub outcome: AttemptOutcome,
    /// Time from the request's arrival.
    pub took: Micros,
    /// Cached tokens that the engine reported.
    pub cached_tokens: Option<u32>,
}

impl Default for History {
    fn default() -> History {
        let slots = (0..HISTORY_LEN).map(|_| Mutex::default()).collect();
        History { slots, written: AtomicU64::new(0) }
    }
}

impl History {
    /// Adds a decision and drops the oldest one.
    pub(crate) fn record(
        &self,
        decision: &mut Decision,
        model: Option<&str>,
        request_id: Option<&HeaderValue>,
    ) -> Arc<PastDecision> {
        let number = self.written.fetch_add(1, Relaxed);
        let past = Arc::new(PastDecision {
            number,
            at: SystemTime::now(),
            request_id: request_id.cloned(),
            model: model.map(|name| name[..name.floor_char_boundary(MODEL_BYTES_MAX)].into()),
            policy: decision.policy,
            reason: decision.reason,
            prompt_tokens: decision.prompt_tokens,
            considered: decision.candidate_records.clone(),
            all_candidates: std::mem::take(&mut decision.all_candidates),
            longest_match: decision.longest_match,
            end: OnceLock::new(),
            ttft_us: AtomicU64::new(0),
        });
        let oldest = self.slot(number).lock().replace(Arc::clone(&past));
        drop(oldest);
        past
    }

    /// The last `n` decisions, newest first.
    pub(crate) fn last(&self, n: usize) -> Vec<Arc<PastDecision>> {
        let written = self.count();
        let newest_first = (0..n.min(HISTORY_LEN) as u64).map(|ago| written.wrapping_sub(ago + 1));
        newest_first.filter_map(|number| self.slot(number).lock().clone()).collect()
    }

    /// Decisions since the start.
    pub(crate) fn count(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// The decision with this number, if it is among the last.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<PastDecision>> {
        self.slot(number).lock().clone().filter(|past| past.number == number)
    }

    fn slot(&self, number: u64) -> &Mutex<Option<Arc<PastDecision>>> {
        &self.slots[(number % HISTORY_LEN as u64) as usize]
    }
}

impl PastDecision {
    /// Sets the time from the decision to the first token.
    pub(crate) fn set_ttft(&self, after: Micros) {
        self.ttft_us.store(after.0.max(1), Relaxed);
    }

    /// Sets how the attempt ended. Later calls have no effect.
    pub(crate) fn set_end(&self, end: PastEnd) {
        _ = self.end.set(end);
    }

    /// How the attempt ended, if it has.
    pub(crate) fn end(&self) -> Option<&PastEnd> {
        self.end.get()
    }

    /// The time from the decision to the first token, if it has arrived.
    pub(crate) fn ttft(&self) -> Option<Micros> {
        Some(Micros(self.ttft_us.load(Relaxed))).filter(|&after| after > Micros::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_fleet::{Models, ProbeResult};
    use warmroute_policy::Standard;
    use warmroute_router::{Change, Config, Request, Router, Scratch};
    use warmroute_types::Address;

    fn decision() -> Decision {
        let router = Router::new("random".parse::<Standard>().unwrap(), Config::default());
        router.join(Address::new("http://a"), Models::Any).unwrap();
        let worker = router.inspect().workers().remove(0).worker;
        router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(1) });
        router.route(&Request::default(), &mut Scratch::default(), Micros(1), 1).unwrap()
    }

    #[test]
    fn decisions_are_listed_newest_first_and_the_oldest_are_dropped() {
        let (history, mut decision) = (History::default(), decision());
        assert!(history.last(10).is_empty());
        for n in 0..HISTORY_LEN + 3 {
            history.record(&mut decision, Some(&format!("{n}")), None);
        }
        let models = |n| -> Vec<String> {
            history.last(n).iter().map(|past| past.model.clone().unwrap().into_string()).collect()
        };
        assert_eq!(models(2), ["258", "257"]);
        let all = models(usize::MAX);
        assert_eq!((all.len(), all[HISTORY_LEN - 1].as_str()), (HISTORY_LEN, "3"));
        assert_eq!(history.find(258).unwrap().model.as_deref(), Some("258"));
        assert!(history.find(2).is_none(), "dropped");
    }

    #[test]
    fn long_model_names_are_truncated() {
        let history = History::default();
        let past = history.record(&mut decision(), Some(&"é".repeat(1_000)), None);
        assert_eq!(past.model.as_ref().unwrap().len(), MODEL_BYTES_MAX);
        assert_eq!(past.ttft(), None);
        past.set_ttft(Micros(7));
        assert_eq!(past.ttft(), Some(Micros(7)));
    }
}
