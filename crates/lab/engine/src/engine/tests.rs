//! Rules of the scheduler and the cache, with blocks of four tokens to keep numbers small.

use super::*;
use crate::{BlockName, Memory, PrefixCaching, Profile, Tier};

mod caching;
mod lifecycle;
mod properties;
mod runs;
mod scheduling;
mod tiers;

const BLOCK: u32 = 4;

fn config(blocks: u64) -> Config {
    let profile = Profile::Llama3_1_8b;
    Config { block_size: BLOCK, kv_tokens: blocks * u64::from(BLOCK), ..Config::for_profile(profile) }
}

fn engine(blocks: u64) -> Engine {
    Engine::new(config(blocks)).unwrap()
}

/// A block of the text called `text`. Texts share nothing.
fn name(text: u64, block: u64) -> BlockName {
    BlockName((text << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn request(text: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let blocks = u64::from((prompt_tokens + output_tokens) / BLOCK);
    Request { chain: (0..blocks).map(|block| name(text, block)).collect(), prompt_tokens, output_tokens }
}

/// A request that starts with `shared` blocks of text 0.
fn branch(shared: u64, text: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let mut request = request(text, prompt_tokens, output_tokens);
    for (block, shared) in request.chain.iter_mut().zip((0..shared).map(|block| name(0, block))) {
        *block = shared;
    }
    request
}

fn submit(engine: &mut Engine, request: Request) -> SequenceId {
    engine.submit(Micros::ZERO, request).unwrap()
}

/// Runs one step. Returns no events if there is nothing to do.
fn step(engine: &mut Engine) -> Vec<Happened> {
    let mut happened = Vec::new();
    engine.begin_step(Micros::ZERO);
    engine.finish_step(&mut happened);
    engine.scheduler.check();
    happened
}

/// Runs until the engine is idle.
fn run(engine: &mut Engine) -> Vec<Happened> {
    let mut happened = Vec::new();
    while engine.begin_step(Micros::ZERO).is_some() {
        engine.finish_step(&mut happened);
    }
    engine.scheduler.check();
    happened
}

/// The events with all queueing times set to zero.
fn without_times(mut happened: Vec<Happened>) -> Vec<Happened> {
    for event in &mut happened {
        if let Happened::Started { queued, .. } = event {
            *queued = Micros::ZERO;
        }
    }
    happened
}

fn started(happened: &[Happened]) -> Vec<(SequenceId, u32)> {
    let started = |happened: &Happened| match *happened {
        Happened::Started { id, cached_tokens, .. } => Some((id, cached_tokens)),
        _ => None,
    };
    happened.iter().filter_map(started).collect()
}

fn tokens(happened: &[Happened]) -> Vec<(SequenceId, u32)> {
    let token = |happened: &Happened| match *happened {
        Happened::Token { id, index } => Some((id, index)),
        _ => None,
    };
    happened.iter().filter_map(token).collect()
}

fn stored(happened: &[Happened]) -> Vec<(SequenceId, u32, u32)> {
    let stored = |happened: &Happened| match *happened {
        Happened::Stored { id, first_block, blocks } => Some((id, first_block, blocks)),
        _ => None,
    };
    happened.iter().filter_map(stored).collect()
}

fn removed(happened: &[Happened]) -> Vec<BlockName> {
    let removed = |happened: &Happened| match *happened {
        Happened::Removed { name } => Some(name),
        _ => None,
    };
    happened.iter().filter_map(removed).collect()
}

fn preempted(happened: &[Happened]) -> Vec<SequenceId> {
    let preempted = |happened: &Happened| match *happened {
        Happened::Preempted { id } => Some(id),
        _ => None,
    };
    happened.iter().filter_map(preempted).collect()
}
