//! Which of a peer's batches have been heard, and which of its trips are over by them.
//!
//! A batch says below which number every trip is over, and how they ended is told in it or before it. So that holds only when all
//! before it has been heard, too, or is given up: else how a trip ended would depend on the order in which batches came.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Batches that are ahead of a hole are remembered up to here; beyond, the hole is given up. That is minutes in which a router that is heard
/// has answered nothing.
const AHEAD_MAX: usize = 16_384;

/// Numbers from 1 on: all up to one, and some after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batches {
    /// All up to this one.
    whole: u64,
    /// With those every trip below this number is over.
    open_from: u64,
    /// Some after it, and below which number trips are over with each.
    ahead: BTreeMap<u64, u64>,
    /// The highest that is known to exist.
    last: u64,
    past: Past,
}

/// What was before the first batch that was heard. Nobody asks for those batches: they would be taken for what happens now. All that is
/// open still stands for them, under the number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Past {
    /// None was heard.
    #[default]
    Unmet,
    Missing,
    Known,
}

impl Batches {
    /// The first batch that is heard is the next one after this.
    pub fn meet(&mut self, before: u64) {
        if self.past == Past::Unmet {
            (self.whole, self.last) = (before, before);
            self.past = if before == 0 { Past::Known } else { Past::Missing };
        }
    }

    /// Whether there is a past, of which nothing is known.
    pub fn lack_past(&self) -> bool {
        self.past == Past::Missing
    }

    /// Whether some up to this one were not heard, but for the past.
    pub fn lack_any_of(&self, up_to: u64) -> bool {
        self.holes().any(|hole| *hole.end() > 0 && *hole.start() <= up_to)
    }

    /// Takes a number down, and what the batch says is over; false if it had been.
    pub fn note(&mut self, number: u64, open_from: u64) -> bool {
        self.last = self.last.max(number);
        if number <= self.whole || self.ahead.contains_key(&number) {
            return false;
        }
        self.ahead.insert(number, open_from);
        self.close_up();
        if self.ahead.len() > AHEAD_MAX
            && let Some((&first, _)) = self.ahead.first_key_value()
        {
            self.give_up_before(first);
        }
        true
    }

    /// Batches up to this one exist, heard or not. It may have overtaken them: only with all of them is over what is said to be.
    pub fn exist_up_to(&mut self, number: u64, open_from: u64) {
        self.last = self.last.max(number);
        if self.missing() == 0 {
            self.open_from = self.open_from.max(open_from);
        }
    }

    /// Nothing up to this one is missed any more, and so much is over with it.
    pub fn settle(&mut self, number: u64, open_from: u64) {
        self.last = self.last.max(number);
        self.open_from = self.open_from.max(open_from);
        self.give_up_before(number.saturating_add(1));
    }

    /// Every trip below is over; how, has been told, or will not be any more.
    pub fn open_from(&self) -> u64 {
        self.open_from
    }

    fn give_up_before(&mut self, number: u64) {
        self.past = Past::Known;
        self.whole = self.whole.max(number.saturating_sub(1));
        let ahead = self.ahead.split_off(&number);
        let before = std::mem::replace(&mut self.ahead, ahead);
        self.open_from = before.into_values().fold(self.open_from, u64::max);
        self.close_up();
    }

    fn close_up(&mut self) {
        while self.past != Past::Missing
            && let Some(next) = self.ahead.first_entry().filter(|next| *next.key() == self.whole + 1)
        {
            self.open_from = self.open_from.max(next.remove());
            self.whole += 1;
        }
    }

    /// How many are missing.
    pub fn missing(&self) -> u64 {
        self.last - self.whole - self.ahead.len() as u64 + u64::from(self.lack_past())
    }

    /// The holes, first ones first.
    pub fn holes(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let ends = self.ahead.keys().copied().chain((self.missing() > 0).then_some(self.last + 1));
        let mut from = self.whole + 1;
        let past = self.lack_past().then_some(0..=0);
        let holes = ends.filter_map(move |heard| {
            let hole = (from < heard).then(|| from..=heard - 1);
            from = heard + 1;
            hole
        });
        past.into_iter().chain(holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hole_is_seen_and_closes() {
        let mut batches = Batches::default();
        assert!(batches.note(1, 1) && batches.note(4, 7) && !batches.note(4, 7));
        batches.exist_up_to(6, 9);
        assert_eq!(batches.holes().collect::<Vec<_>>(), [2..=3, 5..=6]);
        assert_eq!(batches.open_from(), 1, "what the fourth says needs the second and the third");
        assert!(batches.note(2, 2) && batches.note(3, 2));
        assert_eq!(batches.open_from(), 7);
        assert_eq!((batches.missing(), batches.holes().next()), (2, Some(5..=6)));
        batches.settle(6, 8);
        assert_eq!((batches.missing(), batches.holes().count()), (0, 0));
        assert!(!batches.note(5, 7), "it was given up");
        batches.exist_up_to(6, 9);
        assert_eq!(batches.open_from(), 9);
    }

    #[test]
    fn what_was_before_the_first_one_is_one_hole_and_says_what_is_over() {
        let mut batches = Batches::default();
        batches.meet(6);
        assert!(batches.note(7, 5) && batches.note(9, 8) && !batches.note(3, 1), "that is the past");
        batches.meet(1);
        assert_eq!(batches.holes().collect::<Vec<_>>(), [0..=0, 8..=8]);
        assert_eq!((batches.missing(), batches.open_from()), (2, 0));
        batches.settle(4, 2);
        assert_eq!((batches.holes().collect::<Vec<_>>(), batches.open_from()), (vec![8..=8], 5));
    }

    proptest! {
        #[test]
        fn what_is_missing_is_what_was_not_heard(heard in proptest::collection::vec(1_u64..60, 0..80)) {
            let mut batches = Batches::default();
            let mut set = std::collections::BTreeSet::new();
            for &number in &heard {
                prop_assert_eq!(batches.note(number, number), set.insert(number));
            }
            let whole = (1_u64..).take_while(|number| set.contains(number)).last();
            prop_assert_eq!(batches.open_from(), whole.unwrap_or(0));
            let last = set.last().copied().unwrap_or(0);
            let missing: Vec<u64> = (1..=last).filter(|number| !set.contains(number)).collect();
            prop_assert_eq!(batches.holes().flatten().collect::<Vec<_>>(), missing.clone());
            prop_assert_eq!(batches.missing(), missing.len() as u64);
        }
    }
}
