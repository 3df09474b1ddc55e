//! llm-d's "sticky until saturated".
//!
//! As published (llm-d's optimized baseline: `prefix-cache-affinity-filter`, then `token-load-scorer`): keep
//! the workers that hold at least 0.80 of the prompt, unless the best of them would wait 18 s longer than the
//! best other worker. The wait is uncached tokens in flight over the peak prefill rate. Of the workers left,
//! the one with the fewest uncached tokens, including this prompt's, wins.
//!
//! Differences here: the rate is each engine's own. **It herds by design**: a prefix of at least 0.80 of a
//! prompt stays on the worker that had it first until that worker is 18 s behind, about 700,000 tokens on an
//! H200.

use parking_lot::Mutex;
use warmroute_engine::Config as EngineConfig;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};
use warmroute_types::WorkerId;

use super::machines::Machines;
use super::{match_ratio, missing_tokens};
use crate::watch::Watcher;

/// `affinityThreshold`.
const MATCH_MIN: f64 = 0.80;
/// `maxTTFTPenaltyMs`.
const PENALTY_MS_MAX: f64 = 18_000.0;

/// llm-d's rule; see the module text.
#[derive(Default)]
pub struct LlmdSticky {
    machines: Mutex<Machines>,
}

impl Policy for LlmdSticky {
    fn name(&self) -> &'static str {
        "llmd_sticky"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let machines = self.machines.lock();
        let wait_ms = |c: &Candidate| c.prefill_tokens as f64 * machines.at(c.worker).token_ms();
        let is_sticky = |c: &Candidate| match_ratio(ask, c) >= MATCH_MIN;
        let shortest_ms = |among: &dyn Fn(&Candidate) -> bool| {
            candidates.iter().filter(|c| among(c)).map(wait_ms).min_by(f64::total_cmp)
        };
        let penalty_ms = match (shortest_ms(&is_sticky), shortest_ms(&|c| !is_sticky(c))) {
            (Some(sticky_ms), Some(other_ms)) => sticky_ms - other_ms,
            // No worker matches, or all do: the penalty does not apply.
            _ => f64::INFINITY,
        };
        let stays = penalty_ms <= PENALTY_MS_MAX;
        let load = |c: &Candidate| c.prefill_tokens + u64::from(missing_tokens(ask, c));
        let order = |c: &Candidate| (stays && !is_sticky(c), load(c));
        let reason = if stays { "sticky" } else { "open" };
        Choice { index: least_by(candidates, ask.random, order), reason }
    }
}

impl Watcher for LlmdSticky {
    fn joined(&self, worker: WorkerId, engine: &EngineConfig) {
        self.machines.lock().set(worker, engine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    #[test]
    fn a_match_of_four_fifths_holds_a_request_until_its_worker_is_eighteen_seconds_behind() {
        let rule = LlmdSticky::default();
        let saturated = (PENALTY_MS_MAX / Machines::default().at(WorkerId(0)).token_ms()) as u64;
        let cases = [
            (vec![(0, 5_000), (0, 4_000)], 1, "open"),
            (vec![(799, 5_000), (0, 4_000)], 1, "open"),
            (vec![(800, 5_000), (0, 4_000)], 0, "sticky"),
            (vec![(800, saturated - 100), (0, 0)], 0, "sticky"),
            (vec![(800, saturated + 100), (0, 0)], 1, "open"),
            (vec![(900, 5_000), (800, 4_000), (0, 0)], 1, "sticky"),
            (vec![(900, 5_000), (950, 4_990)], 1, "open"),
        ];
        for (rows, index, reason) in cases {
            assert_eq!(rule.choose(&thousand(1), &behind(&rows)), Choice { index, reason }, "{rows:?}");
        }
    }
}
