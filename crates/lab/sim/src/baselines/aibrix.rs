//! AIBrix's `prefix-cache` rule.
//!
//! As published (vllm-project/aibrix, `pkg/plugins/gateway/algorithms`): if the busiest worker has more than
//! 16 requests above the least busy one, choose the least busy. Otherwise choose the longest match among
//! workers within two standard deviations of the mean load, and the less loaded of equal matches. Without a
//! match, choose the least busy.
//!
//! Differences here: the constants are those above; later versions use a factor of 2 over the mean with a gap
//! of 8, and one deviation. Running requests are the router's requests in flight, as in AIBrix's gateway.

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};

/// Difference of running requests beyond which caches are ignored (`IMBALANCE_ABS_COUNT`).
const IMBALANCE: u32 = 16;
/// Standard deviations above the mean from which a worker is an outlier.
const DEVIATIONS: f64 = 2.0;

/// AIBrix's rule; see the module text.
#[derive(Default)]
pub struct Aibrix;

impl Policy for Aibrix {
    fn name(&self) -> &'static str {
        "aibrix"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let running = || candidates.iter().map(|c| c.in_flight);
        let (most, least) = (running().max().unwrap_or(0), running().min().unwrap_or(0));
        let least_busy = |reason| Choice { index: least_by(candidates, ask.random, |c| c.in_flight), reason };
        if most - least > IMBALANCE {
            return least_busy("imbalance");
        }
        let limit = limit(candidates);
        let fits = |c: &Candidate| c.overlap_tokens > 0 && f64::from(c.in_flight) <= limit;
        if !candidates.iter().any(fits) {
            return least_busy("no_match");
        }
        // Outliers sort after all others.
        let order = |c: &Candidate| (!fits(c), u32::MAX - c.overlap_tokens, c.in_flight);
        Choice { index: least_by(candidates, ask.random, order), reason: "match" }
    }
}

/// Maximum of running requests for a worker that is no outlier.
fn limit(candidates: &[Candidate]) -> f64 {
    let count = candidates.len() as f64;
    let mean = candidates.iter().map(|c| f64::from(c.in_flight)).sum::<f64>() / count;
    let variance = candidates.iter().map(|c| (f64::from(c.in_flight) - mean).powi(2)).sum::<f64>() / count;
    mean + DEVIATIONS * variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    #[test]
    fn the_longest_match_wins_unless_its_worker_is_an_outlier() {
        let cases = [
            (vec![(500, 3), (800, 5), (0, 0)], 1, "match"),
            (vec![(500, 3), (500, 1), (0, 0)], 1, "match"),
            (vec![(0, 3), (0, 1), (0, 2)], 1, "no_match"),
            (vec![(900, 17), (0, 0), (0, 5)], 1, "imbalance"),
            (vec![(900, 16), (0, 0), (0, 5)], 0, "match"),
            // Eight workers, one with 16: mean 2, deviation 5.3, limit 12.6.
            (vec![(900, 16), (300, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)], 1, "match"),
        ];
        for (rows, index, reason) in cases {
            assert_eq!(Aibrix.choose(&thousand(1), &holding(&rows)), Choice { index, reason }, "{rows:?}");
        }
    }
}
