//! What a router reports about itself: its assignments and its findings about workers.
//!
//! Each ledger has one writer. Merging takes the later value of every field, so it is commutative,
//! associative and idempotent. A batch is a small ledger, and so is the set of all open assignments; no other
//! state is sent.

use std::collections::BTreeMap;

use crate::{Assignment, StoredResponse};

/// A router's ledger, or any part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Low-water mark: every assignment below this number has ended.
    pub low_water: u64,
    /// Assignments by number.
    pub assignments: BTreeMap<u64, Assignment>,
    /// Findings by worker identity.
    pub findings: BTreeMap<u64, WorkerFinding>,
    /// Places of stored responses and conversations, by the hash of their identifier.
    pub stored: BTreeMap<u128, StoredResponse>,
}

/// What a router found out about a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerFinding {
    /// Position among this router's findings. Of two findings about a worker the later one counts.
    pub version: u64,
    /// Whether the worker serves requests.
    pub health: WorkerHealth,
    /// Increases each time the router finds the worker's cache empty.
    pub clears: u32,
}

/// Whether a worker serves requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerHealth {
    /// No failure is known.
    #[default]
    Healthy,
    /// It fails requests, or is unreachable.
    Failing,
}

impl Ledger {
    /// Removes all prompts, which make up most of the bytes.
    pub(crate) fn without_prompts(mut self) -> Ledger {
        let booking = self.assignments.values_mut().filter_map(|assignment| assignment.booking.as_mut());
        booking.for_each(|booking| booking.prompt = None);
        self
    }

    /// Merges another part. Ended assignments stay; the caller decides when to drop them.
    pub fn merge(&mut self, other: Ledger) {
        self.low_water = self.low_water.max(other.low_water);
        for (number, assignment) in other.assignments {
            self.assignments.entry(number).or_default().merge(assignment);
        }
        for (worker, finding) in other.findings {
            let known = self.findings.entry(worker).or_default();
            *known = finding.max(*known);
        }
        for (id, stored) in other.stored {
            let known = self.stored.entry(id).or_insert(stored);
            *known = stored.min(*known);
        }
    }

    /// Drops the oldest findings above the limit, and an eighth more so that it rarely happens.
    pub(crate) fn drop_oldest_findings(findings: &mut BTreeMap<u64, WorkerFinding>, findings_max: usize) {
        if findings.len() > findings_max {
            let mut versions: Vec<u64> = findings.values().map(|finding| finding.version).collect();
            let excess = versions.len() - (findings_max - findings_max / 8);
            let (_, &mut oldest, _) = versions.select_nth_unstable(excess - 1);
            findings.retain(|_, finding| finding.version > oldest);
        }
    }

    /// Whether it reports nothing apart from the low-water mark.
    pub fn is_empty(&self) -> bool {
        self.assignments.is_empty() && self.findings.is_empty() && self.stored.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AssignmentEnd, BookingRecord};
    use proptest::prelude::*;
    use warmroute_types::Delivery;

    /// Any part of what a router can report about assignment `number`.
    fn assignment(number: u64) -> impl Strategy<Value = Assignment> {
        let booking = BookingRecord {
            worker: number % 3,
            prompt_tokens: number as u32,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: None,
        };
        let end = prop_oneof![
            Just(None),
            Just(Some(AssignmentEnd::Abandoned)),
            Just(Some(AssignmentEnd::Answered)),
            Just(Some(AssignmentEnd::Stale { found_chunks: 3 }))
        ];
        (any::<bool>(), any::<bool>(), end).prop_map(move |(has_booking, is_prefilled, end)| Assignment {
            booking: has_booking.then(|| booking.clone()),
            is_prefilled,
            end,
        })
    }

    fn ledger() -> impl Strategy<Value = Ledger> {
        let assignments = proptest::collection::btree_set(0_u64..12, 0..6).prop_flat_map(|numbers| {
            numbers.into_iter().map(|number| (Just(number), assignment(number))).collect::<Vec<_>>()
        });
        let finding = (0_u64..4, 0_u64..5).prop_map(|(worker, version)| {
            let health = if version % 2 == 0 { WorkerHealth::Healthy } else { WorkerHealth::Failing };
            (worker, WorkerFinding { version, health, clears: version as u32 / 2 })
        });
        let findings = proptest::collection::vec(finding, 0..4);
        let stored = (0_u64..3).prop_map(|owner| StoredResponse { owner, worker: 1 });
        let stored = proptest::collection::btree_map(0_u128..4, stored, 0..3);
        (0_u64..12, assignments, findings, stored).prop_map(|(low_water, assignments, findings, stored)| {
            let (assignments, findings) = (assignments.into_iter().collect(), findings.into_iter().collect());
            Ledger { low_water, assignments, findings, stored }
        })
    }

    fn merged(parts: &[&Ledger]) -> Ledger {
        parts.iter().fold(Ledger::default(), |mut sum, part| {
            sum.merge((*part).clone());
            sum
        })
    }

    proptest! {
        #[test]
        fn merging_is_commutative_and_associative(a in ledger(), b in ledger(), c in ledger()) {
            prop_assert_eq!(merged(&[&a, &b]), merged(&[&b, &a]));
            let (ab, bc) = (merged(&[&a, &b]), merged(&[&b, &c]));
            prop_assert_eq!(merged(&[&ab, &c]), merged(&[&a, &bc]));
            prop_assert_eq!(merged(&[&a, &b, &c]), merged(&[&c, &a, &b]));
        }

        #[test]
        fn merging_is_idempotent(a in ledger(), b in ledger()) {
            let both = merged(&[&a, &b]);
            prop_assert_eq!(merged(&[&both, &a]), both.clone());
            prop_assert_eq!(merged(&[&both, &both]), both);
        }
    }
}
