//! The last decisions, for whoever asks why a request went where it went.
//!
//! A ring of slots, each with a lock of its own: a request takes the next number and writes its slot, so requests do not wait
//! for each other, nor for an operator who reads. What is kept is numbers and names, never a prompt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use http::HeaderValue;
use parking_lot::Mutex;
use warmroute_router::{CONSIDERED_MAX, Considered, Decision};
use warmroute_types::Micros;

/// So many decisions are remembered.
pub(crate) const HISTORY_LEN: usize = 256;

/// Of a model's name, so many bytes: where any name is served, clients may write anything there.
const MODEL_BYTES_MAX: usize = 128;

/// The last decisions.
pub(crate) struct History {
    slots: Box<[Mutex<Option<Arc<PastDecision>>>]>,
    written: AtomicUsize,
}

/// A decision, as it is remembered.
pub(crate) struct PastDecision {
    pub at: SystemTime,
    pub request_id: Option<HeaderValue>,
    pub model: Option<Box<str>>,
    pub policy: &'static str,
    pub reason: &'static str,
    pub prompt_tokens: u32,
    /// The chosen one first.
    pub considered: [Option<Considered>; CONSIDERED_MAX],
    /// From the decision to the first token, in microseconds; 0 until it has come.
    ttft_us: AtomicU64,
}

impl Default for History {
    fn default() -> History {
        let slots = (0..HISTORY_LEN).map(|_| Mutex::default()).collect();
        History { slots, written: AtomicUsize::new(0) }
    }
}

impl History {
    /// Remembers a decision; the oldest one is forgotten.
    pub(crate) fn record(
        &self,
        decision: &Decision,
        model: Option<&str>,
        request_id: Option<&HeaderValue>,
    ) -> Arc<PastDecision> {
        let past = Arc::new(PastDecision {
            at: SystemTime::now(),
            request_id: request_id.cloned(),
            model: model.map(|name| name[..name.floor_char_boundary(MODEL_BYTES_MAX)].into()),
            policy: decision.policy,
            reason: decision.reason,
            prompt_tokens: decision.prompt_tokens,
            considered: decision.considered.clone(),
            ttft_us: AtomicU64::new(0),
        });
        let slot = self.written.fetch_add(1, Relaxed) % HISTORY_LEN;
        let oldest = self.slots[slot].lock().replace(Arc::clone(&past));
        drop(oldest);
        past
    }

    /// The last `n`, the newest first.
    pub(crate) fn last(&self, n: usize) -> Vec<Arc<PastDecision>> {
        let written = self.written.load(Relaxed);
        let newest_first = (0..n.min(HISTORY_LEN)).map(|ago| written.wrapping_sub(ago + 1) % HISTORY_LEN);
        newest_first.filter_map(|slot| self.slots[slot].lock().clone()).collect()
    }
}

impl PastDecision {
    /// Its first token came.
    pub(crate) fn set_ttft(&self, after: Micros) {
        self.ttft_us.store(after.0.max(1), Relaxed);
    }

    /// How long its first token took, once it has come.
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
        router.apply(Change::Join { address: Address::new("http://a"), models: Models::Any }).unwrap();
        let worker = router.workers().remove(0).worker;
        router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(1) }).unwrap();
        router.route(&Request::default(), &mut Scratch::default(), Micros(1), 1).unwrap()
    }

    #[test]
    fn the_newest_come_first_and_the_oldest_go() {
        let (history, decision) = (History::default(), decision());
        assert!(history.last(10).is_empty());
        for n in 0..HISTORY_LEN + 3 {
            history.record(&decision, Some(&format!("{n}")), None);
        }
        let models = |n| -> Vec<String> {
            history.last(n).iter().map(|past| past.model.clone().unwrap().into_string()).collect()
        };
        assert_eq!(models(2), ["258", "257"]);
        let all = models(usize::MAX);
        assert_eq!((all.len(), all[HISTORY_LEN - 1].as_str()), (HISTORY_LEN, "3"));
    }

    #[test]
    fn a_name_as_long_as_a_client_likes_is_cut() {
        let history = History::default();
        let past = history.record(&decision(), Some(&"é".repeat(1_000)), None);
        assert_eq!(past.model.as_ref().unwrap().len(), MODEL_BYTES_MAX);
        assert_eq!(past.ttft(), None);
        past.set_ttft(Micros(7));
        assert_eq!(past.ttft(), Some(Micros(7)));
    }
}
