//! The least loaded worker that holds the prefix; on a miss, the least loaded worker of all.
//!
//! An overlap counts as a hit from a minimum share of the prompt. A short head shared by all requests is no
//! hit, or they would all go to the first worker that cached it. When every holder is full, the request
//! counts as a miss.

use crate::numbers::{is_worth_waiting_for, least_by};
use crate::rendezvous::LoadBound;
use crate::{Candidate, Choice, LeastLoaded, Policy, PolicyRequest};

/// Workers with this share of the longest overlap count as holders too: the last block is not worth a queue.
const HOLDS_RATIO: f64 = 0.9;

/// When a hit is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HitRule {
    /// The overlap is large enough, its worker is not full, and the overlap justifies the worker's load.
    #[default]
    Bounded,
    /// Always, as the proposal of this policy says: any overlap is a hit, and only workers with the longest
    /// overlap hold the prefix. A prefix that all requests share gathers them on one worker.
    Literal,
}

/// The least loaded worker among those that hold the prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StickyLeastLoaded {
    /// Minimum overlap for a hit, as a share of the prompt, 0 to 1.
    pub hit_threshold: f64,
    /// When a holder counts as full.
    pub bound: LoadBound,
    /// When a hit is followed.
    pub rule: HitRule,
}

impl Default for StickyLeastLoaded {
    fn default() -> StickyLeastLoaded {
        StickyLeastLoaded { hit_threshold: 0.3, bound: LoadBound::default(), rule: HitRule::Bounded }
    }
}

impl StickyLeastLoaded {
    /// Whether a holder is full, compared with the least loaded worker. The mean is no measure: when most
    /// workers hold a shared prefix, they dominate the mean and the others idle.
    fn is_full(&self, in_flight: u32, candidates: &[Candidate]) -> bool {
        let least = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        f64::from(in_flight) >= (least * self.bound.factor).max(least + f64::from(self.bound.slack))
    }
}

impl Policy for StickyLeastLoaded {
    fn name(&self) -> &'static str {
        "sticky_least_loaded"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let longest = candidates.iter().map(|c| c.overlap_tokens).max().unwrap_or(0);
        if self.rule == HitRule::Literal && longest > 0 {
            let index = least_by(candidates, request.random, |c| (c.overlap_tokens < longest, c.in_flight));
            return Choice { index, reason: "hit" };
        }
        let needed = (f64::from(request.prompt_tokens) * self.hit_threshold).max(1.0);
        if f64::from(longest) < needed {
            return Choice { reason: "miss", ..LeastLoaded::default().choose(request, candidates) };
        }
        let holds = |c: &Candidate| f64::from(c.overlap_tokens) >= f64::from(longest) * HOLDS_RATIO;
        let index = least_by(candidates, request.random, |c| (!holds(c), c.in_flight));
        if !is_worth_waiting_for(&candidates[index], request, candidates) {
            return Choice {
                reason: "match_outweighed",
                ..LeastLoaded::default().choose(request, candidates)
            };
        }
        if self.is_full(candidates[index].in_flight, candidates) {
            return Choice { reason: "holders_full", ..LeastLoaded::default().choose(request, candidates) };
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
            let choice = StickyLeastLoaded::default().choose(&thousand_tokens(3), &holding(rows));
            assert_eq!(choice, Choice { index, reason }, "{rows:?}");
        }
    }

    #[test]
    fn the_literal_rule_follows_every_hit() {
        let literal = StickyLeastLoaded { rule: HitRule::Literal, ..StickyLeastLoaded::default() };
        let cases: [(&[Holding], usize, &str); 4] = [
            (&[(900, 4), (900, 2), (0, 0)], 1, "hit"),
            (&[(900, 4), (820, 2), (0, 0)], 0, "hit"),
            (&[(16, 400), (0, 0)], 0, "hit"),
            (&[(0, 4), (0, 1)], 1, "miss"),
        ];
        for (rows, index, reason) in cases {
            assert_eq!(
                literal.choose(&thousand_tokens(3), &holding(rows)),
                Choice { index, reason },
                "{rows:?}"
            );
        }
        assert_eq!(spread(&literal, 100, 800).iter().max(), Some(&800), "a shared head herds");
    }

    #[test]
    fn a_shared_prefix_does_not_herd_requests_on_one_worker() {
        assert_eq!(spread(&StickyLeastLoaded::default(), 100, 800), [100; 8]);
        let low = spread_at_low_load(&StickyLeastLoaded::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "{low:?}");
        assert_every_worker_gets_work(&StickyLeastLoaded::default());
        let long = spread(&StickyLeastLoaded::default(), 900, 800);
        assert!(long.iter().all(|&n| n > 0 && n <= 125), "even when they share nearly all: {long:?}");
    }
}
