//! One request, in memory and in the trace.

use serde::Serialize;
use warmroute_types::{Micros, OptionValue};

use crate::Sketch;
use crate::key::FileKey;

/// A request that a worker answered, or that its client abandoned.
#[derive(Clone, Debug)]
pub struct TraceEntry {
    /// When it arrived, by the gateway's clock.
    pub received: Micros,
    /// Time until its answer ended, or its client disconnected.
    pub took: Micros,
    /// Tokens of its prompt: counted by the engine, or else estimated.
    pub prompt_tokens: u32,
    /// Tokens of its answer; `None` where unknown.
    pub output_tokens: Option<u32>,
    /// Prompt tokens found in the cache; `None` where unknown.
    pub cached_tokens: Option<u32>,
    /// The requested model.
    pub model: Option<String>,
    /// A hash of the session's name.
    pub session: Option<u64>,
    /// The prompt.
    pub sketch: Sketch,
}

/// How a trace identifies models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelNames {
    /// By a number that is meaningless outside the file.
    #[default]
    Hashed,
    /// By its name.
    Named,
}

impl OptionValue for ModelNames {
    const VALUES: &'static [(ModelNames, &'static str, &'static str)] =
        &[(ModelNames::Hashed, "hashed", "By a hash"), (ModelNames::Named, "named", "By name")];
}

/// One line of a trace.
#[derive(Serialize)]
struct TraceLine<'a> {
    at_us: u64,
    took_us: u64,
    prompt_tokens: u32,
    output_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    model: Model<'a>,
    session: Option<u64>,
    /// Hash and length in bytes of each span.
    spans: Vec<(u64, u32)>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Model<'a> {
    Hashed(u64),
    Named(&'a str),
}

impl TraceEntry {
    /// Appends the entry as one line of JSON, under a file's key.
    pub(crate) fn write(&self, key: &FileKey, names: ModelNames, lines: &mut Vec<u8>) {
        let name = self.model.as_deref().unwrap_or_default();
        let line = TraceLine {
            at_us: self.received.0,
            took_us: self.took.0,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            model: match names {
                ModelNames::Hashed => Model::Hashed(key.of(name)),
                ModelNames::Named => Model::Named(name),
            },
            session: self.session.map(|session| key.of(session)),
            spans: key.chain((name, self.sketch.salt), &self.sketch.spans),
        };
        serde_json::to_writer(&mut *lines, &line).expect("numbers and a string, into memory");
        lines.push(b'\n');
    }
}
