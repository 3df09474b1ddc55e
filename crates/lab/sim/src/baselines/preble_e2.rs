//! Preble's E2: exploit a cache, or explore.
//!
//! As published (Srivatsa et al., "Preble", ICLR 2025, and WukLab/preble): a prompt matched by more than half
//! goes to the cheapest holder of the match, any other to the cheapest worker. A worker's cost over three
//! minutes is the prefill time of the tokens it missed, plus active requests × median answer × median time
//! per token. After 50 requests per worker, if the most expensive worker costs more than 1.5 times the
//! cheapest, its cheapest subtrees with more than one request move over, as long as the order of the two does
//! not flip. A worker's only subtree is copied instead, once its first tokens take twice as long as before.
//! Then the next most expensive worker follows.
//!
//! Differences here: policies see no prefix tree, so a subtree is the requests with one prefix key (1,024
//! tokens, or a short prompt's first turn). Evictions that a choice would cause are not part of the cost. A
//! moved or copied subtree is remembered while requests for it arrive. **It herds at first**: a prefix that
//! all requests share stays where it was computed first until its first tokens slow down.

mod window;

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::Mutex;
use warmroute_engine::Config as EngineConfig;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};
use warmroute_types::{Micros, WorkerId};

use self::window::Window;
use super::machines::Machines;
use crate::watch::{End, Watcher};

/// Requests per worker before subtrees may move.
const WARM_UP_REQUESTS: u64 = 50;
/// Cost ratio of the most and least loaded worker from which subtrees move.
const IMBALANCE: f64 = 1.5;
/// Minimum requests of a subtree that moves.
const MOVED_REQUESTS_MIN: u32 = 2;
/// Answers over which medians are taken.
const ANSWERS_MAX: usize = 200;
/// Preble's initial lengths and times, before the first answer.
const OUTPUT_TOKENS_FIRST: f64 = 45.0;
const TPOT_MS_FIRST: f64 = 150.0;

/// Preble's rule; see the module text.
#[derive(Default)]
pub struct PrebleE2 {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    machines: Machines,
    choice: u64,
    now: Micros,
    sent: u64,
    window: Window,
    /// Workers of the subtrees that were moved or replicated.
    homes: BTreeMap<u64, Vec<WorkerId>>,
    under_way: HashMap<u64, UnderWay>,
    output_tokens: VecDeque<f64>,
    /// Recent times per output token, per worker index.
    tpot_ms: Vec<VecDeque<f64>>,
}

/// A request between its choice and its end.
struct UnderWay {
    worker: WorkerId,
    subtree: u64,
    asked: Micros,
    first_token: Option<Micros>,
}

impl Policy for PrebleE2 {
    fn name(&self) -> &'static str {
        "preble_e2"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let mut memory = self.memory.lock();
        memory.forget();
        let subtree = ask.prefix_key.unwrap_or(0);
        let matched = candidates.iter().map(|c| c.overlap_tokens).max().unwrap_or(0);
        let exploits = matched > ask.prompt_tokens.saturating_sub(matched);
        let holders = if exploits { memory.holders(subtree, matched, candidates) } else { Vec::new() };
        let is_out = |c: &Candidate| exploits && !holders.contains(&c.worker);
        let costs_ms = memory.costs_ms(candidates, 1);
        let index = least_by(candidates, ask.random, |c| (is_out(c), costs_ms[&c.worker]));
        memory.send(ask, &candidates[index], subtree);
        memory.rebalance(candidates);
        Choice { index, reason: if exploits { "exploit" } else { "explore" } }
    }
}

impl Memory {
    fn forget(&mut self) {
        self.window.move_to(self.now);
        let window = &self.window;
        self.homes.retain(|&subtree, _| window.has(subtree));
    }

    /// Workers to exploit: the homes of a moved or copied subtree, or else the workers with the longest
    /// match.
    fn holders(&self, subtree: u64, matched: u32, candidates: &[Candidate]) -> Vec<WorkerId> {
        let is_here = |worker: &WorkerId| candidates.iter().any(|c| c.worker == *worker);
        let homes = self.homes.get(&subtree).into_iter().flatten().copied().filter(is_here);
        let homes: Vec<WorkerId> = homes.collect();
        if !homes.is_empty() {
            return homes;
        }
        candidates.iter().filter(|c| c.overlap_tokens == matched).map(|c| c.worker).collect()
    }

    /// Cost per worker over subtrees with at least `requests_min` requests.
    fn costs_ms(&self, candidates: &[Candidate], requests_min: u32) -> BTreeMap<WorkerId, f64> {
        let output_tokens = median(&self.output_tokens).unwrap_or(OUTPUT_TOKENS_FIRST);
        let cost_ms = |c: &Candidate| {
            let prefill_ms = self.prefill_ms(c.worker, requests_min);
            prefill_ms + f64::from(c.in_flight) * output_tokens * self.tpot_ms(c.worker)
        };
        candidates.iter().map(|c| (c.worker, cost_ms(c))).collect()
    }

