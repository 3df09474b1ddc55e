//! Client behaviour: sessions of one or more turns.
//!
//! Sessions run closed loop: the first turn starts at its time, each later one after the previous answer and
//! a think time. A slow fleet therefore gets requests later. In a trace of single requests each session has
//! one turn.

use warmroute_types::Micros;

use crate::{Piece, tokens};

/// One client's turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Start of the first turn.
    pub starts: Micros,
    /// Turns, at least one.
    pub turns: Vec<Turn>,
}

/// One request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Think time after the previous answer.
    pub think: Micros,
    /// Conversation of the turn. A client that starts a new conversation has turns of several.
    pub thread: Thread,
    /// Whole prompt, including the history.
    pub prompt: Vec<Piece>,
    /// Answer of the engine, at least one token. A later prompt that repeats it can hit the cache.
    pub answer: Vec<Piece>,
}

/// A conversation, as requests identify it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Session key, if requests carry one.
    pub key: Option<u64>,
    /// Tokens of the first prompt: the part that stays the same while the conversation grows.
    pub first_tokens: u32,
    /// Tokens of the system prompt at the beginning of every prompt; 0 without one.
    pub system_tokens: u32,
}

impl Session {
    /// A session of one request.
    pub fn single(starts: Micros, prompt: Vec<Piece>, answer: Vec<Piece>) -> Session {
        let thread = Thread { key: None, first_tokens: tokens(&prompt), system_tokens: 0 };
        Session { starts, turns: vec![Turn { think: Micros::ZERO, thread, prompt, answer }] }
    }

    /// The same session, whose prompts begin with a system prompt of this many tokens.
    #[must_use]
    pub fn with_system(mut self, tokens: u32) -> Session {
        self.turns.iter_mut().for_each(|turn| turn.thread.system_tokens = tokens);
        self
    }
}
