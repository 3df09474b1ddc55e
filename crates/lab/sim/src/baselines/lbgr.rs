//! LBGR, learning-based greedy routing.
//!
//! As published (Wu, Silwal and Zhang, "Randomization Boosts KV Caching, Learning Balances Query Load", 2026,
//! and its code, fzwark/KVRouting): the cost is missing tokens × rate, plus a backlog, plus a residual per
//! worker. Each request adds its service time to the backlog, which decays by 31/32 every 20 ms; the end of a
//! request removes what is left of it. Recursive least squares with a forgetting factor of 0.95 learn the
//! residual from end-to-end times. The first worker wins unless a later one is 1 ms better.
//!
//! Differences here: the rate is the code's 1 ms per character, four characters per token, and not the
//! engine's, which is a hundred times faster. With the engine's rate the residual, seconds of answer,
//! outweighs all work sent: one worker gets all requests until its answers arrive. The conversation trace at
//! 80 % of capacity then has a mean TTFT of 110 s instead of 1.2 s. LBGR's eviction policy (RLT) belongs to
//! the engine and is left out.

use std::collections::HashMap;

use parking_lot::Mutex;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest};
use warmroute_types::{Micros, WorkerId};

use super::missing_tokens;
use crate::watch::{End, Watcher};

/// Cost of a missing token: one millisecond per character.
const TOKEN_MS: f64 = 4.0;
const DECAY: f64 = 31.0 / 32.0;
const DECAY_EVERY: Micros = Micros::from_millis(20);
const FORGETTING: f64 = 0.95;
const HYSTERESIS_MS: f64 = 1.0;
/// Lower bound of every request, residual and sum.
const LEAST_MS: f64 = 1.0;
/// Initial variance: large enough that the first observation replaces the prior.
const VARIANCE_FIRST: f64 = 1e6;

/// LBGR's rule; see the module text.
#[derive(Default)]
pub struct Lbgr {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    choice: u64,
    now: Micros,
    /// State per worker index.
    workers: Vec<Learned>,
    /// Requests by choice, until their end.
    under_way: HashMap<u64, UnderWay>,
}

/// Learned state of one worker.
#[derive(Clone)]
struct Learned {
    backlog_ms: f64,
    /// Time up to which the backlog has decayed.
    decayed: Micros,
    residual_ms: f64,
    variance: f64,
}

/// A request between its choice and its end.
struct UnderWay {
    worker: WorkerId,
    asked: Micros,
    service_ms: f64,
    /// Expected time without the residual: service and backlog.
    plain_ms: f64,
}

impl Default for Learned {
    fn default() -> Learned {
        Learned { backlog_ms: 0.0, decayed: Micros::ZERO, residual_ms: 0.0, variance: VARIANCE_FIRST }
    }
}

impl Learned {
    fn decay(&mut self, now: Micros) {
        let steps = steps(now.since(self.decayed));
        self.backlog_ms = decayed_ms(self.backlog_ms, steps);
        self.decayed = Micros(self.decayed.0 + steps * DECAY_EVERY.0);
    }

    /// One step of recursive least squares for a constant.
    fn learn(&mut self, residual_ms: f64) {
        let gain = self.variance / (FORGETTING + self.variance);
        self.residual_ms += gain * (residual_ms.max(LEAST_MS) - self.residual_ms);
        self.variance = (1.0 - gain) * self.variance / FORGETTING;
    }
}

/// Service time of the tokens that a worker lacks.
fn service_ms(ask: &PolicyRequest, c: &Candidate) -> f64 {
    (f64::from(missing_tokens(ask, c)) * TOKEN_MS).max(LEAST_MS)
}

fn steps(elapsed: Micros) -> u64 {
    elapsed.0 / DECAY_EVERY.0
}

fn decayed_ms(ms: f64, steps: u64) -> f64 {
    ms * DECAY.powi(i32::try_from(steps).unwrap_or(i32::MAX))
}

impl Policy for Lbgr {
    fn name(&self) -> &'static str {
        "lbgr"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let mut memory = self.memory.lock();
        candidates.iter().for_each(|c| memory.decay(c.worker));
        let mut best = (0, f64::INFINITY);
        for (index, c) in candidates.iter().enumerate() {
            let expected_ms = memory.expected_ms(ask, c);
            if expected_ms + HYSTERESIS_MS < best.1 {
                best = (index, expected_ms);
            }
        }
        memory.send(ask, &candidates[best.0]);
        Choice { index: best.0, reason: "expected" }
    }
}

impl Memory {
    fn decay(&mut self, worker: WorkerId) {
        let workers = self.workers.len().max(worker.index() + 1);
        self.workers.resize(workers, Learned::default());
        self.workers[worker.index()].decay(self.now);
    }

