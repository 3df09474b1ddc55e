//! Peers' assignments to workers that are not members here yet.
//!
//! When a worker joins, some routers know it earlier and use it at once. Their assignments are booked here
//! when the worker joins, unless they have ended. Everything is bounded; without its prompt an assignment
//! still counts as load.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_peers::BookingRecord;
use warmroute_types::RouterId;

/// Maximum of waiting assignments; further ones are not booked.
const ASSIGNMENTS_MAX: usize = 1 << 16;

/// Maximum bytes of their prompts; further ones are kept without.
const PROMPTS_MAX: usize = 4 << 20;

/// Assignments booked per hold of the router's `peer_bookings`.
const AT_ONCE: usize = 64;

/// Router and its number for the assignment.
pub(crate) type Key = (RouterId, u64);

/// Assignments that wait for their workers.
#[derive(Debug, Default)]
pub(crate) struct WaitingAssignments {
    assignments: BTreeMap<Key, Waiting>,
    by_worker: BTreeMap<u64, BTreeSet<Key>>,
    prompt_bytes: usize,
}

/// A waiting assignment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub booked: BookingRecord,
    pub is_computed: bool,
}

impl Waiting {
    fn prompt_bytes(&self) -> usize {
        self.booked.prompt.as_ref().map_or(0, |prompt| size_of_val(&*prompt.digests))
    }
}

impl WaitingAssignments {
    /// Adds an assignment.
    pub fn add(&mut self, key: Key, booked: BookingRecord) {
        if self.assignments.len() >= ASSIGNMENTS_MAX {
            return;
        }
        let mut waiting = Waiting { booked, is_computed: false };
        if self.prompt_bytes + waiting.prompt_bytes() > PROMPTS_MAX {
            waiting.booked.prompt = None;
        }
        self.prompt_bytes += waiting.prompt_bytes();
        self.by_worker.entry(waiting.booked.worker).or_default().insert(key);
        self.assignments.insert(key, waiting);
    }

    /// Records that its prompt has been computed.
    pub fn computed(&mut self, key: Key) {
        self.assignments.get_mut(&key).into_iter().for_each(|waiting| waiting.is_computed = true);
    }

    /// Removes an assignment.
    pub fn remove(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.assignments.remove(&key)?;
        self.prompt_bytes -= waiting.prompt_bytes();
        if let Some(keys) = self.by_worker.get_mut(&waiting.booked.worker) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_worker.remove(&waiting.booked.worker);
            }
        }
        Some(waiting)
    }

    /// Takes up to `AT_ONCE` assignments whose workers have joined.
    pub fn take(&mut self, is_here: impl Fn(u64) -> bool) -> Vec<(Key, Waiting)> {
        let come = self.by_worker.iter().filter(|(worker, _)| is_here(**worker));
        let keys: Vec<Key> = come.flat_map(|(_, keys)| keys.iter().copied()).take(AT_ONCE).collect();
        keys.into_iter().filter_map(|key| self.remove(key).map(|waiting| (key, waiting))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_peers::PromptDigests;
    use warmroute_types::Delivery;

    fn booked(worker: u64, chunks: usize) -> BookingRecord {
        let digests = vec![7; chunks].into();
        BookingRecord {
            worker,
            prompt_tokens: 9,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: Some(PromptDigests {
                root: 1,
                chunk_bytes: 256,
                chunk_tokens: 64,
                digests,
                is_unrendered: false,
            }),
        }
    }

    #[test]
    fn open_assignments_are_booked_when_their_worker_joins() {
        let mut waiting_assignments = WaitingAssignments::default();
        let key = |assignment| (RouterId(1), assignment);
        (0..300)
            .for_each(|assignment| waiting_assignments.add(key(assignment), booked(assignment % 3, 2_048)));
        assert!(waiting_assignments.prompt_bytes <= PROMPTS_MAX);
        waiting_assignments.computed(key(3));
        assert!(waiting_assignments.remove(key(0)).is_some() && waiting_assignments.remove(key(0)).is_none());
        let first = waiting_assignments.take(|worker| worker == 0);
        assert_eq!((first.len(), first[0].0, first[0].1.is_computed), (AT_ONCE, key(3), true));
        assert!(first[0].1.booked.prompt.is_some(), "the first ones have their prompts");
        assert_eq!(waiting_assignments.take(|worker| worker == 0).len(), 99 - AT_ONCE);
        (0..10).for_each(|_| _ = waiting_assignments.take(|_| true));
        assert_eq!(
            (
                waiting_assignments.assignments.len(),
                waiting_assignments.by_worker.len(),
                waiting_assignments.prompt_bytes
            ),
            (0, 0, 0)
        );
    }
}
