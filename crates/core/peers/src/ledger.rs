//! What one router says of itself: its trips, and how it finds the workers.
//!
//! A ledger has one writer. Merging is taking the later of everything: commutative, associative, idempotent. A batch of news is a
//! small ledger, and so is the whole of what is open; there is nothing else to send.

use std::collections::BTreeMap;

use crate::Trip;

/// A router's ledger, or any part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Every trip with a lower number is over.
    pub open_from: u64,
    /// Trips by number.
    pub trips: BTreeMap<u64, Trip>,
    /// How it finds workers, by their identity.
    pub advice: BTreeMap<u64, Advice>,
}

/// How a router finds a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Advice {
    /// Counts this router's findings: of two about a worker the later one is true.
    pub version: u64,
    /// What it found.
    pub health: Health,
    /// Greater whenever it found the worker's cache empty again.
    pub emptied: u32,
}

/// Whether a worker serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// As far as is known.
    #[default]
    Well,
    /// It fails requests, or cannot be reached.
    Failing,
}

impl Ledger {
    /// The same without what is presumed by it, which is most of its bytes.
    pub(crate) fn without_prompts(mut self) -> Ledger {
        let booked = self.trips.values_mut().filter_map(|trip| trip.booked.as_mut());
        booked.for_each(|booked| booked.prompt = None);
        self
    }

    /// Takes in another part, or the same again. Trips that are over are kept: whether anybody still needs them is not for this
    /// to say.
    pub fn merge(&mut self, other: Ledger) {
        self.open_from = self.open_from.max(other.open_from);
        for (number, trip) in other.trips {
            self.trips.entry(number).or_default().merge(trip);
        }
        for (worker, advice) in other.advice {
            let known = self.advice.entry(worker).or_default();
            *known = advice.max(*known);
        }
    }

    /// Forgets the oldest findings where there are more than that: some more, so that it is seldom done.
    pub(crate) fn forget_oldest(advice: &mut BTreeMap<u64, Advice>, advice_max: usize) {
        if advice.len() > advice_max {
            let mut versions: Vec<u64> = advice.values().map(|advice| advice.version).collect();
            let excess = versions.len() - (advice_max - advice_max / 8);
            let (_, &mut oldest, _) = versions.select_nth_unstable(excess - 1);
            advice.retain(|_, advice| advice.version > oldest);
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.trips.is_empty() && self.advice.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Booked, Over};
    use proptest::prelude::*;
    use warmroute_types::Delivery;

    /// Any part of what the one writer could have said of trip `number`.
    fn trip(number: u64) -> impl Strategy<Value = Trip> {
        let booked = Booked {
            worker: number % 3,
            prompt_tokens: number as u32,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: None,
        };
        let over = prop_oneof![
            Just(None),
            Just(Some(Over::Left)),
            Just(Some(Over::Answered)),
            Just(Some(Over::Found { chunks: 3 }))
        ];
        (any::<bool>(), any::<bool>(), over).prop_map(move |(told, is_computed, over)| Trip {
            booked: told.then(|| booked.clone()),
            is_computed,
            over,
        })
    }

    fn ledger() -> impl Strategy<Value = Ledger> {
        let trips = proptest::collection::btree_set(0_u64..12, 0..6).prop_flat_map(|numbers| {
            numbers.into_iter().map(|number| (Just(number), trip(number))).collect::<Vec<_>>()
        });
        let advice = (0_u64..4, 0_u64..5).prop_map(|(worker, version)| {
            let health = if version % 2 == 0 { Health::Well } else { Health::Failing };
            (worker, Advice { version, health, emptied: version as u32 / 2 })
        });
        let advice = proptest::collection::vec(advice, 0..4);
        (0_u64..12, trips, advice).prop_map(|(open_from, trips, advice)| Ledger {
            open_from,
            trips: trips.into_iter().collect(),
            advice: advice.into_iter().collect(),
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
        fn merging_has_no_order(a in ledger(), b in ledger(), c in ledger()) {
            prop_assert_eq!(merged(&[&a, &b]), merged(&[&b, &a]));
            let (ab, bc) = (merged(&[&a, &b]), merged(&[&b, &c]));
            prop_assert_eq!(merged(&[&ab, &c]), merged(&[&a, &bc]));
            prop_assert_eq!(merged(&[&a, &b, &c]), merged(&[&c, &a, &b]));
        }

        #[test]
        fn what_is_heard_twice_is_heard_once(a in ledger(), b in ledger()) {
            let both = merged(&[&a, &b]);
            prop_assert_eq!(merged(&[&both, &a]), both.clone());
            prop_assert_eq!(merged(&[&both, &both]), both);
        }
    }
}
