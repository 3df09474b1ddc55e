//! llm-d's weighted scorers.
//!
//! As published (llm-d's inference scheduler, the default of its prefix-aware guide): prefix 3, queue 2, KV utilisation 2,
//! each scorer from 0 to 1; the highest sum wins, ties by lot. Prefix is the share of the prompt that a worker holds; queue
//! is 1 for the shortest queue, 0 for the longest, and 1 for all where they are equal; KV is the free share of the cache.
//!
//! Here: the queue is the engine's, where it reports one; otherwise the requests whose first token has not come, which the
//! lab's router knows without a scrape's delay. KV use is what the contexts in flight take of the cache: answers not yet
//! counted, shared blocks counted twice. **It herds by design**: a prefix of more than two thirds of a prompt (3 × ⅔ = 2) outweighs
//! every queue, so workers that lack it stay without it.

use parking_lot::Mutex;
use warmroute_engine::Config as EngineConfig;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};
use warmroute_types::WorkerId;

use super::machines::Machines;
use super::match_ratio;
use crate::watch::Watcher;

const PREFIX_WEIGHT: f64 = 3.0;
const QUEUE_WEIGHT: f64 = 2.0;
const KV_WEIGHT: f64 = 2.0;

/// See the file's text.
#[derive(Default)]
pub struct LlmdWeights {
    machines: Mutex<Machines>,
}

impl Policy for LlmdWeights {
    fn name(&self) -> &'static str {
        "llmd_weights"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let machines = self.machines.lock();
        let (shortest, longest) = queues(candidates);
        let score = |c: &Candidate| {
            let used = c.decode_tokens as f64 / machines.at(c.worker).kv_tokens as f64;
            PREFIX_WEIGHT * match_ratio(ask, c)
                + QUEUE_WEIGHT * queue_score(queue(c), shortest, longest)
                + KV_WEIGHT * (1.0 - used).max(0.0)
        };
        Choice { index: least_by(candidates, ask.random, |c| -score(c)), reason: "score" }
    }
}

impl Watcher for LlmdWeights {
    fn joined(&self, worker: WorkerId, engine: &EngineConfig) {
        self.machines.lock().seat(worker, engine);
    }
}

fn queue(c: &Candidate) -> u32 {
    c.waiting.unwrap_or(c.estimate.prompts_ahead)
}

fn queues(candidates: &[Candidate]) -> (u32, u32) {
    let queues = || candidates.iter().map(queue);
    (queues().min().unwrap_or(0), queues().max().unwrap_or(0))
}

fn queue_score(queue: u32, shortest: u32, longest: u32) -> f64 {
    match longest - shortest {
        0 => 1.0,
        range => f64::from(longest - queue) / f64::from(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::fixtures::*;

    #[test]
    fn three_scores_are_weighed() {
        let rule = LlmdWeights::default();
        // Held of 1,000; waiting; contexts of a cache of 846,000.
        let cases = [
            (vec![(0, 0, 0), (100, 0, 0)], 1),
            // A whole match is worth more than the shortest queue, two thirds of one are not.
            (vec![(990, 5, 0), (0, 0, 0)], 0),
            (vec![(660, 5, 0), (0, 0, 0)], 1),
            // A third of the cache in use costs 0.67, a match of 0.3 brings 0.9, one of 0.2 brings 0.6.
            (vec![(300, 0, 282_000), (0, 0, 0)], 0),
            (vec![(200, 0, 282_000), (0, 0, 0)], 1),
        ];
        for (rows, index) in cases {
            let candidates: Vec<Candidate> = rows.iter().enumerate().map(row).collect();
            assert_eq!(rule.choose(&thousand(1), &candidates).index, index, "{rows:?}");
        }
    }

    fn row((seat, &(overlap_tokens, waiting, decode_tokens)): (usize, &(u32, u32, u64))) -> Candidate {
        Candidate { overlap_tokens, waiting: Some(waiting), decode_tokens, ..idle(seat as u16) }
    }

    #[test]
    fn without_a_report_the_queue_is_what_has_no_first_token_yet() {
        let mut candidates = holding(&[(600, 0), (0, 0)]);
        assert_eq!(LlmdWeights::default().choose(&thousand(1), &candidates).index, 0);
        candidates[0].estimate.prompts_ahead = 4;
        assert_eq!(LlmdWeights::default().choose(&thousand(1), &candidates).index, 1);
    }
}
