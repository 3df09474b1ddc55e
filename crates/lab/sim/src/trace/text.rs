//! Conversations as text, read by the production prompt code.
//!
//! A turn's messages are written as a request body, parsed, and rendered to canonical bytes. Each message is
//! cut into pieces of 64 bytes, so that a prompt's pieces are the beginning of the next turn's. A token
//! counts as four bytes, without a tokenizer.

use serde_json::json;
use warmroute_prompt::{Body, write_prompt};
use warmroute_types::Micros;
use xxhash_rust::xxh3::xxh3_64;

use crate::random::Random;
use crate::{Piece, Session, Thread, Turn, tokens};

const PIECE_BYTES: usize = 64;
const TOKEN_BYTES: u32 = 4;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub text: String,
}

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// Times of sessions and turns for texts without times.
pub struct Timing {
    pub random: Random,
    pub sessions_per_s: f64,
    pub think_s: f64,
    now: Micros,
}

impl Timing {
    pub fn new(seed: u64, sessions_per_s: f64, think_s: f64) -> Timing {
        Timing { random: Random::new(seed, 803), sessions_per_s, think_s, now: Micros::ZERO }
    }

    /// Start of the next session.
    pub fn start(&mut self) -> Micros {
        self.now = self.now + self.random.gap(self.sessions_per_s);
        self.now
    }

    /// Think time of a client.
    pub fn think(&mut self) -> Micros {
        Micros::from_millis_f64(self.random.exponential(self.think_s * 1_000.0))
    }
}

/// Pieces of each message.
pub fn pieces(messages: &[Message]) -> Vec<Vec<Piece>> {
    let mut before = 0;
    let message = |(index, _)| {
        let bytes = canonical(&messages[..=index]);
        let own = bytes.get(before..).unwrap_or_default();
        before = bytes.len();
        own.chunks(PIECE_BYTES).map(piece).collect()
    };
    messages.iter().enumerate().map(message).collect()
}

fn piece(bytes: &[u8]) -> Piece {
    Piece { content: xxh3_64(bytes), tokens: (bytes.len() as u32).div_ceil(TOKEN_BYTES) }
}

/// Canonical bytes of a prompt, as in production.
fn canonical(messages: &[Message]) -> Vec<u8> {
    let turn = |message: &Message| json!({"role": message.role.as_str(), "content": message.text});
    let body = json!({"messages": messages.iter().map(turn).collect::<Vec<_>>()}).to_string();
    let body = Body::read(body.as_bytes()).expect("the body was serialized in the line above");
    let mut bytes = Vec::new();
    write_prompt(&body, &mut bytes);
    bytes
}

/// A session with one turn per answer. `None` without a question and an answer.
pub fn session(messages: &[Message], key: u64, timing: &mut Timing) -> Option<Session> {
    let pieces = pieces(messages);
    let systems = messages.iter().take_while(|message| message.role == Role::System).count();
    let system_tokens = pieces[..systems].iter().map(|message| tokens(message)).sum();
    let mut turns: Vec<Turn> = Vec::new();
    let answers = messages.iter().enumerate().filter(|(index, message)| {
        *index > 0 && message.role == Role::Assistant && messages[index - 1].role == Role::User
    });
    for (index, _) in answers {
        let prompt = pieces[..index].concat();
        let first_tokens = turns.first().map_or(tokens(&prompt), |turn| turn.thread.first_tokens);
        let thread = Thread { key: Some(key), first_tokens, system_tokens };
        turns.push(Turn { think: timing.think(), thread, prompt, answer: pieces[index].clone() });
    }
    (!turns.is_empty()).then(|| Session { starts: timing.start(), turns })
}

/// A session of one request, whose answer has only a length.
pub fn single(messages: &[Message], number: u64, output_tokens: u32, starts: Micros) -> Session {
    let prompt = pieces(messages).concat();
    let answer = Piece { content: crate::mix(number ^ (1 << 60)), tokens: output_tokens.max(1) };
    Session::single(starts, prompt, vec![answer])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_starts_with_all_earlier_messages() {
        let say = |role, text: &str| Message { role, text: text.repeat(30) };
        let messages = [
            say(Role::User, "how are you? "),
            say(Role::Assistant, "fine, "),
            say(Role::User, "good. "),
            say(Role::Assistant, "indeed. "),
        ];
        let session = session(&messages, 7, &mut Timing::new(1, 1.0, 1.0)).unwrap();
        let [first, second] = &session.turns[..] else { panic!("two answers, two turns") };
        let known = [&first.prompt[..], &first.answer].concat();
        assert_eq!(second.prompt[..known.len()], known);
        assert!(second.prompt.len() > known.len());
        assert_eq!(second.thread.first_tokens, tokens(&first.prompt));
        assert!((tokens(&first.prompt) as i64 - 13 * 30 / 4).abs() < 5, "a token is four bytes");
    }
}
