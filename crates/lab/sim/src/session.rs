//! What clients do: sessions of one or more turns.
//!
//! Sessions run closed loop. The first turn comes at its time; each other one when the answer before it has been read, so a
//! slow fleet is asked later, not more. A trace that records only requests is sessions of one turn each.

use warmroute_types::Micros;

use crate::{Piece, tokens};

/// One client's turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// When its first turn comes.
    pub starts: Micros,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// One request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How long after the answer before it.
    pub think: Micros,
    /// The conversation it belongs to, and what that calls itself. A client that begins a new one when the last is over
    /// has turns of several.
    pub thread: Thread,
    /// The whole prompt, with the history where there is one.
    pub prompt: Vec<Piece>,
    /// What the engine will answer, at least one token. A later prompt that repeats it finds it in the cache.
    pub answer: Vec<Piece>,
}

/// A conversation, as its requests name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// What it calls itself, where it does.
    pub key: Option<u64>,
    /// Tokens of its first prompt: the part that stays the same while it grows.
    pub first_tokens: u32,
}

impl Session {
    /// A request by itself.
    pub fn single(starts: Micros, prompt: Vec<Piece>, answer: Vec<Piece>) -> Session {
        let thread = Thread { key: None, first_tokens: tokens(&prompt) };
        Session { starts, turns: vec![Turn { think: Micros::ZERO, thread, prompt, answer }] }
    }
}
