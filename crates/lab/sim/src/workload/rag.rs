//! Questions over retrieved passages, whose position decides what can be reused.
//!
//! Before the history, each turn's new passages are near the prompt's start, and the history after them never
//! hits. After the history, the conversation so far stays a prefix. Passages come from a library of a
//! thousand with uneven popularity.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::{Random, mix};
use crate::{Piece, Session, Thread, Turn, tokens};

/// Position of a turn's passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassageOrder {
    BeforeHistory,
    AfterHistory,
}

const RATE_PER_S: f64 = 12.0;
const REQUESTS: u64 = 12_000;
const SYSTEM_TOKENS: u32 = 300;
const PASSAGES: usize = 4;
const PASSAGE_TOKENS: u32 = 450;
const LIBRARY: f64 = 1_000.0;

/// Generates the conversations.
pub fn sessions(scale: WorkloadScale, place: PassageOrder) -> Sessions {
    let mut random = Random::new(scale.seed, 601);
    let system = Piece { content: random.bits(), tokens: SYSTEM_TOKENS };
    let library = random.bits();
    let mut now = Micros::ZERO;
    let stream = std::iter::repeat_with(move || {
        now = now + random.gap(RATE_PER_S * scale.rate);
        conversation(now, system, library, place, &mut random)
    });
    up_to(stream, scale.requests.unwrap_or(REQUESTS))
}

fn conversation(
    starts: Micros,
    system: Piece,
    library: u64,
    place: PassageOrder,
    random: &mut Random,
) -> Session {
    let key = random.bits();
    let count = (random.exponential(3.0).round() as usize + 1).min(12);
    let (mut history, mut first_tokens) = (Vec::new(), 0);
    let turns = (0..count).map(|turn| {
        let question = Piece { content: random.bits(), tokens: random.tokens(40.0, 0.6, 5, 300) };
        let answer = Piece { content: random.bits(), tokens: random.tokens(110.0, 0.6, 5, 600) };
        let passages: Vec<Piece> = (0..PASSAGES).map(|_| passage(library, random)).collect();
        let prompt = match place {
            PassageOrder::BeforeHistory => [&[system], &passages[..], &history, &[question]].concat(),
            PassageOrder::AfterHistory => [&[system], &history[..], &passages, &[question]].concat(),
        };
        history.extend([question, answer]);
        if turn == 0 {
            first_tokens = tokens(&prompt);
        }
        let think = Micros::from_millis_f64(random.exponential(12_000.0));
        let thread = Thread { key: Some(key), first_tokens, system_tokens: SYSTEM_TOKENS };
        Turn { think, thread, prompt, answer: vec![answer] }
    });
    Session { starts, turns: turns.collect() }
}

/// A random passage; the n-th most popular is drawn about 1/n as often as the first.
fn passage(library: u64, random: &mut Random) -> Piece {
    let rank = LIBRARY.powf(random.share()) as u64;
    Piece { content: mix(library ^ rank), tokens: PASSAGE_TOKENS }
}
