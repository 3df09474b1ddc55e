//! llm-d's weighted scorers.
//!
//! As published (llm-d's inference scheduler, default of its prefix-aware guide): weights prefix 3, queue 2,
//! KV utilisation 2, each score from 0 to 1. The highest sum wins, and ties are random. Prefix is the share
//! of the prompt that a worker holds. Queue is 1 for the shortest queue, 0 for the longest, and 1 for all if
//! they are equal. KV is the free share of the cache.
//!
//! Differences here: the queue is the requests without a first token, which the lab's router knows without
//! scrape delay; the engines' reports are a second old. KV use is the contexts in flight over the cache
//! size: answers are not counted, shared blocks count twice. **It herds by design**: a prefix of more than
//! two thirds of a prompt (3 × ⅔ = 2) outweighs every queue, so workers that lack it never get it.

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

/// llm-d's rule; see the module text.
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
        self.machines.lock().set(worker, engine);
    }
}

fn queue(c: &Candidate) -> u32 {
    c.estimate.prompts_ahead
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
    use crate::baselines::fixtures::*;

    #[test]
    fn the_weighted_sum_of_three_scores_decides() {
        let rule = LlmdWeights::default();
        // Tokens held of 1,000; requests waiting; context tokens of a cache of 846,000.
        let cases = [
            (vec![(0, 0, 0), (100, 0, 0)], 1),
            // A whole match outweighs the shortest queue, two thirds of one do not.
            (vec![(990, 5, 0), (0, 0, 0)], 0),
            (vec![(660, 5, 0), (0, 0, 0)], 1),
            // A third of the cache in use costs 0.67; a match of 0.3 adds 0.9, one of 0.2 adds 0.6.
            (vec![(300, 0, 282_000), (0, 0, 0)], 0),
            (vec![(200, 0, 282_000), (0, 0, 0)], 1),
        ];
        for (rows, index) in cases {
            let candidates: Vec<Candidate> = rows.iter().enumerate().map(row).collect();
            assert_eq!(rule.choose(&thousand(1), &candidates).index, index, "{rows:?}");
        }
    }

    fn row((index, &(overlap_tokens, waiting, decode_tokens)): (usize, &(u32, u32, u64))) -> Candidate {
        let mut candidate = Candidate { overlap_tokens, decode_tokens, ..idle(index as u16) };
        candidate.estimate.prompts_ahead = waiting;
        candidate
    }

    #[test]
    fn the_queue_is_the_requests_without_a_first_token_and_not_a_report() {
        let mut candidates = holding(&[(600, 0), (0, 0)]);
        candidates[0].waiting = Some(9);
        assert_eq!(LlmdWeights::default().choose(&thousand(1), &candidates).index, 0);
        candidates[0].estimate.prompts_ahead = 4;
        assert_eq!(LlmdWeights::default().choose(&thousand(1), &candidates).index, 1);
    }
}
