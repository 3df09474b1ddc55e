//! Generation APIs: each file reads one kind of request and defines the shape of its answers.
//!
//! All share prompts, answer limits and stop conditions: that is [`Ask`]. The rest of the server uses only
//! [`Ask`] and its [`Shape`].

pub(crate) mod chat;
pub(crate) mod completions;
mod content;
pub(crate) mod messages;
pub(crate) mod responses;

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Finish};
use crate::tokens::Token;

/// `system_fingerprint` of responses, and the server's name.
pub(crate) const FINGERPRINT: &str = "warmroute-simulated-engine";

/// A generation request of any API.
pub(crate) struct Ask {
    /// Name of the model; the base model if absent.
    pub(crate) model: Option<String>,
    /// Prompts, at least one.
    pub(crate) prompts: Vec<Vec<Token>>,
    /// Number of answers per prompt.
    pub(crate) n: u32,
    /// Tokens of the answer that the prompt ends with.
    pub(crate) begun_tokens: u32,
    /// Maximum tokens of each answer.
    pub(crate) limit: Option<u32>,
    pub(crate) stops: Vec<String>,
    pub(crate) end_of_turn: EndOfTurn,
    pub(crate) seed: u64,
    pub(crate) salt: String,
    pub(crate) delivery: Delivery,
    pub(crate) shape: Box<dyn Shape>,
}

/// Whether the model may end its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndOfTurn {
    /// It ends where the request sets no limit. A limit is the length of the answer, so that clients choose it.
    Heeded,
    /// It ends before a large limit, too: the API requires a limit, and agents send the largest one.
    BeforeLimit,
    /// The model generates up to its limit.
    Ignored,
}

/// Choice of `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// One JSON object at the end.
    Whole,
    /// Server-sent events, at least one per token.
    Stream,
}

/// State of a response for its shape.
pub(crate) struct Reply<'a> {
    pub(crate) head: &'a Head,
    /// All answers in their final form.
    pub(crate) answers: &'a [Answer],
    /// Tokens so far.
    pub(crate) usage: Usage,
}

/// Fields shared by all events of a response.
pub(crate) struct Head {
    /// Id of the request, without a prefix.
    pub(crate) id: String,
    pub(crate) created_s: u64,
    pub(crate) model: String,
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// Cached tokens; `None` if the replica does not report them.
    pub(crate) cached_tokens: Option<u32>,
}

/// Wire format of an answer.
pub(crate) trait Shape: Send {
    /// The whole answer as one JSON object.
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8>;

    /// Writes events before anything is generated.
    fn greet(&mut self, _reply: &Reply<'_>, _out: &mut Vec<u8>) {}

    /// Writes events before the first token's.
    fn open(&mut self, _reply: &Reply<'_>, _out: &mut Vec<u8>) {}

    /// Writes one token of answer number `choice`; `finish` marks its last.
    fn token(
        &mut self,
        reply: &Reply<'_>,
        choice: usize,
        text: &str,
        finish: Option<&Finish>,
        out: &mut Vec<u8>,
    );

    /// Writes events after the last token of the last answer.
    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>);
}

/// `stop`: one string or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    /// Returns the stop strings.
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
    /// vLLM's extension: usage in every chunk.
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

/// `usage` of the chat and completions APIs.
#[derive(Serialize)]
pub(crate) struct OpenAiUsage {
    prompt_tokens: u32,
    total_tokens: u32,
    completion_tokens: u32,
    /// vLLM omits it when nothing was cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

impl OpenAiUsage {
    /// Counts with cached tokens.
    pub(crate) fn detailed(usage: Usage) -> OpenAiUsage {
        let cached = usage.cached_tokens.filter(|cached| *cached > 0);
        OpenAiUsage {
            prompt_tokens_details: cached.map(|cached_tokens| PromptTokensDetails { cached_tokens }),
            ..OpenAiUsage::plain(usage)
        }
    }

    /// Counts only, as in all chunks of a stream but the last.
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

/// Appends the end of an OpenAI stream.
pub(crate) fn write_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}
