//! What the console records while a page is open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use warmroute_router::KeptCandidates;
use warmroute_types::Micros;

use super::latency_counts::LatencyCounts;
use super::pages::Pages;
use crate::history::PastDecision;

/// Sampled decisions kept while a page is open.
pub(super) const ROWS_MAX: usize = 512;

/// Candidate records kept in all rows together. The oldest rows lose theirs first.
const CANDIDATES_MAX: usize = 1 << 16;

/// State of the console.
#[derive(Default)]
pub(crate) struct Console {
    /// Whether a page is open.
    is_open: AtomicBool,
    /// One of this many decisions is sampled; 0: none.
    one_in: AtomicU32,
    /// Decisions that may still be sampled for the next frame.
    left: AtomicU32,
    /// Decisions seen while open; wraps.
    seen: AtomicU64,
    pub(super) rows: Mutex<VecDeque<Arc<PastDecision>>>,
    pub(crate) observed_ttft: LatencyCounts,
    pub(crate) expected_ttft: LatencyCounts,
    pub(crate) durations: LatencyCounts,
    pub(super) pages: Pages,
}

impl Console {
    /// Which candidates the next decision is to keep: all of a sampled one.
    pub(crate) fn wanted_candidates(&self) -> KeptCandidates {
        if !self.is_open.load(Relaxed) {
            return KeptCandidates::NextBest;
        }
        let one_in = u64::from(self.one_in.load(Relaxed).max(1));
        let is_turn = self.seen.fetch_add(1, Relaxed).is_multiple_of(one_in);
        let take = || self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_turn && take() { KeptCandidates::All } else { KeptCandidates::NextBest }
    }

    /// Adds a sampled decision as a row.
    pub(crate) fn add_row(&self, past: &Arc<PastDecision>) {
        let mut rows = self.rows.lock();
        rows.push_back(Arc::clone(past));
        let candidates: usize = rows.iter().map(|row| row.all_candidates.len()).sum();
        let beyond = candidates.saturating_sub(CANDIDATES_MAX);
        let mut freed = 0;
        while rows.len() > ROWS_MAX || (freed < beyond && rows.len() > 1) {
            freed += rows.pop_front().map_or(0, |row| row.all_candidates.len());
        }
    }

    /// A sampled decision by its number.
    pub(crate) fn row(&self, number: u64) -> Option<Arc<PastDecision>> {
        self.rows.lock().iter().find(|row| row.number == number).cloned()
    }

    /// Counts a first token.
    pub(crate) fn count_first_token(&self, expected_ms: f32, observed: Micros) {
        if self.is_open.load(Relaxed) {
            self.observed_ttft.count(observed);
            self.expected_ttft.count(Micros((expected_ms.max(0.0) * 1e3) as u64));
        }
    }

    /// Counts the end of a request.
    pub(crate) fn count_end(&self, lasted: Micros) {
        if self.is_open.load(Relaxed) {
            self.durations.count(lasted);
        }
    }

    /// Sets how many decisions are sampled until the next frame, of how many expected ones.
    pub(super) fn set_sample(&self, wanted: u32, expected: u64) {
        let one_in = (expected / u64::from(wanted.max(1))).clamp(1, u32::MAX.into());
        self.one_in.store(one_in as u32, Relaxed);
        self.left.store(wanted, Relaxed);
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Relaxed);
    }

    /// Ends all recording and frees what was recorded.
    pub(super) fn close(&self) {
        self.is_open.store(false, Relaxed);
        self.rows.lock().clear();
        [&self.observed_ttft, &self.expected_ttft, &self.durations]
            .into_iter()
            .for_each(|counts| drop(counts.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decisions of ten that are sampled.
    fn sampled(console: &Console) -> Vec<usize> {
        (0..10).filter(|_| console.wanted_candidates() == KeptCandidates::All).collect()
    }

    #[test]
    fn nothing_is_sampled_without_a_page_and_an_even_part_with_one() {
        let console = Console::default();
        console.set_sample(20, 10);
        assert!(sampled(&console).is_empty(), "no page is open");
        console.open();
        assert_eq!(sampled(&console).len(), 10, "all of a few");
        console.set_sample(2, 10);
        assert_eq!(sampled(&console), [0, 5], "every fifth");
        assert!(sampled(&console).is_empty(), "no more until the next frame");
        console.count_first_token(5.0, Micros(5_000));
        console.close();
        console.set_sample(2, 10);
        assert!(sampled(&console).is_empty());
        assert_eq!(console.observed_ttft.take(), [], "what was counted is gone");
        console.count_first_token(5.0, Micros(5_000));
        assert_eq!(console.observed_ttft.take(), []);
    }
}
