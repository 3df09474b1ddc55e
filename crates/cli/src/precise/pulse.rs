//! The pulse of an engine's feeds: what answers have shown is told to them, what they count is told to the router.
//!
//! Twice a second. What it feels decides whether the engine is asked again where its events are (it was restarted, perhaps
//! with other flags; or it tells nothing), or given up because its events and its prompts never meet.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_events::{FeedHandle, View};
use warmroute_fleet::WorkerView;
use warmroute_router::{Change, Ingested};
use warmroute_types::WorkerId;

use super::ear::Ear;

/// So many answers that found something where events promised nothing, and none where they did: the two never meet.
const STRANGERS_MAX: u64 = 8;

/// How one worker's feed is; the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symptom {
    Well,
    /// It works and tells nothing, or has never told anything.
    Silent,
    /// Another process speaks since the last time.
    Restarted,
    /// Its events and its prompts have never met in this life, though they should have.
    Stranger,
}

/// What was seen of an engine's workers the last time.
#[derive(Default)]
pub struct Pulse {
    seen: BTreeMap<WorkerId, Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    fillings: u32,
    restarts: u64,
    /// What answers had shown when this life began: it says nothing about this life.
    before: Ingested,
}

impl Pulse {
    /// Lets a worker's feed know what answers have shown, and the router how the feed fares.
    pub fn feel(&mut self, ear: &Ear, view: &WorkerView, desk: &FeedHandle) -> Symptom {
        let worker = &view.worker;
        let counters = desk.counters();
        ear.tell(Change::Fed { worker: Arc::clone(worker), counters });
        let ingested = ear.ingested(worker.id);
        let fresh =
            Seen { fillings: view.load.block_filling_answers, restarts: counters.restarts, before: ingested };
        // Answers may have come before the first look.
        let seen =
            self.seen.entry(worker.id).or_insert(Seen { fillings: 0, before: Ingested::default(), ..fresh });
        if std::mem::replace(&mut seen.fillings, view.load.block_filling_answers)
            != view.load.block_filling_answers
        {
            desk.answered();
        }
        desk.corrected(|| ear.view_of(worker.id));
        if seen.restarts != counters.restarts {
            *seen = fresh;
            return Symptom::Restarted;
        }
        match is_stranger(ingested, seen.before) {
            true => Symptom::Stranger,
            false if desk.view() == View::Silent => Symptom::Silent,
            false => Symptom::Well,
        }
    }
}

fn is_stranger(now: Ingested, before: Ingested) -> bool {
    now.matched == before.matched && now.unmatched.saturating_sub(before.unmatched) >= STRANGERS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matched_in_a_former_life_does_not_excuse_this_one() {
        let counted = |matched, unmatched| Ingested { matched, unmatched, ..Ingested::default() };
        assert!(!is_stranger(counted(0, 7), counted(0, 0)));
        assert!(is_stranger(counted(0, 8), counted(0, 0)));
        assert!(!is_stranger(counted(1, 80), counted(0, 0)));
        assert!(is_stranger(counted(500, 28), counted(500, 20)));
    }
}