    fn prefill_ms(&self, worker: WorkerId, requests_min: u32) -> f64 {
        let counted = self.window.subtrees(worker).filter(|(_, tally)| tally.requests >= requests_min);
        Micros(counted.map(|(_, tally)| tally.prefill_us).sum()).as_millis_f64()
    }

    fn tpot_ms(&self, worker: WorkerId) -> f64 {
        self.tpot_ms.get(worker.index()).and_then(median).unwrap_or(TPOT_MS_FIRST)
    }

    fn send(&mut self, ask: &PolicyRequest, c: &Candidate, subtree: u64) {
        let prefill_ms = self.machines.at(c.worker).prefill_ms(c.overlap_tokens, ask.prompt_tokens);
        self.window.send(self.now, c.worker, subtree, Micros::from_millis_f64(prefill_ms).0);
        let under_way = UnderWay { worker: c.worker, subtree, asked: self.now, first_token: None };
        self.under_way.insert(self.choice, under_way);
        self.sent += 1;
    }

    /// Relieves the most loaded worker, then the next, while the least loaded one is far cheaper.
    fn rebalance(&mut self, candidates: &[Candidate]) {
        if self.sent < WARM_UP_REQUESTS * candidates.len() as u64 {
            return;
        }
        let costs_ms = self.costs_ms(candidates, MOVED_REQUESTS_MIN);
        let mut by_cost: Vec<(WorkerId, f64)> = costs_ms.into_iter().collect();
        by_cost.sort_by(|a, b| b.1.total_cmp(&a.1));
        let Some((light, mut light_ms)) = by_cost.pop() else { return };
        for (heavy, heavy_ms) in by_cost {
            if heavy_ms <= IMBALANCE * light_ms {
                return;
            }
            light_ms += self.relieve(heavy, heavy_ms, light, light_ms);
        }
    }

    /// Moves work from one worker to another. Returns the cost moved.
    fn relieve(&mut self, heavy: WorkerId, heavy_ms: f64, light: WorkerId, light_ms: f64) -> f64 {
        let movable = self.movable(heavy);
        if let [(subtree, cost_ms)] = movable[..] {
            return self.copy(subtree, cost_ms, heavy, light);
        }
        let mut moved_ms = 0.0;
        for (subtree, cost_ms) in movable {
            let after_ms = moved_ms + cost_ms;
            if heavy_ms - after_ms < light_ms + after_ms {
                break;
            }
            moved_ms = after_ms;
            self.window.reassign(subtree, heavy, light);
            self.homes.insert(subtree, vec![light]);
            if heavy_ms - moved_ms < IMBALANCE * (light_ms + moved_ms) {
                break;
            }
        }
        moved_ms
    }

    /// Copies a worker's only subtree to another worker if its first tokens have slowed down.
    fn copy(&mut self, subtree: u64, cost_ms: f64, heavy: WorkerId, light: WorkerId) -> f64 {
        let homes = self.homes.entry(subtree).or_insert_with(|| vec![heavy]);
        if homes.contains(&light) || !self.window.has_slowed_down(heavy, subtree, self.now) {
            return 0.0;
        }
        homes.push(light);
        self.window.forget_first_tokens(heavy, subtree);
        cost_ms / 2.0
    }

    /// A worker's subtrees, cheapest first.
    fn movable(&self, worker: WorkerId) -> Vec<(u64, f64)> {
        let often = self.window.subtrees(worker).filter(|(_, tally)| tally.requests >= MOVED_REQUESTS_MIN);
        let mut movable: Vec<(u64, u64)> =
            often.map(|(subtree, tally)| (tally.prefill_us, subtree)).collect();
        movable.sort_unstable();
        movable.into_iter().map(|(us, subtree)| (subtree, Micros(us).as_millis_f64())).collect()
    }

    fn answered(&mut self, under_way: &UnderWay, at: Micros, output_tokens: u32) {
        keep(&mut self.output_tokens, f64::from(output_tokens));
        if let Some(first_token) = under_way.first_token
            && output_tokens > 1
        {
            let tpot_ms = at.since(first_token).as_millis_f64() / f64::from(output_tokens - 1);
            let index = under_way.worker.index();
            self.tpot_ms.resize(self.tpot_ms.len().max(index + 1), VecDeque::new());
            keep(&mut self.tpot_ms[index], tpot_ms);
        }
    }
}

impl Watcher for PrebleE2 {
    fn joined(&self, worker: WorkerId, engine: &EngineConfig) {
        self.memory.lock().machines.set(worker, engine);
    }

