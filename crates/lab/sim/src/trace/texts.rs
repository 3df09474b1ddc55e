//! Text traces: ShareGPT, LMBenchmark, AIBrix, MTRAG and LooGLE.

use std::collections::HashMap;

use serde::Deserialize;
use warmroute_types::Micros;

use super::text::{Message, Role, Timing, pieces, session, single};
use super::{PassagePlacement, Reading, TraceFormat, TraceOptions, limits, lines, lm_benchmark, loogle};
use crate::{Session, mix};

/// Tokens of an answer that was not recorded: about ShareGPT's mean.
const ANSWER_TOKENS: u32 = 200;

/// Reads the sessions of a file.
pub fn read(
    bytes: &[u8],
    format: TraceFormat,
    options: &TraceOptions,
    reading: &mut Reading<'_>,
) -> Vec<Session> {
    reading.notes.push("no tokenizer was asked: a token counts as four bytes of canonical prompt".to_owned());
    let mut timing = Timing::new(options.seed, options.sessions_per_s, options.think_s);
    if format != TraceFormat::AiBrix {
        let (rate, think_s) = (options.sessions_per_s, options.think_s);
        reading.notes.push(format!(
            "no times were recorded: sessions come at random, {rate} a second, and think {think_s} s"
        ));
    }
    match format {
        TraceFormat::ShareGpt => share_gpt(bytes, &mut timing, reading),
        TraceFormat::LmBenchmark => lm_benchmark::read(bytes, &mut timing, reading),
        TraceFormat::AiBrix => aibrix(bytes, reading),
        TraceFormat::Loogle => loogle::read(bytes, &mut timing, reading),
        _ => mtrag(bytes, options.passages, &mut timing, reading),
    }
}

#[derive(Deserialize)]
struct Conversation {
    conversations: Vec<Said>,
}

#[derive(Deserialize)]
struct Said {
    from: String,
    value: String,
}

fn share_gpt(bytes: &[u8], timing: &mut Timing, reading: &mut Reading<'_>) -> Vec<Session> {
    let mut sessions = Vec::new();
    let (mut unanswered, mut empty) = (0, 0);
    for (number, conversation) in (0_u64..).zip(lines::items::<Conversation>(bytes, reading)) {
        let role = |from: &str| match from {
            "system" => Role::System,
            "gpt" | "chatgpt" | "assistant" | "bing" | "bard" => Role::Assistant,
            _ => Role::User,
        };
        let said = conversation.conversations.into_iter();
        let messages: Vec<Message> =
            said.map(|said| Message { role: role(&said.from), text: said.value }).collect();
        match session(&messages, mix(number), timing) {
            Some(session) => sessions.push(session),
            None if !messages.is_empty() => {
                unanswered += 1;
                sessions.push(single(&messages, number, ANSWER_TOKENS, timing.start()));
            }
            None => empty += 1,
        }
    }
    if empty > 0 {
        reading.notes.push(format!("{empty} conversations are empty and were left out"));
    }
    if unanswered > 0 {
        reading.notes.push(format!(
            "{unanswered} conversations have no answer: {ANSWER_TOKENS} tokens each were assumed"
        ));
    }
    sessions
}

#[derive(Deserialize)]
struct Tick {
    /// Milliseconds.
    timestamp: f64,
    requests: Vec<Prompted>,
}

#[derive(Deserialize)]
struct Prompted {
    prompt: String,
    #[serde(rename = "Output Length")]
    output_length: u32,
}

fn aibrix(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (line, tick) in lines::parse::<Tick>(bytes, reading) {
        let starts = Micros::from_millis_f64(tick.timestamp);
        // A line of several requests counts each: each can be unreadable by itself.
        reading.lines_total += (tick.requests.len() as u64).saturating_sub(1);
        for request in tick.requests {
            if let Err(why) = limits::check_tokens(0, request.output_length) {
                reading.bad(line, why);
                continue;
            }
            let message = Message { role: Role::User, text: request.prompt };
            let number = (line as u64) << 20 | sessions.len() as u64;
            sessions.push((line, single(&[message], number, request.output_length, starts)));
        }
    }
    let sessions = limits::rebased(sessions, |session| &mut session.starts.0, reading);
    sessions.into_iter().map(|(_, session)| session).collect()
}

#[derive(Deserialize)]
struct Task {
    input: Vec<Spoken>,
    #[serde(default)]
    targets: Vec<Spoken>,
    #[serde(default)]
    contexts: Vec<Passage>,
}

#[derive(Deserialize)]
struct Spoken {
    speaker: String,
    text: String,
}

#[derive(Deserialize)]
struct Passage {
    document_id: String,
    #[serde(default)]
    text: String,
}

/// MTRAG's original single object: tasks refer to passages that are stored separately.
#[derive(Deserialize)]
struct Collection {
    tasks: Vec<Task>,
    #[serde(default)]
    documents: Vec<Passage>,
}

fn mtrag(
    bytes: &[u8],
    place: PassagePlacement,
    timing: &mut Timing,
    reading: &mut Reading<'_>,
) -> Vec<Session> {
    let (tasks, documents) = match serde_json::from_slice::<Collection>(bytes) {
        Ok(collection) => {
            let texts = collection.documents.into_iter().map(|passage| (passage.document_id, passage.text));
            (collection.tasks, texts.collect())
        }
        Err(_) => {
            let tasks = lines::parse::<Task>(bytes, reading).into_iter().map(|(_, task)| task).collect();
            (tasks, HashMap::new())
        }
    };
    let mut sessions = Vec::new();
    for (number, task) in (0_u64..).zip(tasks) {
        let passages = task.passages(&documents);
        let messages = task.messages();
        let session = session(&messages, mix(number ^ (1 << 59)), timing);
        sessions.extend(session.map(|session| with_passages(session, messages, passages, place)));
    }
    reading.notes.push("passages were recorded for the last question of each conversation only".to_owned());
    sessions
}

/// Adds the passages of the last question to its prompt. Passages of earlier turns were not recorded.
fn with_passages(
    mut session: Session,
    messages: Vec<Message>,
    passages: String,
    place: PassagePlacement,
) -> Session {
    let last_question = messages.iter().rposition(|message| message.role == Role::User);
    let (Some(last), Some(turn)) = (last_question, session.turns.last_mut()) else { return session };
    let mut asked: Vec<Message> = messages[..=last].to_vec();
    match place {
        _ if passages.is_empty() => return session,
        PassagePlacement::Before => asked.insert(0, Message { role: Role::System, text: passages }),
        PassagePlacement::After => asked[last].text = format!("{passages}\n\n{}", asked[last].text),
        PassagePlacement::Omitted => return session,
    }
    turn.prompt = pieces(&asked).concat();
    session
}

impl Task {
    fn passages(&self, documents: &HashMap<String, String>) -> String {
        let text = |passage: &Passage| documents.get(&passage.document_id).unwrap_or(&passage.text).clone();
        self.contexts.iter().map(text).collect::<Vec<_>>().join("\n\n")
    }

    /// The conversation with its last answer.
    fn messages(self) -> Vec<Message> {
        let role = |speaker: &str| if speaker == "user" { Role::User } else { Role::Assistant };
        let spoken = self.input.into_iter().chain(self.targets.into_iter().take(1));
        spoken.map(|said| Message { role: role(&said.speaker), text: said.text }).collect()
    }
}
