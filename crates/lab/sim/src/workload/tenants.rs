//! Tenants with long system prompts: 24 system prompts of 6,000 tokens, conversations of four turns, short answers.
//!
//! The traffic of the GPU study: three conversations per second, a question of 200 tokens every two seconds,
//! answers of 32 tokens. Some tenants are more popular than others. The fleet of the study is four 8B engines
//! with a quarter of an H200 each and 96,000 tokens of cache: here that is `--workers 4 --speed-percent 25
//! --kv-tokens 96000`.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::{Random, mix};
use crate::session::Thread;
use crate::{Piece, Session, Turn, tokens};

const TENANTS: u64 = 24;
/// Exponent of tenant popularity: a tenant's number is a uniform draw to this power, so low numbers are more
/// popular.
const POPULARITY: f64 = 1.6;
const SYSTEM_TOKENS: u32 = 6_000;
const QUESTION_TOKENS: u32 = 200;
const ANSWER_TOKENS: u32 = 32;
const TURNS: usize = 4;
const THINK_S: f64 = 2.0;
const CONVERSATIONS_PER_S: f64 = 3.0;
const REQUESTS: u64 = 1_000;

/// Generates the conversations, in the order of their start.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 307);
    let texts = random.bits();
    let mut starts = Micros::ZERO;
    let conversations = (0_u64..).map(move |number| {
        starts = starts + random.gap(CONVERSATIONS_PER_S * scale.rate);
        conversation(number, starts, texts, &mut random)
    });
    up_to(conversations, scale.requests.unwrap_or(REQUESTS))
}

fn conversation(number: u64, starts: Micros, texts: u64, random: &mut Random) -> Session {
    let tenant = (random.share().powf(POPULARITY) * TENANTS as f64) as u64;
    let mut prompt = vec![Piece { content: mix(texts ^ tenant), tokens: SYSTEM_TOKENS }];
    let key = Some(mix(texts ^ (1 << 50) ^ number));
    let mut thread = Thread { key, first_tokens: 0, system_tokens: SYSTEM_TOKENS };
    let turns = (0..TURNS as u64).map(|turn| {
        let said = |kind: u64| mix(texts ^ (kind << 48) ^ (number << 8) ^ turn);
        prompt.push(Piece { content: said(3), tokens: QUESTION_TOKENS });
        thread.first_tokens = thread.first_tokens.max(if turn == 0 { tokens(&prompt) } else { 0 });
        let answer = Piece { content: said(5), tokens: ANSWER_TOKENS };
        let think =
            if turn == 0 { Micros::ZERO } else { Micros::from_millis_f64(random.exponential(THINK_S * 1e3)) };
        let turn = Turn { think, thread, prompt: prompt.clone(), answer: vec![answer] };
        prompt.push(answer);
        turn
    });
    Session { starts, turns: turns.collect() }
}
