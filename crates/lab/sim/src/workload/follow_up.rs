//! One question and one follow-up: the setting of the 1/N law.
//!
//! No two conversations share a prompt, so a follow-up hits only on the engine that answered its question. A router
//! that does not know which one finds it with probability 1/N.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::Random;
use crate::{Piece, Session, Thread, Turn};

const CONVERSATIONS_PER_S: f64 = 5.0;
const REQUESTS: u64 = 10_000;
const QUESTION_TOKENS: u32 = 1_000;
const ANSWER_TOKENS: u32 = 104;
const FOLLOW_UP_TOKENS: u32 = 96;
const THINK_S: f64 = 10.0;

/// Generates the conversations.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 711);
    let mut now = Micros::ZERO;
    let stream = std::iter::repeat_with(move || {
        now = now + random.gap(CONVERSATIONS_PER_S * scale.rate);
        conversation(now, &mut random)
    });
    up_to(stream, scale.requests.unwrap_or(REQUESTS))
}

fn conversation(starts: Micros, random: &mut Random) -> Session {
    let thread = Thread { key: Some(random.bits()), first_tokens: QUESTION_TOKENS, system_tokens: 0 };
    let mut text = |tokens| Piece { content: random.bits(), tokens };
    let (question, follow_up) = (text(QUESTION_TOKENS), text(FOLLOW_UP_TOKENS));
    let (answer, last) = (text(ANSWER_TOKENS), text(ANSWER_TOKENS));
    let think = Micros::from_millis_f64(random.exponential(THINK_S * 1_000.0));
    let first = Turn { think: Micros::ZERO, thread, prompt: vec![question], answer: vec![answer] };
    let second = Turn { think, thread, prompt: vec![question, answer, follow_up], answer: vec![last] };
    Session { starts, turns: vec![first, second] }
}
