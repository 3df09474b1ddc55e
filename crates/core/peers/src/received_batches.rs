//! Which batches of a peer have arrived, and the low-water mark that follows from them.
//!
//! A batch states a low-water mark: every assignment below it has ended. How each ended is stated in this
//! batch or in an earlier one. So the mark applies only up to the first missing batch; otherwise outcomes
//! would depend on the order of arrival.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Batches after a gap that are remembered; above this the gap is given up. It takes minutes in which the
/// peer sends but does not answer.
const AHEAD_MAX: usize = 16_384;

/// Received batch numbers, which start at 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceivedBatches {
    /// All batches up to this number arrived.
    complete_up_to: u64,
    /// Low-water mark of those batches.
    low_water: u64,
    /// Batches after a gap, with the low-water mark of each.
    ahead: BTreeMap<u64, u64>,
    /// The highest number that is known to exist.
    last: u64,
    history: History,
}

/// Batches that the peer sent before the two met. They are not fetched, because their events would count as
/// current. The peer's open assignments replace them, under number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum History {
    /// No batch has arrived yet.
    #[default]
    NotMet,
    Missing,
    Known,
}

impl ReceivedBatches {
    /// Sets the batch before the first one that arrives.
    pub fn start_after(&mut self, before: u64) {
        if self.history == History::NotMet {
            (self.complete_up_to, self.last) = (before, before);
            self.history = if before == 0 { History::Known } else { History::Missing };
        }
    }

    /// Whether the peer sent earlier batches whose open assignments are still unknown.
    pub fn lacks_history(&self) -> bool {
        self.history == History::Missing
    }

    /// Whether a batch up to this number is missing, apart from the earlier history.
    pub fn lacks_any_up_to(&self, up_to: u64) -> bool {
        self.gaps().any(|gap| *gap.end() > 0 && *gap.start() <= up_to)
    }

    /// Records a batch and its low-water mark; returns false if it had arrived before.
    pub fn record(&mut self, number: u64, low_water: u64) -> bool {
        self.last = self.last.max(number);
        if number <= self.complete_up_to || self.ahead.contains_key(&number) {
            return false;
        }
        self.ahead.insert(number, low_water);
        self.advance();
        if self.ahead.len() > AHEAD_MAX
            && let Some((&first, _)) = self.ahead.first_key_value()
        {
            self.give_up_before(first);
        }
        true
    }

    /// Records that batches up to this number exist. The low-water mark applies only if none of them is
    /// missing.
    pub fn note_existing(&mut self, number: u64, low_water: u64) {
        self.last = self.last.max(number);
        if self.missing() == 0 {
            self.low_water = self.low_water.max(low_water);
        }
    }

    /// Stops waiting for batches up to this number and applies this low-water mark.
    pub fn settle(&mut self, number: u64, low_water: u64) {
        self.last = self.last.max(number);
        self.low_water = self.low_water.max(low_water);
        self.give_up_before(number.saturating_add(1));
    }

    /// Every assignment below this number has ended. How it ended is known, or will not become known.
    pub fn low_water(&self) -> u64 {
        self.low_water
    }

    fn give_up_before(&mut self, number: u64) {
        self.history = History::Known;
        self.complete_up_to = self.complete_up_to.max(number.saturating_sub(1));
        let ahead = self.ahead.split_off(&number);
        let before = std::mem::replace(&mut self.ahead, ahead);
        self.low_water = before.into_values().fold(self.low_water, u64::max);
        self.advance();
    }

    fn advance(&mut self) {
        while self.history != History::Missing
            && let Some(next) = self.ahead.first_entry().filter(|next| *next.key() == self.complete_up_to + 1)
        {
            self.low_water = self.low_water.max(next.remove());
            self.complete_up_to += 1;
        }
    }

    /// Number of missing batches.
    pub fn missing(&self) -> u64 {
        self.last - self.complete_up_to - self.ahead.len() as u64 + u64::from(self.lacks_history())
    }

    /// Ranges of missing batches, in ascending order.
    pub fn gaps(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let ends = self.ahead.keys().copied().chain((self.missing() > 0).then_some(self.last + 1));
        let mut from = self.complete_up_to + 1;
        let history = self.lacks_history().then_some(0..=0);
        let gaps = ends.filter_map(move |received| {
            let gap = (from < received).then(|| from..=received - 1);
            from = received + 1;
            gap
        });
        history.into_iter().chain(gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_gap_is_noticed_and_closed() {
        let mut batches = ReceivedBatches::default();
        assert!(batches.record(1, 1) && batches.record(4, 7) && !batches.record(4, 7));
        batches.note_existing(6, 9);
        assert_eq!(batches.gaps().collect::<Vec<_>>(), [2..=3, 5..=6]);
        assert_eq!(batches.low_water(), 1, "the mark of batch 4 needs batches 2 and 3");
        assert!(batches.record(2, 2) && batches.record(3, 2));
        assert_eq!(batches.low_water(), 7);
        assert_eq!((batches.missing(), batches.gaps().next()), (2, Some(5..=6)));
        batches.settle(6, 8);
        assert_eq!((batches.missing(), batches.gaps().count()), (0, 0));
        assert!(!batches.record(5, 7), "it was given up");
        batches.note_existing(6, 9);
        assert_eq!(batches.low_water(), 9);
    }

    #[test]
    fn earlier_history_counts_as_one_gap() {
        let mut batches = ReceivedBatches::default();
        batches.start_after(6);
        assert!(
            batches.record(7, 5) && batches.record(9, 8) && !batches.record(3, 1),
            "batch 3 is older than the first"
        );
        batches.start_after(1);
        assert_eq!(batches.gaps().collect::<Vec<_>>(), [0..=0, 8..=8]);
        assert_eq!((batches.missing(), batches.low_water()), (2, 0));
        batches.settle(4, 2);
        assert_eq!((batches.gaps().collect::<Vec<_>>(), batches.low_water()), (vec![8..=8], 5));
    }

    proptest! {
        #[test]
        fn missing_batches_are_those_that_did_not_arrive(received in proptest::collection::vec(1_u64..60, 0..80)) {
            let mut batches = ReceivedBatches::default();
            let mut set = std::collections::BTreeSet::new();
            for &number in &received {
                prop_assert_eq!(batches.record(number, number), set.insert(number));
            }
            let complete_up_to = (1_u64..).take_while(|number| set.contains(number)).last();
            prop_assert_eq!(batches.low_water(), complete_up_to.unwrap_or(0));
            let last = set.last().copied().unwrap_or(0);
            let missing: Vec<u64> = (1..=last).filter(|number| !set.contains(number)).collect();
            prop_assert_eq!(batches.gaps().flatten().collect::<Vec<_>>(), missing.clone());
            prop_assert_eq!(batches.missing(), missing.len() as u64);
        }
    }
}
