//! One agent that sends the same long prompt ten times, with another short task at its end each time.
//!
//! The shared part has 76,288 tokens: 10 GB of KV cache of an 8B model (131,072 bytes a token). Each query waits for
//! the answer to the one before. On ten engines, a router that ignores caches computes and stores these 10 GB ten
//! times.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale};
use crate::random::Random;
use crate::{Piece, Session, Thread, Turn};

const QUERIES: u64 = 10;
const SHARED_TOKENS: u32 = 76_288;
const TASK_TOKENS: u32 = 64;
const ANSWER_TOKENS: u32 = 64;

/// Generates the one session. The rate has no effect on it.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 721);
    let shared = Piece { content: random.bits(), tokens: SHARED_TOKENS };
    let key = random.bits();
    let turns = (0..scale.requests.unwrap_or(QUERIES).max(1)).map(|_| {
        let task = Piece { content: random.bits(), tokens: TASK_TOKENS };
        let answer = Piece { content: random.bits(), tokens: ANSWER_TOKENS };
        let thread = Thread {
            key: Some(key),
            first_tokens: SHARED_TOKENS + TASK_TOKENS,
            system_tokens: SHARED_TOKENS,
        };
        Turn { think: Micros::from_secs(1), thread, prompt: vec![shared, task], answer: vec![answer] }
    });
    let turns = turns.collect();
    Box::new(std::iter::once(Session { starts: Micros::ZERO, turns }))
}
