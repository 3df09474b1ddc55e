//! The worker with the longest overlap, unless it is overloaded; then the least loaded worker.
//!
//! The thresholds are those of the SMG gateway. Its manual calls a worker overloaded when *either* bound is
//! exceeded, which spills at two requests against one and loses locality at low load. By default both must be
//! exceeded, as in SMG's code. One rule is ours: the overlap must justify the worker's load, or a prefix that
//! many requests share would gather them on one worker up to the bound. [`Worth::Off`] leaves that rule out.

use warmroute_types::OptionValue;

use crate::numbers::{is_worth_waiting_for, least_by};
use crate::{Candidate, Choice, LeastLoaded, Policy, PolicyRequest};

/// When a worker counts as overloaded, compared with the least loaded one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// More than `balance_rel` times the least load *and* more than `balance_abs` requests above it.
    #[default]
    Both,
    /// Either of the two bounds, as the SMG manual says.
    Either,
    /// More than 1.5 times the mean load, and at least four requests above the mean.
    Dynamic,
}

impl OptionValue for Balance {
    const VALUES: &'static [(Balance, &'static str, &'static str)] = &[
        (Balance::Both, "both", "Overloaded when both thresholds are exceeded"),
        (Balance::Either, "either", "Overloaded when either threshold is exceeded"),
        (
            Balance::Dynamic,
            "dynamic",
            "Overloaded at 1.5 times the fleet's mean, and at least four requests above it",
        ),
    ];
}

/// Whether an overlap must justify its worker's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worth {
    /// An overlap that saves less than the worker's load costs is not followed.
    #[default]
    On,
    /// Every overlap above the threshold is followed, up to the balance thresholds.
    Off,
}

impl OptionValue for Worth {
    const VALUES: &'static [(Worth, &'static str, &'static str)] = &[
        (Worth::On, "on", "An overlap must justify its worker's load"),
        (Worth::Off, "off", "Only the thresholds decide"),
    ];
}

/// Longest overlap above a threshold, while its worker is not overloaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAware {
    /// Minimum overlap as a share of the prompt, 0 to 1.
    pub cache_threshold: f64,
    /// Overloaded when in-flight requests exceed the least loaded worker's by more than this.
    pub balance_abs: u32,
    /// Overloaded when in-flight requests exceed this multiple of the least loaded worker's.
    pub balance_rel: f64,
    /// How the two bounds combine.
    pub balance: Balance,
    /// Whether an overlap must justify its worker's load.
    pub worth: Worth,
}

impl Default for CacheAware {
    fn default() -> CacheAware {
        CacheAware::BALANCED
    }
}

impl CacheAware {
    /// More cache hits, for conversations.
    pub const HIGH_AFFINITY: CacheAware = CacheAware::preset(0.2, 128, 2.0);
    /// The default.
    pub const BALANCED: CacheAware = CacheAware::preset(0.3, 64, 1.5);
    /// Even load before cache hits.
    pub const LOAD_FOCUSED: CacheAware = CacheAware::preset(0.5, 32, 1.2);

    const fn preset(cache_threshold: f64, balance_abs: u32, balance_rel: f64) -> CacheAware {
        CacheAware { cache_threshold, balance_abs, balance_rel, balance: Balance::Both, worth: Worth::On }
    }

