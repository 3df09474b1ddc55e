//! One request in the access log, and its line.
//!
//! Names come from clients and engines. Text lines quote and escape them, and JSON does so anyway: no name can forge a
//! field, a line, or a terminal's control sequence.

use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use warmroute_types::Micros;

use super::LineFormat;
use crate::utc_time::UtcTime;

/// Bytes of a name in a line. A model's name and a path may have any length.
const NAME_BYTES_MAX: usize = 256;

/// A request of a client. What is not known is `None`.
#[derive(Clone, Debug)]
pub struct AccessEntry {
    /// When the request arrived.
    pub at: SystemTime,
    /// The request's id: the client's, or made here.
    pub request_id: String,
    /// The id of the request's trace, if it is sampled.
    pub trace_id: Option<String>,
    /// The HTTP method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The status that the client got; `None` if the client disconnected before it.
    pub status: Option<u16>,
    /// How the request ended.
    pub outcome: &'static str,
    /// The code of the gateway's own error.
    pub error: Option<&'static str>,
    /// The name of the API key.
    pub key: Option<String>,
    /// The requested model, after aliases.
    pub model: Option<String>,
    /// The last worker that got the request.
    pub worker: Option<Arc<str>>,
    /// The policy that chose the worker.
    pub policy: Option<&'static str>,
    /// Why the policy chose the worker.
    pub reason: Option<&'static str>,
    /// Workers that got the request.
    pub attempts: u32,
    /// Tokens of the prompt: counted by the engine, or else estimated.
    pub prompt_tokens: Option<u32>,
    /// Tokens of the answer, as the engine counts them.
    pub output_tokens: Option<u32>,
    /// Prompt tokens that the router expected in the worker's cache.
    pub expected_cached_tokens: Option<u32>,
    /// Prompt tokens that the engine found in its cache.
    pub cached_tokens: Option<u32>,
    /// From the request's arrival to the last decision: reading, queueing, earlier attempts.
    pub wait: Option<Micros>,
    /// Expected time from the decision to the first token.
    pub expected_ttft: Option<Micros>,
    /// Time from the decision to the first token of a stream.
    pub ttft: Option<Micros>,
    /// From the request's arrival to the end of its response, or to the client's disconnect.
    pub duration: Micros,
    /// Bytes of the response body.
    pub bytes: u64,
}

enum Field<'a> {
    Name(Option<&'a str>),
    Number(Option<u64>),
    Time(Option<Micros>),
}

impl AccessEntry {
    /// A request that has just arrived. Its client counts as disconnected until it has got a response.
    pub fn new(request_id: String, method: String, path: String) -> AccessEntry {
        AccessEntry {
            at: SystemTime::now(),
            request_id,
            trace_id: None,
            method,
            path,
            status: None,
            outcome: "cancelled",
            error: None,
            key: None,
            model: None,
            worker: None,
            policy: None,
            reason: None,
            attempts: 0,
            prompt_tokens: None,
            output_tokens: None,
            expected_cached_tokens: None,
            cached_tokens: None,
            wait: None,
            expected_ttft: None,
            ttft: None,
            duration: Micros::ZERO,
            bytes: 0,
        }
    }

    /// The fields of a line after its time, in order.
    fn fields(&self) -> [(&'static str, Field<'_>); 22] {
        use Field::{Name, Number, Time};
        let number = |value: Option<u32>| Number(value.map(u64::from));
        [
            ("request_id", Name(Some(&self.request_id))),
            ("method", Name(Some(&self.method))),
            ("path", Name(Some(&self.path))),
            ("status", Number(self.status.map(u64::from))),
            ("outcome", Name(Some(self.outcome))),
            ("error", Name(self.error)),
            ("key", Name(self.key.as_deref())),
            ("model", Name(self.model.as_deref())),
            ("worker", Name(self.worker.as_deref())),
            ("policy", Name(self.policy)),
            ("reason", Name(self.reason)),
            ("attempts", Number(Some(self.attempts.into()))),
            ("prompt_tokens", number(self.prompt_tokens)),
            ("output_tokens", number(self.output_tokens)),
            ("expected_cached_tokens", number(self.expected_cached_tokens)),
            ("cached_tokens", number(self.cached_tokens)),
            ("wait_ms", Time(self.wait)),
            ("expected_ttft_ms", Time(self.expected_ttft)),
            ("ttft_ms", Time(self.ttft)),
            ("duration_ms", Time(Some(self.duration))),
            ("bytes", Number(Some(self.bytes))),
            ("trace_id", Name(self.trace_id.as_deref())),
        ]
    }

    /// Appends the line.
    pub(super) fn write(&self, format: LineFormat, lines: &mut String) {
        let time = UtcTime::of(self.at);
        let written = match format {
            LineFormat::Text => write!(lines, "time={time}"),
            LineFormat::Json => write!(lines, "{{\"time\":\"{time}\""),
        };
        written.expect("a string takes everything");
        for (name, field) in self.fields() {
            let written = match format {
                LineFormat::Text => write!(lines, " {name}={}", field.as_text()),
                LineFormat::Json => write!(lines, ",\"{name}\":{}", field.as_json()),
            };
            written.expect("a string takes everything");
        }
        lines.push_str(if format == LineFormat::Json { "}\n" } else { "\n" });
    }
}

impl Field<'_> {
    fn as_json(&self) -> String {
        match self {
            Field::Name(Some(name)) => serde_json::Value::from(shortened(name)).to_string(),
            _ => self.number().unwrap_or_else(|| "null".to_owned()),
        }
    }

    fn as_text(&self) -> String {
        match self {
            Field::Name(Some(name)) => quoted(shortened(name)),
            _ => self.number().unwrap_or_else(|| "-".to_owned()),
        }
    }

    fn number(&self) -> Option<String> {
        match self {
            Field::Name(_) => None,
            Field::Number(number) => number.map(|number| number.to_string()),
            Field::Time(time) => {
                time.map(|Micros(micros)| format!("{}.{:03}", micros / 1_000, micros % 1_000))
            }
        }
    }
}

/// The beginning of a name, whole characters only.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// A name as it is if it is one plain word, else quoted and escaped.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@+%,[]".contains(&byte);
    match !name.is_empty() && name != "-" && name.bytes().all(is_plain) {
        true => name.to_owned(),
        false => format!("{name:?}"),
    }
}
