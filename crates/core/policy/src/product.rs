//! Tokens to compute times requests in the batch: the lowest product wins (LMetric).
//!
//! There are no weights: halving the uncached tokens is worth doubling the batch. One is added to both
//! factors; otherwise an idle worker would win with any miss, and a full hit with any queue.

use crate::numbers::least_by;
use crate::{Candidate, Choice, Policy, PolicyRequest};

/// `(uncached tokens + 1) × (requests in flight + 1)`, lowest wins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Product;

impl Policy for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let miss =
            |c: &Candidate| u64::from(request.prompt_tokens.saturating_sub(c.match_tokens(request))) + 1;
        let index = least_by(candidates, request.random, |c| miss(c) * (u64::from(c.in_flight) + 1));
        let reason =
            if candidates[index].match_tokens(request) > 0 { "product_with_match" } else { "product" };
        Choice { index, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn halving_the_miss_is_worth_doubling_the_batch() {
        let cases: [(&[Holding], usize); 4] = [
            (&[(600, 1), (0, 0)], 0),
            (&[(400, 1), (0, 0)], 1),
            (&[(999, 90), (0, 0)], 0),
            (&[(0, 3), (0, 2)], 1),
        ];
        for (rows, index) in cases {
            assert_eq!(Product.choose(&thousand_tokens(3), &holding(rows)).index, index, "{rows:?}");
        }
    }

    #[test]
    fn a_shared_prefix_does_not_herd_requests_on_one_worker() {
        let spread = spread(&Product, 500, 800);
        assert!(spread.iter().all(|&n| (95..=105).contains(&n)), "{spread:?}");
        assert_every_worker_gets_work(&Product);
    }
}
