//! The longest match, whatever its load.
//!
//! As published in introductions to cache-aware routing: the request is forced to the worker with the highest
//! overlap. Load is not read at all; workers with the same overlap, such as none, are drawn at random.
//!
//! **It herds by design**: the first worker that caches a prefix shared by all requests gets all of them.

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};

/// The rule; see the module text.
#[derive(Default)]
pub struct LongestMatch;

impl Policy for LongestMatch {
    fn name(&self) -> &'static str {
        "longest_match"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let index = least_by(candidates, ask.random, |c| u32::MAX - c.overlap_tokens);
        let reason = if candidates[index].overlap_tokens > 0 { "match" } else { "no_match" };
        Choice { index, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    #[test]
    fn the_longest_overlap_wins_however_long_its_queue() {
        let choose = |rows: &[(u32, u64)]| LongestMatch.choose(&thousand(1), &behind(rows));
        assert_eq!(choose(&[(16, 9_000_000), (0, 0)]), Choice { index: 0, reason: "match" });
        assert_eq!(choose(&[(16, 0), (32, 9_000_000)]), Choice { index: 1, reason: "match" });
        assert_eq!(choose(&[(0, 5), (0, 0)]).reason, "no_match");
    }
}
