//! Two homes for every prefix: the warmer one while it has room, the less loaded one otherwise.
//!
//! One home per prefix is a hot spot waiting to happen, and all workers are too many to keep warm. With two, by two hashes of the
//! same key, a hot prefix is held twice and its load shared, and a worker that goes leaves a warm one behind.

use crate::numbers::is_worth_waiting_for;
use crate::rendezvous::{LoadBound, two_homes};
use crate::{Ask, Candidate, Choice, LeastLoaded, Policy};

/// The better of two homes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DualChoice {
    /// When a home counts as full.
    pub bound: LoadBound,
}

impl Policy for DualChoice {
    fn name(&self) -> &'static str {
        "dual_choice"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let Some(key) = ask.prefix_key else {
            return Choice { reason: "no_prefix", ..LeastLoaded::default().choose(ask, candidates) };
        };
        let (first, second) = two_homes(key, candidates);
        // Warmer, unless more waits there than that saves.
        let ahead = |index: usize| candidates[index].tokens_to_first(ask);
        let (warmer, cooler) = if ahead(second) < ahead(first) { (second, first) } else { (first, second) };
        let room = self.bound.room_below(candidates);
        // A home that holds the prefix must also be worth its queue, or one head that all share would occupy two workers.
        let has_room = |index: usize| {
            let home = &candidates[index];
            let is_cold = home.match_tokens(ask) == 0;
            u64::from(home.in_flight) < room && (is_cold || is_worth_waiting_for(home, ask, candidates))
        };
        if has_room(warmer) {
            return Choice { index: warmer, reason: "warmer_home" };
        }
        if has_room(cooler) {
            return Choice { index: cooler, reason: "other_home" };
        }
        // Both are full: a prefix this hot may live anywhere.
        Choice { reason: "homes_full", ..LeastLoaded::default().choose(ask, candidates) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn the_warmer_home_is_taken_while_it_has_room() {
        let policy = DualChoice::default();
        let ask = thousand(5);
        let (first, second) = two_homes(ask.prefix_key.unwrap(), &with_in_flight(&[0; 8]));
        assert_ne!(first, second);
        let mut candidates = with_in_flight(&[0; 8]);
        assert_eq!(policy.choose(&ask, &candidates), Choice { index: first, reason: "warmer_home" });
        candidates[second].overlap_tokens = 500;
        assert_eq!(policy.choose(&ask, &candidates), Choice { index: second, reason: "warmer_home" });
        candidates[second].in_flight = 90;
        assert_eq!(policy.choose(&ask, &candidates), Choice { index: first, reason: "other_home" });
        candidates[first].in_flight = 90;
        let elsewhere = policy.choose(&ask, &candidates);
        assert_eq!(elsewhere.reason, "homes_full");
        assert!(elsewhere.index != first && elsewhere.index != second);
    }

    #[test]
    fn a_head_that_all_share_does_not_herd() {
        assert_nobody_is_left_out(&DualChoice::default());
        let mut candidates = with_in_flight(&[0; 4]);
        for draw in 0..32 {
            let ask = Ask { prefix_key: Some(1), ..thousand(draw) };
            let index = DualChoice::default().choose(&ask, &candidates).index;
            let chosen = &mut candidates[index];
            chosen.prefill_tokens += u64::from(1_000 - chosen.overlap_tokens);
            (chosen.in_flight, chosen.overlap_tokens) = (chosen.in_flight + 1, 550);
        }
        assert!(
            candidates.iter().all(|c| c.in_flight >= 6),
            "half of the prompt and the key shared: {candidates:?}"
        );
    }

    #[test]
    fn one_prefix_shared_by_all_gives_everyone_work() {
        let policy = DualChoice::default();
        let mut candidates = with_in_flight(&[0; 8]);
        for draw in 0..800 {
            let ask = Ask { prefix_key: Some(1), ..thousand(draw) };
            let choice = policy.choose(&ask, &candidates);
            candidates[choice.index].in_flight += 1;
        }
        let loads: Vec<u32> = candidates.iter().map(|c| c.in_flight).collect();
        assert!(loads.iter().all(|&n| (50..=125).contains(&n)), "{loads:?}");
    }
}
