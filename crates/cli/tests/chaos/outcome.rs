//! The outcome of a request, as its client sees it.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::harness::client::Response;

/// The form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Document,
    /// OpenAI's stream, which ends with `[DONE]`.
    Chat,
    /// Anthropic's stream, which ends with `message_stop`.
    Messages,
}

#[derive(Debug)]
pub enum Outcome {
    Document,
    Stream,
    /// The client left in the middle.
    Left,
    /// The queue was full: the gateway's own 429 with a Retry-After.
    TurnedAway,
    /// The response broke, and the client could tell: an error event, or a document shorter than its length.
    Broke(String),
    /// The client got no response, or only an error.
    Lost {
        why: String,
        /// The ID of the request, if there was a response.
        request: Option<String>,
    },
    /// The response broke, and the client could not tell.
    Silent(String),
}

impl Outcome {
    pub fn of(form: Form, response: Option<Response>) -> Outcome {
        let Some(response) = response else {
            return Outcome::Lost { why: "no answer".to_owned(), request: None };
        };
        match (response.status, form) {
            (200, Form::Document) if response.complete => Outcome::Document,
            (200, Form::Document) => Outcome::Broke("document cut".to_owned()),
            (200, _) => Outcome::of_stream(form, &response),
            (429, _) if is_from_the_queue(&response) => Outcome::TurnedAway,
            (status, _) => Outcome::Lost {
                why: format!("{status}: {}", beginning(&response.text())),
                request: response.header("x-request-id").map(str::to_owned),
            },
        }
    }

    fn of_stream(form: Form, response: &Response) -> Outcome {
        let text = response.text();
        let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        let data = last.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        let is_whole = match form {
            Form::Messages => event["type"] == "message_stop",
            _ => data == "[DONE]",
        };
        match (response.complete, is_whole, event["error"]["message"].as_str()) {
            (true, true, _) => Outcome::Stream,
            (true, false, Some(message)) => Outcome::Broke(message.to_owned()),
            (complete, ..) => Outcome::Silent(format!("framed to its end: {complete}, last: {last:?}")),
        }
    }
}

/// An engine's own 429 names the engine.
fn is_from_the_queue(response: &Response) -> bool {
    response.header("retry-after").is_some() && response.header("x-warmroute-worker").is_none()
}

fn beginning(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Counts of outcomes.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub sent: u64,
    pub documents: u64,
    pub streams: u64,
    pub left: u64,
    pub turned_away: u64,
    pub broke: BTreeMap<String, u64>,
    pub lost: BTreeMap<String, u64>,
    /// The IDs of lost requests.
    pub lost_requests: Vec<String>,
    pub silent: BTreeMap<String, u64>,
}

impl Tally {
    pub fn count(&mut self, outcome: Outcome) {
        self.sent += 1;
        match outcome {
            Outcome::Document => self.documents += 1,
            Outcome::Stream => self.streams += 1,
            Outcome::Left => self.left += 1,
            Outcome::TurnedAway => self.turned_away += 1,
            Outcome::Broke(why) => *self.broke.entry(why).or_default() += 1,
            Outcome::Lost { why, request } => {
                *self.lost.entry(why).or_default() += 1;
                self.lost_requests.extend(request);
            }
            Outcome::Silent(why) => *self.silent.entry(why).or_default() += 1,
        }
    }

    pub fn add(&mut self, other: &Tally) {
        self.sent += other.sent;
        self.documents += other.documents;
        self.streams += other.streams;
        self.left += other.left;
        self.turned_away += other.turned_away;
        self.lost_requests.extend_from_slice(&other.lost_requests);
        for (mine, others) in [
            (&mut self.broke, &other.broke),
            (&mut self.lost, &other.lost),
            (&mut self.silent, &other.silent),
        ] {
            others.iter().for_each(|(why, n)| *mine.entry(why.clone()).or_default() += n);
        }
    }

    pub fn served(&self) -> u64 {
        self.documents + self.streams
    }

    pub fn broken(&self) -> u64 {
        self.broke.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, n: u64| writeln!(out, "{name:<31} {n:>7}");
        row("requests sent", self.sent)?;
        row("answered whole: documents", self.documents)?;
        row("answered whole: streams", self.streams)?;
        row("given up by the client", self.left)?;
        row("turned away, the queue was full", self.turned_away)?;
        row("broke after the first byte", self.broken())?;
        row("lost before the first byte", self.lost.values().sum())?;
        row("ended without an error event", self.silent.values().sum())?;
        for (why, n) in &self.broke {
            writeln!(out, "  {n} broke and were told: {why}")?;
        }
        Ok(())
    }
}