    fn asked(&self, choice: u64, now: Micros) {
        let mut memory = self.memory.lock();
        (memory.choice, memory.now) = (choice, now);
    }

    fn first_token(&self, choice: u64, now: Micros) {
        let memory = &mut *self.memory.lock();
        if let Some(under_way) = memory.under_way.get_mut(&choice) {
            under_way.first_token = Some(now);
            let waited_ms = now.since(under_way.asked).as_millis_f64();
            memory.window.first_token(now, under_way.worker, under_way.subtree, waited_ms);
        }
    }

    fn ended(&self, choice: u64, end: End) {
        let mut memory = self.memory.lock();
        let Some(under_way) = memory.under_way.remove(&choice) else { return };
        if let End::Answered { at, output_tokens } = end {
            memory.answered(&under_way, at, output_tokens);
        }
    }
}

fn keep(recent: &mut VecDeque<f64>, value: f64) {
    if recent.len() == ANSWERS_MAX {
        recent.pop_front();
    }
    recent.push_back(value);
}

fn median(recent: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = recent.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    struct Run {
        rule: PrebleE2,
        choices: u64,
    }

    impl Run {
        fn new() -> Run {
            Run { rule: PrebleE2::default(), choices: 0 }
        }

        /// Makes a choice and reports its first token and end after `ttft_ms`.
        fn one(&mut self, at_ms: u64, subtree: u64, held: &[(u32, u32)], ttft_ms: u64) -> Choice {
            self.choices += 1;
            self.rule.asked(self.choices, Micros::from_millis(at_ms));
            let ask = PolicyRequest { prefix_key: Some(subtree), ..thousand(self.choices) };
            let choice = self.rule.choose(&ask, &holding(held));
            self.rule.first_token(self.choices, Micros::from_millis(at_ms + ttft_ms));
            let end = End::Answered { at: Micros::from_millis(at_ms + ttft_ms + 100), output_tokens: 11 };
            self.rule.ended(self.choices, end);
            choice
        }
    }

    #[test]
    fn more_than_half_matched_is_exploited_and_less_explored() {
        let cases = [
            (vec![(501, 3), (0, 0)], 0, "exploit"),
            (vec![(500, 3), (0, 0)], 1, "explore"),
            (vec![(700, 3), (700, 1), (0, 0)], 1, "exploit"),
            (vec![(700, 9), (600, 0), (0, 0)], 0, "exploit"),
            (vec![(0, 2), (0, 1), (0, 3)], 1, "explore"),
        ];
        for (held, index, reason) in cases {
            assert_eq!(Run::new().one(0, 1, &held, 20), Choice { index, reason }, "{held:?}");
        }
    }

    #[test]
    fn the_cost_covers_the_last_three_minutes() {
        let mut run = Run::new();
        let first = run.one(0, 1, &[(0, 0), (0, 0)], 20).index;
        assert_eq!(run.one(1_000, 2, &[(0, 0), (0, 0)], 20).index, 1 - first);
        // Both have computed a thousand tokens; the first worker's leave the window sooner.
        assert_eq!(run.one(180_500, 3, &[(0, 0), (0, 0)], 20).index, first);
    }

    #[test]
    fn cheap_subtrees_move_from_a_worker_with_one_and_a_half_times_the_cost() {
        let mut run = Run::new();
        for round in 0..60 {
            // Subtrees 1 and 2 are on the first worker and recompute 400 and 100 tokens.
            run.one(round, 1, &[(600, 0), (0, 0)], 20);
            run.one(round, 2, &[(900, 0), (0, 0)], 20);
        }
        assert_eq!(run.one(100, 2, &[(900, 0), (0, 0)], 20), Choice { index: 1, reason: "exploit" });
        assert_eq!(run.one(100, 1, &[(600, 0), (0, 0)], 20), Choice { index: 0, reason: "exploit" });
        // After three minutes without a request the subtree is where its cache is.
        assert_eq!(run.one(400_000, 2, &[(900, 0), (0, 0)], 20).index, 0);
    }

    #[test]
    fn the_only_subtree_of_a_worker_is_copied_when_it_has_become_slow() {
        let mut run = Run::new();
        let held = [(900, 0), (0, 0)];
        (0..100).for_each(|number| assert_eq!(run.one(number * 100, 1, &held, 20).index, 0));
        assert_eq!(run.one(120_000, 1, &held, 39).index, 0);
        assert_eq!(run.one(121_000, 1, &held, 500).index, 0);
        // This request still goes there, and detects that the halves of the window differ.
        assert_eq!(run.one(122_000, 1, &held, 20).index, 0);
        assert_eq!(run.one(123_000, 1, &held, 20).index, 1);
    }
}
