//! Mooncake's conductor, without transfers.
//!
//! As published (Qin et al., "Mooncake", algorithm 1): choose the instance with the least estimated TTFT. The
//! estimate is the prefill times queued there, plus the prefill of the tokens its cache lacks by a fitted
//! model, plus the transfer of blocks that another instance holds. Requests that cannot meet the SLO get a
//! 429, and transfers replicate hot prefixes.
//!
//! Differences here: engines cannot transfer blocks, so every prompt is computed where it goes (the paper's
//! "local" conductor), and no request is refused. The fitted model is the engine's own step cost. A request
//! leaves the queue with its first token.

use std::collections::HashMap;

use parking_lot::Mutex;
use warmroute_engine::Config as EngineConfig;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};
use warmroute_types::{Micros, WorkerId};

use super::machines::Machines;
use crate::watch::{End, Watcher};

/// Mooncake's rule; see the module text.
#[derive(Default)]
pub struct MooncakeConductor {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    machines: Machines,
    choice: u64,
    /// Worker and prefill time of each choice, until its first token. Microseconds, so that the sums below
    /// return to exactly zero.
    queued: HashMap<u64, (WorkerId, u64)>,
    /// Queued prefill time per worker index, in microseconds.
    queue_us: Vec<u64>,
}

impl Policy for MooncakeConductor {
    fn name(&self) -> &'static str {
        "mooncake_conductor"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let mut memory = self.memory.lock();
        let ttft_us = |c: &Candidate| memory.queue_us(c.worker) + memory.prefill_us(ask, c);
        let index = least_by(candidates, ask.random, ttft_us);
        let prefill_us = memory.prefill_us(ask, &candidates[index]);
        memory.enqueue(candidates[index].worker, prefill_us);
        Choice { index, reason: "ttft" }
    }
}

impl Memory {
    fn queue_us(&self, worker: WorkerId) -> u64 {
        self.queue_us.get(worker.index()).copied().unwrap_or(0)
    }

    fn prefill_us(&self, ask: &PolicyRequest, c: &Candidate) -> u64 {
        let prefill_ms = self.machines.at(c.worker).prefill_ms(c.overlap_tokens, ask.prompt_tokens);
        Micros::from_millis_f64(prefill_ms).0
    }

    fn enqueue(&mut self, worker: WorkerId, prefill_us: u64) {
        let workers = self.queue_us.len().max(worker.index() + 1);
        self.queue_us.resize(workers, 0);
        self.queue_us[worker.index()] += prefill_us;
        self.queued.insert(self.choice, (worker, prefill_us));
    }

    fn dequeue(&mut self, choice: u64) {
        if let Some((worker, prefill_us)) = self.queued.remove(&choice) {
            self.queue_us[worker.index()] -= prefill_us;
        }
    }
}

impl Watcher for MooncakeConductor {
    fn joined(&self, worker: WorkerId, engine: &EngineConfig) {
        self.memory.lock().machines.set(worker, engine);
    }

    fn asked(&self, choice: u64, _now: Micros) {
        self.memory.lock().choice = choice;
    }

    fn first_token(&self, choice: u64, _now: Micros) {
        self.memory.lock().dequeue(choice);
    }

    fn ended(&self, choice: u64, _end: End) {
        self.memory.lock().dequeue(choice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    fn chosen(rule: &MooncakeConductor, choice: u64, held: &[(u32, u32)]) -> usize {
        rule.asked(choice, Micros(choice));
        rule.choose(&thousand(choice), &holding(held)).index
    }

    #[test]
    fn a_request_waits_for_its_cache_as_long_as_that_is_the_sooner_way() {
        let rule = MooncakeConductor::default();
        // 100 missing tokens take about 6 ms beside a cache, a cold thousand 25 ms.
        assert_eq!(chosen(&rule, 1, &[(900, 0), (0, 0)]), 0);
        assert_eq!(chosen(&rule, 2, &[(900, 0), (0, 0)]), 0);
        let mut choice = 3;
        while chosen(&rule, choice, &[(900, 0), (0, 0)]) == 0 {
            choice += 1;
            assert!(choice < 20, "the queue must count");
        }
        // Now both have a queue; first tokens take it away again.
        (1..choice).for_each(|one| rule.first_token(one, Micros(100)));
        assert_eq!(chosen(&rule, choice + 1, &[(900, 0), (0, 0)]), 0);
    }

    #[test]
    fn what_ends_without_a_first_token_leaves_the_queue_once() {
        let rule = MooncakeConductor::default();
        let index = chosen(&rule, 1, &[(0, 0), (0, 0)]);
        rule.ended(1, End::Failed { at: Micros(5) });
        rule.first_token(1, Micros(9));
        assert_eq!(rule.memory.lock().queue_us(WorkerId(index as u16)), 0);
    }
}
