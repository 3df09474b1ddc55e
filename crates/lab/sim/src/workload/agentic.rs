//! Agents with published statistics: input p50/p90/p99 of 195k/521k/849k tokens, output 317/1.7k/7.6k, gaps
//! of 2 s/24 s/11 min, 107 turns, and half of the requests in sub-agents that start with their parent's
//! context.
//!
//! A context grows by each answer and each tool result, so nearly all of it is reused. Contexts end at
//! 800,000 tokens, because an engine cannot serve a prompt larger than its cache.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::Random;
use crate::{Piece, Session, Thread, Turn, tokens};

const AGENTS_PER_S: f64 = 0.012;
const REQUESTS: u64 = 6_000;
const TURNS: usize = 54;
const CONTEXT_MAX_TOKENS: u32 = 800_000;

/// Agents in the order of their start, each followed by its sub-agents.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 501);
    let tools = Piece { content: random.bits(), tokens: 12_000 };
    let mut now = Micros::ZERO;
    let mut waiting: Vec<Session> = Vec::new();
    let stream = std::iter::repeat_with(move || {
        // A family is generated whole; its sub-agents start later and are emitted when their time comes.
        let next_family = now;
        if waiting.iter().all(|session| session.starts > next_family) || waiting.is_empty() {
            waiting.extend(family(now, tools, &mut random));
            now = now + random.gap(AGENTS_PER_S * scale.rate);
            waiting.sort_by_key(|session| session.starts);
        }
        waiting.remove(0)
    });
    up_to(stream, scale.requests.unwrap_or(REQUESTS))
}

/// An agent and its sub-agents, which together send about as many requests as it does.
fn family(starts: Micros, tools: Piece, random: &mut Random) -> Vec<Session> {
    let task = Piece { content: random.bits(), tokens: random.tokens(60_000.0, 0.8, 4_000, 300_000) };
    let base = vec![tools, task];
    let mut family = vec![agent(starts, base.clone(), TURNS, random)];
    for _ in 0..3 {
        let later = starts + Micros::from_millis_f64(random.exponential(120_000.0));
        family.push(agent(later, base.clone(), TURNS / 3, random));
    }
    family
}

fn agent(starts: Micros, mut context: Vec<Piece>, turns: usize, random: &mut Random) -> Session {
    let key = random.bits();
    let first_tokens = tokens(&context);
    let mut list = Vec::with_capacity(turns);
    let mut context_tokens = first_tokens;
    for _ in 0..turns {
        let observed = Piece { content: random.bits(), tokens: random.tokens(2_600.0, 1.2, 50, 60_000) };
        let answer = Piece { content: random.bits(), tokens: random.tokens(317.0, 1.31, 10, 12_000) };
        if context_tokens + observed.tokens + answer.tokens > CONTEXT_MAX_TOKENS {
            break;
        }
        context.push(observed);
        let thread = Thread { key: Some(key), first_tokens, system_tokens: context[0].tokens };
        let think = Micros::from_millis_f64(random.log_normal(2_000.0, 1.94));
        list.push(Turn { think, thread, prompt: context.clone(), answer: vec![answer] });
        context.push(answer);
        context_tokens += observed.tokens + answer.tokens;
    }
    Session { starts, turns: list }
}
