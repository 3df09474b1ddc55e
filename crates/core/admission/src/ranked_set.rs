//! A sorted set that knows how many of its keys are smaller than one.
//!
//! Keys are kept in short sorted runs. A rank is the sum of the lengths of the runs before, and a position in one run:
//! with 10,000 keys about a hundred additions. A `BTreeSet` would have to count key by key.

/// Keys of a full run. Longer runs cost more to insert into, and shorter ones more to count.
const RUN_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct RankedSet<K> {
    /// In order, none empty.
    runs: Vec<Vec<K>>,
}

impl<K> Default for RankedSet<K> {
    fn default() -> RankedSet<K> {
        RankedSet { runs: Vec::new() }
    }
}

impl<K: Ord + Copy> RankedSet<K> {
    pub(crate) fn len(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn first(&self) -> Option<K> {
        self.runs.first()?.first().copied()
    }

    pub(crate) fn last(&self) -> Option<K> {
        self.runs.last()?.last().copied()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.runs.get(self.run_of(key)).is_some_and(|run| run.binary_search(key).is_ok())
    }

    /// How many keys are smaller.
    pub(crate) fn rank(&self, key: &K) -> usize {
        let at = self.run_of(key);
        let before: usize = self.runs[..at].iter().map(Vec::len).sum();
        before + self.runs.get(at).map_or(0, |run| run.partition_point(|other| other < key))
    }

    /// The key with this many smaller ones.
    pub(crate) fn nth(&self, rank: usize) -> Option<K> {
        let mut left = rank;
        for run in &self.runs {
            if let Some(key) = run.get(left) {
                return Some(*key);
            }
            left -= run.len();
        }
        None
    }

    /// Adds a key. Returns whether it is new.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        // A key beyond all others goes to the last run.
        let at = self.run_of(&key).min(self.runs.len().saturating_sub(1));
        let Some(run) = self.runs.get_mut(at) else {
            self.runs.push(vec![key]);
            return true;
        };
        let Err(place) = run.binary_search(&key) else { return false };
        run.insert(place, key);
        if run.len() > RUN_MAX {
            let second = run.split_off(RUN_MAX / 2);
            self.runs.insert(at + 1, second);
        }
        true
    }

    /// Removes a key. Returns whether it was there.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        let at = self.run_of(key);
        let Some(run) = self.runs.get_mut(at) else { return false };
        let Ok(place) = run.binary_search(key) else { return false };
        run.remove(place);
        if run.is_empty() {
            self.runs.remove(at);
        }
        true
    }

    /// The run that has the key, if any has.
    fn run_of(&self, key: &K) -> usize {
        self.runs.partition_point(|run| run.last().is_some_and(|last| last < key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is inserted and removed, the answers are those of a plain sorted set.
        #[test]
        fn ranks_are_those_of_a_sorted_set(steps in prop::collection::vec((0..600_u32, 0..4_u8), 1..3_000)) {
            let (mut set, mut plain) = (RankedSet::default(), BTreeSet::new());
            for (key, step) in steps {
                match step {
                    0 => prop_assert_eq!(set.remove(&key), plain.remove(&key)),
                    _ => prop_assert_eq!(set.insert(key), plain.insert(key)),
                }
                prop_assert_eq!(set.contains(&(key / 2)), plain.contains(&(key / 2)));
                let rank = plain.range(..key).count();
                prop_assert_eq!(set.rank(&key), rank);
                prop_assert_eq!(set.nth(rank), plain.range(key..).next().copied());
                prop_assert_eq!((set.first(), set.last()), (plain.first().copied(), plain.last().copied()));
                prop_assert_eq!((set.len(), set.is_empty()), (plain.len(), plain.is_empty()));
            }
            let all: Vec<u32> = plain.into_iter().collect();
            for (rank, key) in all.iter().enumerate() {
                prop_assert_eq!(set.nth(rank), Some(*key));
                prop_assert!(set.remove(key) && set.insert(*key));
            }
            all.iter().for_each(|key| assert!(set.remove(key)));
            prop_assert!(set.runs.is_empty(), "no run is left");
        }
    }
}
