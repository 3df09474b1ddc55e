//! LMBenchmark's samples of ShareGPT: every row is a whole prompt, with the turns before it, and the length of its
//! answer.
//!
//! A row whose text begins with the text of an earlier row is a later turn of that conversation. The recorded
//! answers are part of the later prompts, but engines generate others: no later prompt finds a generated answer.

use serde::Deserialize;

use super::text::{Message, Role, Timing, single};
use super::{Reading, limits, lines};
use crate::{Session, Thread, mix};

#[derive(Deserialize)]
struct Accumulated {
    input: String,
    output_length: u32,
}

/// A conversation so far.
struct Conversation {
    /// Prompt of its last turn.
    text: String,
    session: Session,
}

/// Reads the conversations.
pub fn read(bytes: &[u8], timing: &mut Timing, reading: &mut Reading<'_>) -> Vec<Session> {
    let mut conversations: Vec<Conversation> = Vec::new();
    for (number, row) in (0_u64..).zip(lines::items::<Accumulated>(bytes, reading)) {
        if let Err(why) = limits::check_tokens(0, row.output_length) {
            reading.bad(number as usize + 1, format!("item {}: {why}", number + 1));
            continue;
        }
        add(&mut conversations, number, row, timing);
    }
    let sessions: Vec<Session> = conversations.into_iter().map(|one| one.session).collect();
    let (turns, count) = (sessions.iter().map(|one| one.turns.len()).sum::<usize>(), sessions.len());
    reading.notes.push(format!(
        "{turns} prompts are turns of {count} conversations, by their beginnings; answers are not those recorded, so no later prompt finds them"
    ));
    sessions
}

/// Adds a row to the conversation that it continues, or starts one.
fn add(conversations: &mut Vec<Conversation>, number: u64, row: Accumulated, timing: &mut Timing) {
    let message = Message { role: Role::User, text: row.input.clone() };
    let continued = conversations.iter_mut().filter(|one| row.input.starts_with(&one.text));
    match continued.max_by_key(|one| one.text.len()) {
        Some(conversation) => {
            let mut turn =
                single(&[message], number, row.output_length, conversation.session.starts).turns.remove(0);
            (turn.thread, turn.think) = (conversation.session.turns[0].thread, timing.think());
            conversation.session.turns.push(turn);
            conversation.text = row.input;
        }
        None => {
            let mut session = single(&[message], number, row.output_length, timing.start());
            let turn = &mut session.turns[0];
            turn.thread = Thread { key: Some(mix(number ^ (1 << 58))), ..turn.thread };
            conversations.push(Conversation { text: row.input, session });
        }
    }
}
