//! A weighed sum: how much of the prompt a worker holds, against how long its queue is.
//!
//! With both weights at 1 a prompt that is held in full is worth a queue longer by [`QUEUE_UNIT`] requests. The queue is
//! counted from the shortest one, so that the trade does not depend on how busy the fleet is.

use crate::numbers::least_by;
use crate::{Ask, Candidate, Choice, Policy};

/// So many requests of queue weigh as much as a whole prompt.
const QUEUE_UNIT: f64 = 4.0;

/// `affinity_weight × overlap − queue_weight × queue`, highest wins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedScore {
    /// Weight of the share of the prompt that is held.
    pub affinity_weight: f64,
    /// Weight of the queue.
    pub queue_weight: f64,
}

impl Default for WeightedScore {
    fn default() -> WeightedScore {
        WeightedScore { affinity_weight: 1.0, queue_weight: 1.0 }
    }
}

impl Policy for WeightedScore {
    fn name(&self) -> &'static str {
        "weighted_score"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let shortest = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        let queue = |c: &Candidate| (f64::from(c.in_flight) - shortest) / QUEUE_UNIT;
        let held = |c: &Candidate| if c.match_tokens(ask) > 0 { c.overlap_ratio(ask) } else { 0.0 };
        let cost = |c: &Candidate| self.queue_weight * queue(c) - self.affinity_weight * held(c);
        let index = least_by(candidates, ask.random, cost);
        let reason = if candidates[index].match_tokens(ask) > 0 { "score_with_match" } else { "score" };
        Choice { index, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn match_and_queue_are_weighed() {
        let even = WeightedScore::default();
        let affine = WeightedScore { affinity_weight: 3.0, ..even };
        let cases: [(WeightedScore, &[Holding], usize); 5] = [
            (even, &[(1_000, 3), (0, 0)], 0),
            (even, &[(1_000, 5), (0, 0)], 1),
            (even, &[(1_000, 1_003), (0, 1_000)], 0),
            (affine, &[(1_000, 5), (0, 0)], 0),
            (even, &[(100, 2), (0, 0)], 1),
        ];
        for (policy, rows, index) in cases {
            assert_eq!(policy.choose(&thousand(3), &holding(rows)).index, index, "{policy:?} {rows:?}");
        }
    }

    #[test]
    fn a_head_that_all_share_does_not_herd() {
        let low = spread_at_low_load(&WeightedScore::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "{low:?}");
        assert_nobody_is_left_out(&WeightedScore::default());
        let spread = spread(&WeightedScore::default(), 900, 800);
        assert!(spread.iter().all(|&n| (85..=115).contains(&n)), "{spread:?}");
    }
}
