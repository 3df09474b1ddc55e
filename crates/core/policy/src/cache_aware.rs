//! The worker with the longest match, unless it is overloaded; otherwise the one with the least to do.
//!
//! The thresholds are those that people know from the SMG gateway's manual. Read to the letter, it calls a worker overloaded when
//! *either* bound is passed, which spills at two requests against one and gives up locality at low load; by
//! default both must be passed, as in the code that is run in the field. One rule is ours: a match must be worth what its worker
//! has to do, or a head that many share would gather them all on one worker, up to the bound.

use crate::numbers::{is_worth_waiting_for, least_by};
use crate::{Ask, Candidate, Choice, LeastLoaded, Policy};

/// When a worker counts as overloaded against the least loaded one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// More than `balance_rel` times the least *and* more than `balance_abs` above it.
    #[default]
    Both,
    /// One of the two is enough: the manual to the letter.
    Either,
    /// The bound follows the fleet: half the mean above the mean, and never fewer than four requests.
    Dynamic,
}

/// Longest match above a threshold, while its worker is not overloaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAware {
    /// Share of the prompt that must match, 0 to 1.
    pub cache_threshold: f64,
    /// Requests above the least loaded worker.
    pub balance_abs: u32,
    /// Times the least loaded worker's requests.
    pub balance_rel: f64,
    /// How the two are joined.
    pub balance: Balance,
}

impl Default for CacheAware {
    fn default() -> CacheAware {
        CacheAware::BALANCED
    }
}

impl CacheAware {
    /// More hits, for conversations.
    pub const HIGH_AFFINITY: CacheAware = CacheAware::preset(0.2, 128, 2.0);
    /// The default.
    pub const BALANCED: CacheAware = CacheAware::preset(0.3, 64, 1.5);
    /// Load first.
    pub const LOAD_FOCUSED: CacheAware = CacheAware::preset(0.5, 32, 1.2);

    const fn preset(cache_threshold: f64, balance_abs: u32, balance_rel: f64) -> CacheAware {
        CacheAware { cache_threshold, balance_abs, balance_rel, balance: Balance::Both }
    }

    fn is_overloaded(&self, candidate: &Candidate, candidates: &[Candidate]) -> bool {
        let load = f64::from(candidate.in_flight);
        let least = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        let above = load - least > f64::from(self.balance_abs);
        // The ratio to an idle worker would be infinite: it counts as if it had one request.
        let times = load > self.balance_rel * least.max(1.0);
        match self.balance {
            Balance::Both => above && times,
            Balance::Either => above || times,
            Balance::Dynamic => {
                let total: f64 = candidates.iter().map(|c| f64::from(c.in_flight)).sum();
                let mean = total / candidates.len() as f64;
                load > mean + (mean / 2.0).max(4.0)
            }
        }
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        "cache_aware"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        // The longest match; among equal ones the least loaded.
        let cost = |c: &Candidate| (u32::MAX - c.overlap_tokens, c.in_flight);
        let index = least_by(candidates, ask.random, cost);
        let match_ratio = candidates[index].overlap_ratio(ask);
        if candidates[index].overlap_tokens == 0 || match_ratio < self.cache_threshold {
            return Choice { reason: "no_match", ..LeastLoaded::default().choose(ask, candidates) };
        }
        if !is_worth_waiting_for(&candidates[index], ask, candidates) {
            return Choice { reason: "match_outweighed", ..LeastLoaded::default().choose(ask, candidates) };
        }
        if self.is_overloaded(&candidates[index], candidates) {
            return Choice { reason: "match_overloaded", ..LeastLoaded::default().choose(ask, candidates) };
        }
        Choice { index, reason: "match" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn the_longest_match_wins_while_its_worker_is_not_overloaded() {
        let balanced = CacheAware::BALANCED;
        let either = CacheAware { balance: Balance::Either, ..balanced };
        let dynamic = CacheAware { balance: Balance::Dynamic, ..balanced };
        // (tokens held of a thousand, requests in flight)
        let cases: [(CacheAware, &[Holding], usize, &str); 14] = [
            (balanced, &[(0, 1), (900, 5), (400, 0)], 1, "match"),
            (balanced, &[(900, 5), (900, 3), (400, 0)], 1, "match"),
            (balanced, &[(299, 5), (0, 1), (0, 2)], 1, "no_match"),
            (balanced, &[(300, 1), (0, 1), (0, 2)], 0, "match"),
            (balanced, &[(300, 4), (0, 1), (0, 2)], 0, "match"),
            (balanced, &[(300, 5), (0, 1), (0, 2)], 1, "match_outweighed"),
            (CacheAware::LOAD_FOCUSED, &[(300, 5), (0, 1)], 1, "no_match"),
            (CacheAware::HIGH_AFFINITY, &[(200, 1), (0, 1)], 0, "match"),
            // 65 above the least, and more than one and a half times it.
            (balanced, &[(900, 66), (0, 1)], 1, "match_overloaded"),
            (balanced, &[(900, 65), (0, 1)], 0, "match"),
            // 100 above, but only 1.2 times: not both.
            (balanced, &[(900, 600), (0, 500)], 0, "match"),
            (either, &[(900, 600), (0, 500)], 1, "match_overloaded"),
            // Against an idle worker: two are twice one, one is not.
            (either, &[(900, 2), (0, 0)], 1, "match_overloaded"),
            (dynamic, &[(900, 9), (0, 0), (0, 0), (0, 1)], 1, "match_overloaded"),
        ];
        for (policy, rows, index, reason) in cases {
            let choice = policy.choose(&thousand(7), &holding(rows));
            let is_idle = |index: usize| rows[index].1 == rows.iter().map(|row| row.1).min().unwrap();
            assert_eq!(choice.reason, reason, "{policy:?} {rows:?}");
            assert!(
                choice.index == index || (reason == "match_overloaded" && is_idle(choice.index)),
                "{rows:?}"
            );
        }
        assert_eq!(either.choose(&thousand(7), &holding(&[(900, 1), (0, 0)])).reason, "match");
        assert_eq!(
            dynamic.choose(&thousand(7), &holding(&[(900, 5), (0, 0), (0, 0), (0, 1)])).reason,
            "match"
        );
    }

    #[test]
    fn a_head_that_all_share_does_not_herd() {
        let spread = spread(&CacheAware::default(), 100, 800);
        assert_eq!(spread, [100; 8], "the match is too short to count: by load alone");
        let low = spread_at_low_load(&CacheAware::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "half of each prompt shared, eight at once: {low:?}");
        for policy in [CacheAware::HIGH_AFFINITY, CacheAware::BALANCED, CacheAware::LOAD_FOCUSED] {
            assert_nobody_is_left_out(&policy);
        }
    }
}
