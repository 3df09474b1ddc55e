//! Requests in the order in which they would arrive without any queueing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::hash::BuildHasherDefault;

use warmroute_engine::{BlockName, Config as EngineConfig, StepCost, StepWork};
use warmroute_types::Micros;

use crate::config::Config;
use crate::directory::AlreadyHashed;
use crate::prompt::{block_names, tokens};
use crate::session::Session;

/// One request.
#[derive(Clone, Debug)]
pub struct Access {
    pub asked: Micros,
    pub prompt_tokens: u32,
    /// Blocks of the prompt that a cache may serve; never the last token's.
    pub usable: u32,
    /// All full blocks of prompt and answer.
    pub chain: Vec<BlockName>,
    /// Blocks that an infinite cache holds.
    pub infinite_hits: u32,
    /// Time to first token alone, with those hits.
    pub ttft: Micros,
    pub e2e: Micros,
}

/// All requests in order.
pub fn accesses(config: &Config, sessions: &[Session]) -> Vec<Access> {
    let floor = Floor::new(config);
    let mut seen: HashSet<u64, BuildHasherDefault<AlreadyHashed>> = HashSet::default();
    let mut accesses = Vec::new();
    let mut due: BinaryHeap<Reverse<(Micros, usize, usize)>> =
        sessions.iter().enumerate().map(|(number, session)| Reverse((session.starts, number, 0))).collect();
    while let Some(Reverse((asked, number, turn))) = due.pop() {
        let turns = &sessions[number].turns;
        let access = floor.access(asked, &turns[turn], &mut seen);
        // A request that no engine accepts appears in no run, and ends its session.
        let Some(access) = access else { continue };
        if let Some(next) = turns.get(turn + 1) {
            due.push(Reverse((asked + access.e2e + next.think, number, turn + 1)));
        }
        accesses.push(access);
    }
    accesses
}

/// The fastest possible answers: the fleet's fastest engine, idle.
struct Floor {
    engine: EngineConfig,
    cost: StepCost,
    hop: Micros,
}

impl Floor {
    fn new(config: &Config) -> Floor {
        let fastest = config.fleet.iter().max_by_key(|engine| engine.speed_percent);
        let engine = fastest.expect("a validated config has an engine").clone();
        Floor { cost: engine.profile.cost().at_speed(engine.speed_percent), engine, hop: config.hop }
    }

    fn access(
        &self,
        asked: Micros,
        turn: &crate::Turn,
        seen: &mut HashSet<u64, BuildHasherDefault<AlreadyHashed>>,
    ) -> Option<Access> {
        let block_tokens = self.engine.block_size;
        let prompt_tokens = tokens(&turn.prompt);
        if u64::from(prompt_tokens) + u64::from(tokens(&turn.answer)) > self.engine.kv_tokens {
            return None;
        }
        let chain = block_names(&turn.prompt, &turn.answer, block_tokens);
        let usable = (prompt_tokens - 1) / block_tokens;
        let known = chain[..usable as usize].iter().take_while(|name| seen.contains(&name.0)).count();
        let infinite_hits = known as u32;
        seen.extend(chain.iter().map(|name| name.0));
        let hops = Micros(2 * self.hop.0);
        let ttft = prefill(&self.cost, &self.engine, infinite_hits * block_tokens, prompt_tokens) + hops;
        let e2e = ttft + self.decode(prompt_tokens, tokens(&turn.answer));
        Some(Access { asked, prompt_tokens, usable, chain, infinite_hits, ttft, e2e })
    }

    fn decode(&self, prompt_tokens: u32, output_tokens: u32) -> Micros {
        let steps = 1..output_tokens;
        let step = |token: u32| self.cost.of(&StepWork::of_decodes(1, u64::from(prompt_tokens + token)));
        steps.map(step).fold(Micros::ZERO, |sum, step| sum + step)
    }
}

/// Time of a prefill alone, in the engine's chunks.
pub fn prefill(cost: &StepCost, engine: &EngineConfig, cached_tokens: u32, prompt_tokens: u32) -> Micros {
    let (mut computed, mut time) = (cached_tokens, Micros::ZERO);
    while computed < prompt_tokens {
        let chunk = (prompt_tokens - computed).min(engine.step_tokens_max);
        let mut work = StepWork::default();
        work.add(computed, chunk);
        time = time + cost.of(&work);
        computed += chunk;
    }
    time
}
