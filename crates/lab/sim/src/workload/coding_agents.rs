//! Coding agents: contexts of tens of thousands of tokens, tools that take from a second to minutes, and sub-agents that
//! start several at once with the shared tool definitions, not with their parent's context.
//!
//! A parent pauses while its sub-agents work, then goes on with their reports. Long pauses are what evicts a context.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::Random;
use crate::{Piece, Session, Thread, Turn, tokens};

const AGENTS_PER_S: f64 = 0.1;
const REQUESTS: u64 = 6_000;
/// Definitions of tools and the system prompt, the same for all users.
const TOOLS_TOKENS: u32 = 16_000;
const TURNS: usize = 36;
const SUBAGENT_TURNS: usize = 8;
/// Turns of a parent after which sub-agents start, and how many at once.
const FORKS: [(usize, usize); 2] = [(6, 3), (20, 4)];
/// How long a parent waits for its sub-agents: about as long as their turns take.
const FORK_PAUSE_MS: f64 = 45_000.0;
/// One tool call in so many is a build or a test run, and one in so many waits for a person.
const BUILD_EVERY: u64 = 8;
const PERSON_EVERY: u64 = 24;

/// Agents and their sub-agents in the order of their start.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 502);
    let tools = Piece { content: random.bits(), tokens: TOOLS_TOKENS };
    let mut now = Micros::ZERO;
    let mut waiting: Vec<Session> = Vec::new();
    let stream = std::iter::repeat_with(move || {
        while waiting.first().is_none_or(|session| session.starts > now) {
            waiting.extend(family(now, tools, &mut random));
            now = now + random.gap(AGENTS_PER_S * scale.rate);
            waiting.sort_by_key(|session| session.starts);
        }
        waiting.remove(0)
    });
    up_to(stream, scale.requests.unwrap_or(REQUESTS))
}

/// An agent and its sub-agents. These start when their parent is expected to have come so far.
fn family(starts: Micros, tools: Piece, random: &mut Random) -> Vec<Session> {
    let task = Piece { content: random.bits(), tokens: random.tokens(6_000.0, 0.8, 500, 40_000) };
    let parent = agent(starts, vec![tools, task], TURNS, random);
    let mut family = Vec::new();
    for (turn, count) in FORKS {
        let before = parent.turns.iter().take(turn + 1);
        let fork = before.fold(starts, |at, turn| at + turn.think + Micros::from_secs(2));
        for _ in 0..count {
            let order = Piece { content: random.bits(), tokens: random.tokens(800.0, 0.6, 100, 5_000) };
            family.push(agent(fork, vec![tools, order], SUBAGENT_TURNS, random));
        }
    }
    family.push(parent);
    family
}

fn agent(starts: Micros, mut context: Vec<Piece>, turns: usize, random: &mut Random) -> Session {
    let (key, first_tokens) = (random.bits(), tokens(&context));
    let mut list = Vec::with_capacity(turns);
    for turn in 0..turns {
        if turn > 0 {
            context.push(Piece { content: random.bits(), tokens: random.tokens(900.0, 1.2, 30, 20_000) });
        }
        let answer = Piece { content: random.bits(), tokens: random.tokens(220.0, 1.0, 10, 4_000) };
        let thread = Thread { key: Some(key), first_tokens, system_tokens: TOOLS_TOKENS };
        let has_forked = turns == TURNS && FORKS.iter().any(|(fork, _)| turn == fork + 1);
        let think = if has_forked { Micros::from_millis_f64(FORK_PAUSE_MS) } else { pause(random) };
        list.push(Turn { think, thread, prompt: context.clone(), answer: vec![answer] });
        context.push(answer);
    }
    Session { starts, turns: list }
}

/// How long a tool takes.
fn pause(random: &mut Random) -> Micros {
    let mean_ms = match random.bits() {
        bits if bits % PERSON_EVERY == 0 => 180_000.0,
        bits if bits % BUILD_EVERY == 0 => 30_000.0,
        _ => 1_200.0,
    };
    Micros::from_millis_f64(random.exponential(mean_ms))
}