    fn expected_ms(&self, ask: &PolicyRequest, c: &Candidate) -> f64 {
        let worker = &self.workers[c.worker.index()];
        (service_ms(ask, c) + worker.backlog_ms + worker.residual_ms).max(LEAST_MS)
    }

    fn send(&mut self, ask: &PolicyRequest, c: &Candidate) {
        let service_ms = service_ms(ask, c);
        let worker = &mut self.workers[c.worker.index()];
        let plain_ms = service_ms + worker.backlog_ms;
        worker.backlog_ms += service_ms;
        let under_way = UnderWay { worker: c.worker, asked: self.now, service_ms, plain_ms };
        self.under_way.insert(self.choice, under_way);
    }
}

impl Watcher for Lbgr {
    fn asked(&self, choice: u64, now: Micros) {
        let mut memory = self.memory.lock();
        (memory.choice, memory.now) = (choice, now);
    }

    fn ended(&self, choice: u64, end: End) {
        let mut memory = self.memory.lock();
        let Some(under_way) = memory.under_way.remove(&choice) else { return };
        let (End::Answered { at, .. } | End::Failed { at }) = end;
        let worker = &mut memory.workers[under_way.worker.index()];
        worker.decay(at);
        let took = at.since(under_way.asked);
        worker.backlog_ms = (worker.backlog_ms - decayed_ms(under_way.service_ms, steps(took))).max(0.0);
        if let End::Answered { .. } = end {
            worker.learn(took.as_millis_f64() - under_way.plain_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    fn chosen(rule: &Lbgr, choice: u64, at_ms: u64, held: &[(u32, u32)]) -> usize {
        rule.asked(choice, Micros::from_millis(at_ms));
        rule.choose(&thousand(choice), &holding(held)).index
    }

    fn answered(rule: &Lbgr, choice: u64, at_ms: u64) {
        rule.ended(choice, End::Answered { at: Micros::from_millis(at_ms), output_tokens: 10 });
    }

    #[test]
    fn sent_work_counts_until_it_decays_or_ends() {
        let rule = Lbgr::default();
        let held = [(900, 0), (500, 0)];
        // Each choice sends 100 tokens to the first worker; after some the second, which lacks 500, is
        // better.
        let firsts: Vec<usize> = (1..7).map(|choice| chosen(&rule, choice, 0, &held)).collect();
        assert_eq!(firsts, [0, 0, 0, 0, 0, 1]);
        assert_eq!(chosen(&rule, 7, 5_000, &held), 0, "five seconds are eight half-lives and more");
        (1..8).for_each(|choice| rule.ended(choice, End::Failed { at: Micros::from_millis(5_000) }));
        let left = rule.memory.lock().workers.iter().map(|worker| worker.backlog_ms).sum::<f64>();
        assert!(left < 1e-6, "nothing is under way: {left}");
    }

    #[test]
    fn a_later_worker_must_be_a_millisecond_better() {
        for (residual_ms, index) in [(0.0, 0), (0.9, 0), (1.1, 1)] {
            let rule = Lbgr::default();
            let first = Learned { residual_ms, ..Learned::default() };
            rule.memory.lock().workers = vec![first, Learned::default()];
            assert_eq!(chosen(&rule, 1, 0, &[(500, 0), (500, 0)]), index, "{residual_ms} ms");
        }
    }

    #[test]
    fn a_later_worker_is_chosen_for_a_better_match() {
        for (held, index) in [([(500, 0), (510, 0)], 1), ([(510, 0), (500, 0)], 0)] {
            assert_eq!(chosen(&Lbgr::default(), 1, 0, &held), index, "{held:?}");
        }
    }

    #[test]
    fn a_worker_whose_answers_take_longer_is_learned_and_forgotten() {
        let rule = Lbgr::default();
        let held = [(500, 0), (400, 0)];
        assert_eq!(chosen(&rule, 1, 0, &held), 0);
        answered(&rule, 1, 3_000);
        assert_eq!(chosen(&rule, 2, 60_000, &held), 1, "3 s where 2 were expected");
        for choice in 3..80 {
            let asked_ms = choice * 60_000;
            assert_eq!(chosen(&rule, choice, asked_ms, &[(500, 0)]), 0, "the only worker");
            answered(&rule, choice, asked_ms + 2_000);
        }
        assert_eq!(chosen(&rule, 80, 6_000_000, &held), 0);
    }

    #[test]
    fn the_gain_converges_to_the_forgetting_rate() {
        let mut learned = Learned::default();
        learned.learn(10.0);
        assert!((learned.residual_ms - 10.0).abs() < 0.02, "the first is believed");
        (0..500).for_each(|_| learned.learn(10.0));
        learned.learn(30.0);
        assert!(
            (learned.residual_ms - 11.0).abs() < 0.01,
            "a twentieth of the observation: {}",
            learned.residual_ms
        );
    }
}
