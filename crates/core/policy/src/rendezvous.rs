//! Consistent hashing with bounded load, by rendezvous hashing instead of a ring.
//!
//! Every worker gets a score for the key (a mix of both hashes). The highest score among the workers that are
//! not full wins, which equals a ring's walk to the next node with room. There is no state to rebuild when
//! the fleet changes and there are no virtual nodes; a worker that joins or leaves moves only its own keys.
//! The cost is one look at every worker, about a nanosecond each.

use crate::Candidate;
use crate::numbers::mix;

/// How far above the mean load a worker may be before its keys spill to others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadBound {
    /// A worker is full at this many times the mean load. 1.25 is the published value.
    pub factor: f64,
    /// Minimum number of requests above the mean before a worker is full. With few requests the factor alone
    /// would spill at two against one and lose locality.
    pub slack: u32,
}

impl Default for LoadBound {
    fn default() -> LoadBound {
        LoadBound { factor: 1.25, slack: 8 }
    }
}

impl LoadBound {
    /// A worker with fewer requests in flight than this has room for one more.
    pub(crate) fn room_below(&self, candidates: &[Candidate]) -> u64 {
        let total: u64 = candidates.iter().map(|c| u64::from(c.in_flight)).sum();
        let mean = (total + 1) as f64 / candidates.len() as f64;
        (mean * self.factor).max(mean + f64::from(self.slack)).ceil() as u64
    }
}

/// The worker of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The key's own worker.
    First(usize),
    /// The key's own worker is full: the next worker with room in the key's order.
    Spilled(usize),
}

/// The worker for `key`. Some worker always has room, because not all can be above the mean.
pub(crate) fn home(key: u64, candidates: &[Candidate], bound: LoadBound) -> Home {
    let room = bound.room_below(candidates);
    let draw = |c: &Candidate| mix(key ^ c.identity);
    let first = highest(candidates, draw);
    if u64::from(candidates[first].in_flight) < room {
        return Home::First(first);
    }
    // A full worker scores 0. The `| 1` keeps every worker with room above it.
    Home::Spilled(highest(candidates, |c| if u64::from(c.in_flight) < room { draw(c) | 1 } else { 0 }))
}

/// The two workers with the highest scores for `key`, highest first; the same one twice when there is only
/// one.
pub(crate) fn two_homes(key: u64, candidates: &[Candidate]) -> (usize, usize) {
    let first = highest(candidates, |c| mix(key ^ c.identity));
    let of_others = |c: &Candidate| {
        if c.worker == candidates[first].worker { 0 } else { mix(key ^ c.identity) | 1 }
    };
    (first, highest(candidates, of_others))
}

fn highest(candidates: &[Candidate], draw: impl Fn(&Candidate) -> u64) -> usize {
    let draws = candidates.iter().map(draw).enumerate();
    draws.max_by_key(|&(_, draw)| draw).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;
    use proptest::prelude::*;
    use warmroute_types::WorkerId;

    fn owner(key: u64, candidates: &[Candidate]) -> WorkerId {
        match home(key, candidates, LoadBound::default()) {
            Home::First(index) | Home::Spilled(index) => candidates[index].worker,
        }
    }

    #[test]
    fn adding_or_removing_a_worker_moves_only_its_own_keys() {
        const KEYS: u64 = 40_000;
        for n in [2_usize, 8, 64] {
            let before = with_in_flight(&vec![0; n]);
            let after = with_in_flight(&vec![0; n + 1]);
            let added = WorkerId(n as u16);
            let mut moved = 0;
            for key in (0..KEYS).map(mix) {
                let (old, new) = (owner(key, &before), owner(key, &after));
                if old != new {
                    assert_eq!(new, added, "a key moves to the added or not at all");
                    moved += 1;
                }
            }
            // Removing the added worker is the same change in reverse: only its own keys move.
            let share = moved as f64 / KEYS as f64 * (n + 1) as f64;
            assert!(
                (0.9..1.1).contains(&share),
                "about 1/{} of the keys move, got {share:.3} of that",
                n + 1
            );
        }
    }

    #[test]
    fn keys_spread_evenly() {
        let candidates = with_in_flight(&[0; 8]);
        let mut owned = [0_u32; 8];
        (0..16_000).for_each(|key| owned[owner(mix(key), &candidates).index()] += 1);
        assert!(owned.iter().all(|keys| (1_800..2_200).contains(keys)), "{owned:?}");
    }

    #[test]
    fn a_full_worker_spills_in_the_order_of_the_key() {
        let idle = with_in_flight(&[0; 4]);
        for key in (0..100).map(mix) {
            let first = owner(key, &idle);
            let without: Vec<_> = idle.iter().copied().filter(|c| c.worker != first).collect();
            let mut crowded = idle.clone();
            crowded[first.index()].in_flight = 100;
            let next = owner(key, &without);
            assert_eq!(home(key, &crowded, LoadBound::default()), Home::Spilled(next.index()));
        }
    }

    proptest! {
        #[test]
        fn no_worker_is_loaded_past_the_bound(key: u64, loads in prop::collection::vec(0_u32..400, 1..40)) {
            let candidates = with_in_flight(&loads);
            let bound = LoadBound::default();
            let (Home::First(index) | Home::Spilled(index)) = home(key, &candidates, bound);
            prop_assert!(u64::from(candidates[index].in_flight) < bound.room_below(&candidates));
        }
    }
}
