//! Two home workers for every prefix: the warmer one while it has room, otherwise the other.
//!
//! A single home per prefix becomes a hot spot, and keeping a prefix warm on every worker costs too much
//! memory. With two homes, from two hashes of the same key, a hot prefix is cached twice and its load shared.
//! When one worker leaves, the other is still warm.

use crate::numbers::is_worth_waiting_for;
use crate::rendezvous::{LoadBound, two_homes};
use crate::{Candidate, Choice, LeastLoaded, Policy, PolicyRequest};

/// The warmer of two home workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DualChoice {
    /// When a home worker counts as full.
    pub bound: LoadBound,
}

impl Policy for DualChoice {
    fn name(&self) -> &'static str {
        "dual_choice"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let Some(key) = request.prefix_key else {
            return Choice { reason: "no_prefix", ..LeastLoaded::default().choose(request, candidates) };
        };
        let (first, second) = two_homes(key, candidates);
        // The warmer home, unless its queue costs more than its cache saves.
        let ahead = |index: usize| candidates[index].tokens_to_first(request);
        let (warmer, cooler) = if ahead(second) < ahead(first) { (second, first) } else { (first, second) };
        let room = self.bound.room_below(candidates);
        // A home that holds the prefix must also justify its queue, or a prefix that all requests share would
        // occupy two workers.
        let has_room = |index: usize| {
            let home = &candidates[index];
            let is_cold = home.match_tokens(request) == 0;
            u64::from(home.in_flight) < room && (is_cold || is_worth_waiting_for(home, request, candidates))
        };
        if has_room(warmer) {
            return Choice { index: warmer, reason: "warmer_home" };
        }
        if has_room(cooler) {
            return Choice { index: cooler, reason: "other_home" };
        }
        // Both homes are full: a prefix this hot may go to any worker.
        Choice { reason: "homes_full", ..LeastLoaded::default().choose(request, candidates) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn the_warmer_home_is_taken_while_it_has_room() {
        let policy = DualChoice::default();
        let request = thousand_tokens(5);
        let (first, second) = two_homes(request.prefix_key.unwrap(), &with_in_flight(&[0; 8]));
        assert_ne!(first, second);
        let mut candidates = with_in_flight(&[0; 8]);
        assert_eq!(policy.choose(&request, &candidates), Choice { index: first, reason: "warmer_home" });
        candidates[second].overlap_tokens = 500;
        assert_eq!(policy.choose(&request, &candidates), Choice { index: second, reason: "warmer_home" });
        candidates[second].in_flight = 90;
        assert_eq!(policy.choose(&request, &candidates), Choice { index: first, reason: "other_home" });
        candidates[first].in_flight = 90;
        let elsewhere = policy.choose(&request, &candidates);
        assert_eq!(elsewhere.reason, "homes_full");
        assert!(elsewhere.index != first && elsewhere.index != second);
    }

    #[test]
    fn a_shared_prefix_does_not_herd_requests_on_one_worker() {
        assert_every_worker_gets_work(&DualChoice::default());
        let mut candidates = with_in_flight(&[0; 4]);
        for draw in 0..32 {
            let request = PolicyRequest { prefix_key: Some(1), ..thousand_tokens(draw) };
            let index = DualChoice::default().choose(&request, &candidates).index;
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
    fn a_prefix_shared_by_all_requests_gives_every_worker_work() {
        let policy = DualChoice::default();
        let mut candidates = with_in_flight(&[0; 8]);
        for draw in 0..800 {
            let request = PolicyRequest { prefix_key: Some(1), ..thousand_tokens(draw) };
            let choice = policy.choose(&request, &candidates);
            candidates[choice.index].in_flight += 1;
        }
        let loads: Vec<u32> = candidates.iter().map(|c| c.in_flight).collect();
        assert!(loads.iter().all(|&n| (50..=125).contains(&n)), "{loads:?}");
    }
}
