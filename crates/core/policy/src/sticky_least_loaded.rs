//! Hit: the least loaded of the workers that hold the prefix. Miss: the least loaded of all, which holds it from then on.
//!
//! A match counts as a hit from the same share of the prompt as elsewhere; a head of a few tokens that everybody shares
//! is not one, or all would go to whoever came first. Holders that are all full are no reason to wait: then it is a miss.

use crate::numbers::{is_worth_waiting_for, least_by};
use crate::rendezvous::LoadBound;
use crate::{Ask, Candidate, Choice, LeastLoaded, Policy};

/// Holders that come this near to the longest match hold the prefix too: a block at its end is not worth a queue.
const HOLDS_RATIO: f64 = 0.9;

/// Least loaded among holders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StickyLeastLoaded {
    /// Share of the prompt that must match for a hit, 0 to 1.
    pub hit_threshold: f64,
    /// When a holder counts as full.
    pub bound: LoadBound,
}

impl Default for StickyLeastLoaded {
    fn default() -> StickyLeastLoaded {
        StickyLeastLoaded { hit_threshold: 0.3, bound: LoadBound::default() }
    }
}

impl StickyLeastLoaded {
    /// Against the least loaded of all, not the mean: most workers may hold a prefix that everybody shares, and the rest
    /// would idle below a mean that the holders make.
    fn is_full(&self, in_flight: u32, candidates: &[Candidate]) -> bool {
        let least = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        f64::from(in_flight) >= (least * self.bound.factor).max(least + f64::from(self.bound.slack))
    }
}

impl Policy for StickyLeastLoaded {
    fn name(&self) -> &'static str {
        "sticky_least_loaded"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let longest = candidates.iter().map(|c| c.overlap_tokens).max().unwrap_or(0);
        let needed = (f64::from(ask.prompt_tokens) * self.hit_threshold).max(1.0);
        if f64::from(longest) < needed {
            return Choice { reason: "miss", ..LeastLoaded::default().choose(ask, candidates) };
        }
        let holds = |c: &Candidate| f64::from(c.overlap_tokens) >= f64::from(longest) * HOLDS_RATIO;
        let index = least_by(candidates, ask.random, |c| (!holds(c), c.in_flight));
        if !is_worth_waiting_for(&candidates[index], ask, candidates) {
            return Choice { reason: "match_outweighed", ..LeastLoaded::default().choose(ask, candidates) };
        }
        if self.is_full(candidates[index].in_flight, candidates) {
            return Choice { reason: "holders_full", ..LeastLoaded::default().choose(ask, candidates) };
        }
        Choice { index, reason: "hit" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn a_hit_goes_to_the_least_loaded_holder() {
        let cases: [(&[Holding], usize, &str); 5] = [
            (&[(900, 4), (900, 2), (0, 0)], 1, "hit"),
            (&[(900, 4), (820, 2), (0, 0)], 1, "hit"),
            (&[(900, 4), (500, 2), (0, 0)], 0, "hit"),
            (&[(200, 1), (0, 0), (0, 3)], 1, "miss"),
            (&[(900, 40), (0, 0), (0, 1)], 1, "holders_full"),
        ];
        for (rows, index, reason) in cases {
            let choice = StickyLeastLoaded::default().choose(&thousand(3), &holding(rows));
            assert_eq!(choice, Choice { index, reason }, "{rows:?}");
        }
    }

    #[test]
    fn a_head_that_all_share_does_not_herd() {
        assert_eq!(spread(&StickyLeastLoaded::default(), 100, 800), [100; 8]);
        let low = spread_at_low_load(&StickyLeastLoaded::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "{low:?}");
        assert_nobody_is_left_out(&StickyLeastLoaded::default());
        let long = spread(&StickyLeastLoaded::default(), 900, 800);
        assert!(long.iter().all(|&n| n > 0 && n <= 125), "even when they share nearly all: {long:?}");
    }
}
