//! Prompts with the same beginning go to one worker, for all clients.
//!
//! The key is a hash of the prompt's beginning, and the hashed length matters most. A key that covers only a
//! system prompt shared by all requests sends them all to one worker, up to the load bound.

use crate::rendezvous::{Home, LoadBound, home};
use crate::{Candidate, Choice, LeastLoaded, Policy, PolicyRequest};

/// Consistent hashing of the prefix key, with bounded load.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefixAffinity {
    /// When a worker counts as full.
    pub bound: LoadBound,
}

impl Policy for PrefixAffinity {
    fn name(&self) -> &'static str {
        "prefix_affinity"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let Some(key) = request.prefix_key else {
            return Choice { reason: "no_prefix", ..LeastLoaded::default().choose(request, candidates) };
        };
        match home(key, candidates, self.bound) {
            Home::First(index) => Choice { index, reason: "prefix" },
            Home::Spilled(index) => Choice { index, reason: "prefix_spilled" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn one_prefix_shared_by_all_fills_worker_after_worker_up_to_the_bound() {
        let policy = PrefixAffinity::default();
        let mut candidates = with_in_flight(&[0; 8]);
        for draw in 0..800 {
            let choice = policy
                .choose(&PolicyRequest { prefix_key: Some(1), ..request_with_random(draw) }, &candidates);
            candidates[choice.index].in_flight += 1;
        }
        let mut loads: Vec<u32> = candidates.iter().map(|c| c.in_flight).collect();
        loads.sort_unstable();
        // The mean is 100: six full at 1.25 times that, the seventh with what is left.
        assert_eq!(loads, [0, 50, 125, 125, 125, 125, 125, 125]);
    }

    #[test]
    fn an_empty_prompt_goes_to_the_least_loaded_worker() {
        let choice = PrefixAffinity::default().choose(&request_with_random(1), &with_in_flight(&[4, 1, 3]));
        assert_eq!(choice, Choice { index: 1, reason: "no_prefix" });
    }
}
