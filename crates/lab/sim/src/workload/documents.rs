//! Long documents: a summary first, then questions about the same document.
//!
//! Readers open documents of a library, some far more often than others. A document has 4,000 to 100,000 tokens
//! (median 16,000) and stands between the instruction and the question, as prompts for summaries are written. A
//! summary has about 400 tokens, an answer about 80. The conversation is not repeated: each question is asked of
//! the document alone.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::{Random, mix};
use crate::{Piece, Session, Thread, Turn, tokens};

const READERS_PER_S: f64 = 2.0;
const REQUESTS: u64 = 4_000;
const LIBRARY: f64 = 300.0;
const INSTRUCTION_TOKENS: u32 = 200;
const QUESTIONS_MEAN: f64 = 2.0;
const QUESTIONS_MAX: usize = 10;
const THINK_S: f64 = 20.0;

/// Generates the readers.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 701);
    let instruction = Piece { content: random.bits(), tokens: INSTRUCTION_TOKENS };
    let library = random.bits();
    let mut now = Micros::ZERO;
    let stream = std::iter::repeat_with(move || {
        now = now + random.gap(READERS_PER_S * scale.rate);
        reader(now, instruction, document(library, &mut random), &mut random)
    });
    up_to(stream, scale.requests.unwrap_or(REQUESTS))
}

/// A random document; the n-th most popular is drawn about 1/n as often as the first. Its length is its own.
fn document(library: u64, random: &mut Random) -> Piece {
    let content = mix(library ^ LIBRARY.powf(random.share()) as u64);
    Piece { content, tokens: Random::new(content, 702).tokens(16_000.0, 0.7, 4_000, 100_000) }
}

fn reader(starts: Micros, instruction: Piece, document: Piece, random: &mut Random) -> Session {
    let key = random.bits();
    let questions = (random.exponential(QUESTIONS_MEAN).round() as usize).min(QUESTIONS_MAX);
    let mut first_tokens = 0;
    let turns = (0..=questions).map(|turn| {
        let (own, answer) = match turn {
            0 => (random.tokens(40.0, 0.4, 10, 200), random.tokens(400.0, 0.5, 50, 1_500)),
            _ => (random.tokens(30.0, 0.6, 5, 200), random.tokens(80.0, 0.7, 5, 500)),
        };
        let question = Piece { content: random.bits(), tokens: own };
        let prompt = vec![instruction, document, question];
        if turn == 0 {
            first_tokens = tokens(&prompt);
        }
        let thread = Thread { key: Some(key), first_tokens, system_tokens: INSTRUCTION_TOKENS };
        let think = Micros::from_millis_f64(random.exponential(THINK_S * 1_000.0));
        Turn { think, thread, prompt, answer: vec![Piece { content: random.bits(), tokens: answer }] }
    });
    Session { starts, turns: turns.collect() }
}
