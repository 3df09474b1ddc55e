//! Checks an engine's feeds twice a second.
//!
//! Tells the feeds what answers have shown, and the router what the feeds count. The result decides whether the
//! engine is queried again for its event sources (it restarted, or is silent) or given up because its events match no
//! prompts.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_events::{FeedHandle, View};
use warmroute_fleet::WorkerView;
use warmroute_router::{Change, Ingested};
use warmroute_types::WorkerId;

use super::event_sink::RouterSink;

/// Answers with unexpected cache hits, and none with expected ones, after which events and prompts count as
/// unrelated.
const UNMATCHED_MAX: u64 = 8;

/// The health of one worker's feed, worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FeedHealth {
    Good,
    /// The engine works but publishes nothing.
    Silent,
    /// The engine has restarted since the last check.
    Restarted,
    /// The engine's events have matched no prompt since it started, although answers reported cache hits.
    Unrelated,
}

/// The last check of each of an engine's workers.
#[derive(Default)]
pub struct FeedMonitor {
    seen: BTreeMap<WorkerId, LastCheck>,
}

#[derive(Clone, Copy)]
struct LastCheck {
    fillings: u16,
    restarts: u64,
    /// Counts at the engine's start. Matches before a restart prove nothing about the engine after it.
    before: Ingested,
}

impl FeedMonitor {
    /// Tells a worker's feed what answers have shown, and the router what the feed has counted.
    pub fn check(&mut self, sink: &RouterSink, view: &WorkerView, feed: &FeedHandle) -> FeedHealth {
        let worker = &view.worker;
        let counters = feed.counters();
        sink.apply_change(Change::Fed { worker: Arc::clone(worker), counters });
        let ingested = sink.ingested(worker.id);
        let fresh = LastCheck {
            fillings: view.load.block_filling_answers,
            restarts: counters.restarts,
            before: ingested,
        };
        // The first check counts answers that came before it.
        let seen = self.seen.entry(worker.id).or_insert(LastCheck {
            fillings: 0,
            before: Ingested::default(),
            ..fresh
        });
        if std::mem::replace(&mut seen.fillings, view.load.block_filling_answers)
            != view.load.block_filling_answers
        {
            feed.answered();
        }
        feed.corrected(|| sink.view_of(worker.id));
        if seen.restarts != counters.restarts {
            *seen = fresh;
            return FeedHealth::Restarted;
        }
        match is_unrelated(ingested, seen.before) {
            true => FeedHealth::Unrelated,
            false if feed.view() == View::Silent => FeedHealth::Silent,
            false => FeedHealth::Good,
        }
    }
}

fn is_unrelated(now: Ingested, before: Ingested) -> bool {
    now.matched == before.matched && now.unmatched.saturating_sub(before.unmatched) >= UNMATCHED_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_before_a_restart_do_not_count_after_it() {
        let counted = |matched, unmatched| Ingested { matched, unmatched, ..Ingested::default() };
        assert!(!is_unrelated(counted(0, 7), counted(0, 0)));
        assert!(is_unrelated(counted(0, 8), counted(0, 0)));
        assert!(!is_unrelated(counted(1, 80), counted(0, 0)));
        assert!(is_unrelated(counted(500, 28), counted(500, 20)));
    }
}
