//! Traces of block hashes: Mooncake's and Bailian's.
//!
//! Each hash stands for a block and everything before it, so it is a piece of its own. Answers were not recorded: they get a
//! text of their own, which no later prompt repeats.

use std::collections::HashMap;

use serde::Deserialize;
use warmroute_types::Micros;

use super::{Reading, TraceFormat, limits, lines};
use crate::random::mix;
use crate::{Piece, Session, Thread, Turn, tokens};

/// A request, in either format.
#[derive(Deserialize)]
struct Row {
    /// Milliseconds in Mooncake's, seconds in Bailian's.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
    chat_id: Option<i64>,
    parent_chat_id: Option<i64>,
}

/// The requests, each by itself: the time of each is recorded.
pub fn read(bytes: &[u8], format: TraceFormat, reading: &mut Reading<'_>) -> Vec<Session> {
    let (block_tokens, unit_us) = match format {
        TraceFormat::Bailian => (16, 1e6),
        _ => (512, 1e3),
    };
    let mut threads = Threads::default();
    let mut sessions = Vec::new();
    for (number, row) in lines::parse::<Row>(bytes, reading) {
        match row.session(number, block_tokens, unit_us, &mut threads) {
            Ok(session) => sessions.push((number, session)),
            Err(why) => reading.bad(number, why),
        }
    }
    let sessions = limits::rebased(sessions, |session| &mut session.starts.0, reading);
    reading.notes.push("answers were not recorded: no later prompt finds them".to_owned());
    sessions.into_iter().map(|(_, session)| session).collect()
}

/// Which conversation a chat belongs to: that of its parent, or its own.
#[derive(Default)]
struct Threads {
    known: HashMap<i64, Thread>,
}

impl Threads {
    fn of(&mut self, row: &Row, prompt_tokens: u32) -> Thread {
        let Some(chat) = row.chat_id else { return Thread { key: None, first_tokens: prompt_tokens } };
        let parent = row.parent_chat_id.and_then(|parent| self.known.get(&parent).copied());
        let own = Thread { key: Some(mix(chat as u64)), first_tokens: prompt_tokens };
        let thread = parent.unwrap_or(own);
        self.known.insert(chat, thread);
        thread
    }
}

impl Row {
    fn session(
        &self,
        number: usize,
        block_tokens: u32,
        unit_us: f64,
        threads: &mut Threads,
    ) -> Result<Session, String> {
        let expected = self.input_length.div_ceil(block_tokens) as usize;
        if self.hash_ids.len() != expected {
            return Err(format!("{} hashes for {} tokens", self.hash_ids.len(), self.input_length));
        }
        if self.input_length == 0 || !self.timestamp.is_finite() || self.timestamp < 0.0 {
            return Err("no prompt, or no time".to_owned());
        }
        limits::check_tokens(self.input_length, self.output_length)?;
        let piece = |(at, &id): (usize, &u64)| {
            let tokens = (self.input_length - at as u32 * block_tokens).min(block_tokens);
            Piece { content: mix(id ^ BLOCK), tokens }
        };
        let prompt: Vec<Piece> = self.hash_ids.iter().enumerate().map(piece).collect();
        // Some recorded answers are empty; an engine gives at least one token.
        let answer = vec![Piece { content: mix(number as u64 ^ ANSWER), tokens: self.output_length.max(1) }];
        let starts = Micros((self.timestamp * unit_us).round() as u64);
        let thread = threads.of(self, tokens(&prompt));
        Ok(Session { starts, turns: vec![Turn { think: Micros::ZERO, thread, prompt, answer }] })
    }
}

/// Keep the numbers of blocks, answers and requests apart.
const BLOCK: u64 = 1 << 62;
const ANSWER: u64 = 1 << 61;
