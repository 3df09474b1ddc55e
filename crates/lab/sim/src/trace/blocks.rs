//! Traces of block hashes, in Mooncake's and Bailian's formats.
//!
//! A hash identifies a block and everything before it, so each is a piece of its own. Answers were not
//! recorded: each gets content that no later prompt repeats.

use std::collections::HashMap;

use serde::Deserialize;
use warmroute_types::Micros;

use super::{Reading, TraceFormat, limits, lines};
use crate::random::mix;
use crate::{Piece, Session, Thread, Turn, tokens};

/// One request, in either format.
#[derive(Deserialize)]
struct Row {
    /// Milliseconds in Mooncake's format, seconds in Bailian's.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
    chat_id: Option<i64>,
    parent_chat_id: Option<i64>,
}

/// Reads the requests, each as its own session, because each has a recorded time.
pub fn read(bytes: &[u8], format: TraceFormat, reading: &mut Reading<'_>) -> Vec<Session> {
    let (block_tokens, unit_us) = match format {
        TraceFormat::Bailian => (16, 1e6),
        _ => (512, 1e3),
    };
    let mut threads = Threads::default();
    let mut sessions = Vec::new();
    let mut unnamed_tails = 0_u64;
    for (number, row) in lines::parse::<Row>(bytes, reading) {
        unnamed_tails += u64::from(row.has_unnamed_tail(block_tokens));
        match row.session(number, block_tokens, unit_us, &mut threads) {
            Ok(session) => sessions.push((number, session)),
            Err(why) => reading.bad(number, why),
        }
    }
    let sessions = limits::rebased(sessions, |session| &mut session.starts.0, reading);
    reading.notes.push("answers were not recorded: no later prompt finds them".to_owned());
    if unnamed_tails > 0 {
        reading.notes.push(format!(
            "{unnamed_tails} requests list whole blocks only: the tokens after the last block are shared with no other prompt"
        ));
    }
    sessions.into_iter().map(|(_, session)| session).collect()
}

/// Conversation per chat: that of its parent, or its own.
#[derive(Default)]
struct Threads {
    known: HashMap<i64, Thread>,
}

impl Threads {
    fn of(&mut self, row: &Row, prompt_tokens: u32) -> Thread {
        let Some(chat) = row.chat_id else {
            return Thread { first_tokens: prompt_tokens, ..Thread::default() };
        };
        let parent = row.parent_chat_id.and_then(|parent| self.known.get(&parent).copied());
        let own = Thread { key: Some(mix(chat as u64)), first_tokens: prompt_tokens, ..Thread::default() };
        let thread = parent.unwrap_or(own);
        self.known.insert(chat, thread);
        thread
    }
}

impl Row {
    /// Whether the row lists whole blocks only, so that no hash names the tokens after the last one.
    fn has_unnamed_tail(&self, block_tokens: u32) -> bool {
        let whole_blocks = (self.input_length / block_tokens) as usize;
        !self.input_length.is_multiple_of(block_tokens) && self.hash_ids.len() == whole_blocks
    }

    fn session(
        &self,
        number: usize,
        block_tokens: u32,
        unit_us: f64,
        threads: &mut Threads,
    ) -> Result<Session, String> {
        let whole_blocks = (self.input_length / block_tokens) as usize;
        let all_blocks = self.input_length.div_ceil(block_tokens) as usize;
        if !(whole_blocks..=all_blocks).contains(&self.hash_ids.len()) {
            let (hashes, tokens) = (self.hash_ids.len(), self.input_length);
            return Err(format!(
                "{hashes} hashes for {tokens} tokens: expected {whole_blocks} or {all_blocks} blocks of {block_tokens} tokens"
            ));
        }
        if self.input_length == 0 || !self.timestamp.is_finite() || self.timestamp < 0.0 {
            return Err("no prompt, or no time".to_owned());
        }
        limits::check_tokens(self.input_length, self.output_length)?;
        let piece = |(at, &id): (usize, &u64)| {
            let tokens = (self.input_length - at as u32 * block_tokens).min(block_tokens);
            Piece { content: mix(id ^ BLOCK), tokens }
        };
        let mut prompt: Vec<Piece> = self.hash_ids.iter().enumerate().map(piece).collect();
        if self.has_unnamed_tail(block_tokens) {
            let tokens = self.input_length % block_tokens;
            prompt.push(Piece { content: mix(number as u64 ^ TAIL), tokens });
        }
        // Some recorded answers are empty; an engine generates at least one token.
        let answer = vec![Piece { content: mix(number as u64 ^ ANSWER), tokens: self.output_length.max(1) }];
        let starts = Micros((self.timestamp * unit_us).round() as u64);
        let thread = threads.of(self, tokens(&prompt));
        Ok(Session { starts, turns: vec![Turn { think: Micros::ZERO, thread, prompt, answer }] })
    }
}

/// Tags that keep the content numbers of blocks, answers and unnamed tails apart.
const BLOCK: u64 = 1 << 62;
const ANSWER: u64 = 1 << 61;
const TAIL: u64 = 1 << 60;
