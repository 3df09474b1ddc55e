//! Which of a peer's batches have been heard.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Batches that are ahead of a hole are remembered up to here; beyond, the hole is given up.
const AHEAD_MAX: usize = 1_024;

/// Numbers from 1 on: all up to one, and some after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batches {
    /// All up to this one.
    whole: u64,
    ahead: BTreeSet<u64>,
    /// The highest that is known to exist.
    last: u64,
}

impl Batches {
    /// Takes a number down; false if it had been.
    pub fn note(&mut self, number: u64) -> bool {
        self.last = self.last.max(number);
        if number <= self.whole || !self.ahead.insert(number) {
            return false;
        }
        self.close_up();
        if self.ahead.len() > AHEAD_MAX
            && let Some(&first) = self.ahead.first()
        {
            self.give_up_before(first);
        }
        true
    }

    /// Batches up to this one exist, heard or not.
    pub fn exist_up_to(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// Nothing up to this one is missed any more.
    pub fn settle(&mut self, number: u64) {
        self.give_up_before(number.saturating_add(1));
        self.exist_up_to(number);
    }

    fn give_up_before(&mut self, number: u64) {
        self.whole = self.whole.max(number.saturating_sub(1));
        self.ahead = self.ahead.split_off(&number);
        self.close_up();
    }

    fn close_up(&mut self) {
        while self.ahead.first() == Some(&(self.whole + 1)) {
            self.ahead.pop_first();
            self.whole += 1;
        }
    }

    /// How many are missing.
    pub fn missing(&self) -> u64 {
        self.last - self.whole - self.ahead.len() as u64
    }

    /// The holes, first ones first.
    pub fn holes(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let ends = self.ahead.iter().copied().chain((self.missing() > 0).then_some(self.last + 1));
        let mut from = self.whole + 1;
        ends.filter_map(move |heard| {
            let hole = (from < heard).then(|| from..=heard - 1);
            from = heard + 1;
            hole
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hole_is_seen_and_closes() {
        let mut batches = Batches::default();
        assert!(batches.note(1) && batches.note(4) && !batches.note(4));
        batches.exist_up_to(6);
        assert_eq!(batches.holes().collect::<Vec<_>>(), [2..=3, 5..=6]);
        assert!(batches.note(2) && batches.note(3));
        assert_eq!((batches.missing(), batches.holes().next()), (2, Some(5..=6)));
        batches.settle(6);
        assert_eq!((batches.missing(), batches.holes().count()), (0, 0));
        assert!(!batches.note(5), "it was given up");
    }

    proptest! {
        #[test]
        fn what_is_missing_is_what_was_not_heard(heard in proptest::collection::vec(1_u64..60, 0..80)) {
            let mut batches = Batches::default();
            let mut set = std::collections::BTreeSet::new();
            for &number in &heard {
                prop_assert_eq!(batches.note(number), set.insert(number));
            }
            let last = set.last().copied().unwrap_or(0);
            let missing: Vec<u64> = (1..=last).filter(|number| !set.contains(number)).collect();
            prop_assert_eq!(batches.holes().flatten().collect::<Vec<_>>(), missing.clone());
            prop_assert_eq!(batches.missing(), missing.len() as u64);
        }
    }
}