    fn is_overloaded(&self, candidate: &Candidate, candidates: &[Candidate]) -> bool {
        let load = f64::from(candidate.in_flight);
        let least = f64::from(candidates.iter().map(|c| c.in_flight).min().unwrap_or(0));
        let above = load - least > f64::from(self.balance_abs);
        // An idle worker counts as if it had one request, to keep the ratio finite.
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

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        // The longest overlap; among equals the least loaded worker.
        let cost = |c: &Candidate| (u32::MAX - c.overlap_tokens, c.in_flight);
        let index = least_by(candidates, request.random, cost);
        let match_ratio = candidates[index].overlap_ratio(request);
        if candidates[index].overlap_tokens == 0 || match_ratio < self.cache_threshold {
            return Choice { reason: "no_match", ..LeastLoaded::default().choose(request, candidates) };
        }
        if self.worth == Worth::On && !is_worth_waiting_for(&candidates[index], request, candidates) {
            return Choice {
                reason: "match_outweighed",
                ..LeastLoaded::default().choose(request, candidates)
            };
        }
        if self.is_overloaded(&candidates[index], candidates) {
            return Choice {
                reason: "match_overloaded",
                ..LeastLoaded::default().choose(request, candidates)
            };
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
        let literal = CacheAware { worth: Worth::Off, ..balanced };
        // (tokens held of a thousand, requests in flight)
        let cases: [(CacheAware, &[Holding], usize, &str); 16] = [
            (balanced, &[(0, 1), (900, 5), (400, 0)], 1, "match"),
            (balanced, &[(900, 5), (900, 3), (400, 0)], 1, "match"),
            (balanced, &[(299, 5), (0, 1), (0, 2)], 1, "no_match"),
            (balanced, &[(300, 1), (0, 1), (0, 2)], 0, "match"),
            (balanced, &[(300, 4), (0, 1), (0, 2)], 0, "match"),
            (balanced, &[(300, 5), (0, 1), (0, 2)], 1, "match_outweighed"),
            (literal, &[(300, 5), (0, 1), (0, 2)], 0, "match"),
            (literal, &[(300, 66), (0, 1), (0, 2)], 1, "match_overloaded"),
            (CacheAware::LOAD_FOCUSED, &[(300, 5), (0, 1)], 1, "no_match"),
            (CacheAware::HIGH_AFFINITY, &[(200, 1), (0, 1)], 0, "match"),
            // 65 requests above the least, and more than 1.5 times it.
            (balanced, &[(900, 66), (0, 1)], 1, "match_overloaded"),
            (balanced, &[(900, 65), (0, 1)], 0, "match"),
            // 100 requests above the least, but only 1.2 times it: one bound of two.
            (balanced, &[(900, 600), (0, 500)], 0, "match"),
            (either, &[(900, 600), (0, 500)], 1, "match_overloaded"),
            // The least loaded worker is idle and counts as one: two requests exceed 1.5 times, one does not.
            (either, &[(900, 2), (0, 0)], 1, "match_overloaded"),
            (dynamic, &[(900, 9), (0, 0), (0, 0), (0, 1)], 1, "match_overloaded"),
        ];
        for (policy, rows, index, reason) in cases {
            let choice = policy.choose(&thousand_tokens(7), &holding(rows));
            let is_idle = |index: usize| rows[index].1 == rows.iter().map(|row| row.1).min().unwrap();
            assert_eq!(choice.reason, reason, "{policy:?} {rows:?}");
            assert!(
                choice.index == index || (reason == "match_overloaded" && is_idle(choice.index)),
                "{rows:?}"
            );
        }
        assert_eq!(either.choose(&thousand_tokens(7), &holding(&[(900, 1), (0, 0)])).reason, "match");
        assert_eq!(
            dynamic.choose(&thousand_tokens(7), &holding(&[(900, 5), (0, 0), (0, 0), (0, 1)])).reason,
            "match"
        );
    }

    #[test]
    fn a_shared_prefix_does_not_herd_requests_on_one_worker() {
        let spread = spread(&CacheAware::default(), 100, 800);
        assert_eq!(spread, [100; 8], "the match is too short to count: by load alone");
        let low = spread_at_low_load(&CacheAware::default(), 500, 8);
        assert!(low.iter().all(|&n| n >= 5), "half of each prompt shared, eight at once: {low:?}");
        for policy in [CacheAware::HIGH_AFFINITY, CacheAware::BALANCED, CacheAware::LOAD_FOCUSED] {
            assert_every_worker_gets_work(&policy);
        }
    }
}
