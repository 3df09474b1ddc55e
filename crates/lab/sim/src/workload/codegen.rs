//! Code generation, as llm-d publishes it: clients that replay conversations over long system prompts, one
//! after another.
//!
//! System prompts of 3,000 to 100,000 tokens (mean 55,000), 2 to 20 turns (mean 6), 100 to 10,000 tokens in
//! (1,500) and 50 to 4,000 out (800) per turn. The load is the number of clients, 40 by default: a client
//! starts its next conversation when the last one ends. All conversations share fifty system prompts.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale};
use crate::random::{Random, mix};
use crate::{Piece, Session, Thread, Turn, tokens};

const CLIENTS: f64 = 40.0;
const SYSTEMS: u64 = 50;
const REQUESTS: u64 = 4_000;

/// Generates one session per client.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let clients = (CLIENTS * scale.rate).round().max(1.0) as u64;
    let each = scale.requests.unwrap_or(REQUESTS).div_ceil(clients);
    let texts = Random::new(scale.seed, 401).bits();
    Box::new((0..clients).map(move |client| {
        let mut random = Random::new(scale.seed, 402 + client);
        let mut turns = Vec::new();
        while (turns.len() as u64) < each {
            converse(texts, &mut random, &mut turns);
        }
        // Clients start one after another, as a load generator's do.
        Session { starts: Micros::from_millis(client * 100), turns }
    }))
}

fn converse(texts: u64, random: &mut Random, turns: &mut Vec<Turn>) {
    let key = random.bits();
    let system = random.bits() % SYSTEMS;
    let system_tokens = 3_000 + (mix(texts ^ system ^ (1 << 50)) % 97_001) as u32;
    let mut history = vec![Piece { content: mix(texts ^ system), tokens: system_tokens.min(107_000) }];
    let mut first_tokens = 0;
    let count = (random.exponential(4.0).round() as usize + 2).min(20);
    for turn in 0..count {
        history.push(Piece { content: random.bits(), tokens: random.tokens(1_000.0, 0.9, 100, 10_000) });
        let answer = Piece { content: random.bits(), tokens: random.tokens(560.0, 0.85, 50, 4_000) };
        let prompt = history.clone();
        history.push(answer);
        if turn == 0 {
            first_tokens = tokens(&prompt);
        }
        let thread = Thread { key: Some(key), first_tokens, system_tokens: history[0].tokens };
        turns.push(Turn { think: Micros::ZERO, thread, prompt, answer: vec![answer] });
    }
}
