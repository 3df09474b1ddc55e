//! The generation APIs: each file reads one kind of request and knows the shape of its answers.
//!
//! What they have in common is small: some prompts, how long the answers may be, when to stop. That is [`Ask`]; the
//! rest of the server knows only it and the [`Shape`] that comes with it.

pub(crate) mod chat;
pub(crate) mod completions;
mod content;
pub(crate) mod messages;
pub(crate) mod responses;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Finish};
use crate::tokens::Token;

/// What responses carry as `system_fingerprint`, and the server as its name.
pub(crate) const FINGERPRINT: &str = "warmroute-simulated-engine";

/// A generation request, whichever API it came by.
pub(crate) struct Ask {
    /// The model's name; the base model when left out.
    pub(crate) model: Option<String>,
    /// At least one.
    pub(crate) prompts: Vec<Vec<Token>>,
    /// Answers to each prompt.
    pub(crate) n: u32,
    /// The most tokens of each answer.
    pub(crate) limit: Option<u32>,
    pub(crate) stops: Vec<String>,
    pub(crate) end_of_turn: EndOfTurn,
    pub(crate) seed: u64,
    pub(crate) salt: String,
    pub(crate) delivery: Delivery,
    pub(crate) shape: Box<dyn Shape>,
}

/// What `ignore_eos` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndOfTurn {
    /// The model may end its turn.
    Heeded,
    /// It goes on to its limit.
    Ignored,
}

/// What `stream` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// One JSON object at the end.
    Whole,
    /// Server-sent events, one or more for each token.
    Stream,
}

/// Everything a shape may want to tell.
pub(crate) struct Reply<'a> {
    pub(crate) head: &'a Head,
    /// All answers, as they will be at their end.
    pub(crate) answers: &'a [Answer],
    /// Tokens so far.
    pub(crate) usage: Usage,
}

/// What is the same in all events of a response.
pub(crate) struct Head {
    /// The request's id, without a prefix.
    pub(crate) id: String,
    pub(crate) created_s: u64,
    pub(crate) model: String,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// `None` when the replica does not report it.
    pub(crate) cached_tokens: Option<u32>,
}

/// The wire shape of an answer.
pub(crate) trait Shape: Send {
    /// The whole answer as one JSON object.
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8>;

    /// Events that are sent before anything is generated.
    fn greet(&mut self, _reply: &Reply<'_>, _out: &mut Vec<u8>) {}

    /// Events in front of the first token's.
    fn open(&mut self, _reply: &Reply<'_>, _out: &mut Vec<u8>) {}

    /// One token of answer number `choice`; with `finish` it is that answer's last.
    fn token(
        &mut self,
        reply: &Reply<'_>,
        choice: usize,
        text: &str,
        finish: Option<&Finish>,
        out: &mut Vec<u8>,
    );

    /// Events after the last token of the last answer.
    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>);
}

/// `stop`: a string or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    /// The strings.
    pub(crate) fn strings(stop: Option<Stop>) -> Vec<String> {
        match stop {
            None => Vec::new(),
            Some(Stop::One(one)) => vec![one],
            Some(Stop::Many(many)) => many,
        }
    }
}

/// `stream_options` of the chat and completions APIs.
#[derive(Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: bool,
    /// vLLM's own: usage in every chunk.
    #[serde(default)]
    pub(crate) continuous_usage_stats: bool,
}

impl Delivery {
    /// From the request's `stream` field.
    pub(crate) fn of(stream: Option<bool>) -> Delivery {
        match stream {
            Some(true) => Delivery::Stream,
            _ => Delivery::Whole,
        }
    }
}

impl EndOfTurn {
    /// From the request's `ignore_eos` field.
    pub(crate) fn of(ignore_eos: Option<bool>) -> EndOfTurn {
        match ignore_eos {
            Some(true) => EndOfTurn::Ignored,
            _ => EndOfTurn::Heeded,
        }
    }
}

/// `usage` as the chat and completions APIs have it.
#[derive(Serialize)]
pub(crate) struct OpenAiUsage {
    prompt_tokens: u32,
    total_tokens: u32,
    completion_tokens: u32,
    /// vLLM leaves it out when nothing was cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

impl OpenAiUsage {
    /// With what was cached.
    pub(crate) fn detailed(usage: Usage) -> OpenAiUsage {
        let cached = usage.cached_tokens.filter(|cached| *cached > 0);
        OpenAiUsage {
            prompt_tokens_details: cached.map(|cached_tokens| PromptTokensDetails { cached_tokens }),
            ..OpenAiUsage::plain(usage)
        }
    }

    /// Counts only, as in the chunks of a stream before its last.
    pub(crate) fn plain(usage: Usage) -> OpenAiUsage {
        OpenAiUsage {
            prompt_tokens: usage.prompt_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            completion_tokens: usage.output_tokens,
            prompt_tokens_details: None,
        }
    }
}

/// vLLM's `finish_reason` and `stop_reason`.
pub(crate) fn finish_words(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::EndOfTurn => ("stop", None),
        Finish::Length => ("length", None),
        Finish::StopString(stop) => ("stop", Some(stop)),
    }
}

/// Appends JSON.
pub(crate) fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("our own types have string keys, and a Vec takes all bytes");
}

/// Appends one server-sent event without a name.
pub(crate) fn write_data(value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    write_json(value, out);
    out.extend_from_slice(b"\n\n");
}

/// Appends one server-sent event with a name.
pub(crate) fn write_event(name: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_data(value, out);
}

/// The end of an OpenAI stream.
pub(crate) fn write_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}
