//! A weighted sum of the prompt's cached share and the worker's queue.
//!
//! With both weights at 1, a fully cached prompt is worth a queue longer by [`QUEUE_UNIT`] requests. Queues
//! are measured from the shortest one, so the trade-off does not depend on how busy the fleet is.

use crate::numbers::least_by;
use crate::{Candidate, Choice, Policy, PolicyRequest};

/// Queue length, in requests, that weighs as much as a whole prompt.
const QUEUE_UNIT: f64 = 4.0;

/// `affinity_weight × overlap − queue_weight × queue`, highest wins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedScore {
    /// Weight of the cached share of the prompt.
    pub affinity_weight: f64,
    /// Weight of the queue, of which four requests weigh as much as a whole prompt.
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

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let shortest = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        let queue = |c: &Candidate| (f64::from(c.in_flight) - shortest) / QUEUE_UNIT;
        let held = |c: &Candidate| if c.match_tokens(request) > 0 { c.overlap_ratio(request) } else { 0.0 };
        let cost = |c: &Candidate| self.queue_weight * queue(c) - self.affinity_weight * held(c);
        let index = least_by(candidates, request.random, cost);
        let reason = if candidates[index].match_tokens(request) > 0 { "score_with_match" } else { "score" };
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
            assert_eq!(
                policy.choose(&thousand_tokens(3), &holding(rows)).index,
                index,
                "{policy:?} {rows:?}"
            );
        }
    }

    #[test]
    fn a_shared_prefix_does_not_herd_requests_on_one_worker() {
        let low = spread_at_low_load(&WeightedScore::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "{low:?}");
        assert_every_worker_gets_work(&WeightedScore::default());
        let spread = spread(&WeightedScore::default(), 900, 800);
        assert!(spread.iter().all(|&n| (85..=115).contains(&n)), "{spread:?}");
    }
}
