//! Prompts that begin alike to one worker, whoever sends them.
//!
//! The key is a hash of the prompt's beginning. How much of it is hashed decides everything: a key that reaches no
//! further than a system prompt shared by all sends everybody to one worker, and only the load bound saves the day.

use crate::rendezvous::{Home, LoadBound, home};
use crate::{Ask, Candidate, Choice, LeastLoaded, Policy};

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

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let Some(key) = ask.prefix_key else {
            return Choice { reason: "no_prefix", ..LeastLoaded::default().choose(ask, candidates) };
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
            let choice = policy.choose(&Ask { prefix_key: Some(1), ..drawn(draw) }, &candidates);
            candidates[choice.index].in_flight += 1;
        }
        let mut loads: Vec<u32> = candidates.iter().map(|c| c.in_flight).collect();
        loads.sort_unstable();
        // The mean is 100: six full at 1.25 times that, the seventh with what is left.
        assert_eq!(loads, [0, 50, 125, 125, 125, 125, 125, 125]);
    }

    #[test]
    fn an_empty_prompt_goes_where_there_is_least_to_do() {
        let choice = PrefixAffinity::default().choose(&drawn(1), &with_in_flight(&[4, 1, 3]));
        assert_eq!(choice, Choice { index: 1, reason: "no_prefix" });
    }
}
