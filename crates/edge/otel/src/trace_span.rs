//! A finished span, as OTLP describes it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use crate::{SpanId, TraceContext};

/// Bytes of a text attribute. Names of models and paths may have any length.
const TEXT_BYTES_MAX: usize = 256;

/// A span of one request.
#[derive(Clone, Debug)]
pub struct TraceSpan {
    /// Its trace and its id.
    pub context: TraceContext,
    /// The span that caused it; `None` for the first span of a trace.
    pub parent: Option<SpanId>,
    /// Whether the parent is a span of another process.
    pub is_parent_remote: bool,
    /// Other systems' entries, as the client sent them.
    pub state: Option<Arc<str>>,
    /// What was done, with few different values.
    pub name: Cow<'static, str>,
    /// Its role in an exchange.
    pub kind: SpanKind,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// What is known about it.
    pub attributes: Attributes,
    /// Moments within it, in order.
    pub events: Vec<SpanEvent>,
    /// Whether it failed.
    pub status: SpanStatus,
}

/// A moment within a span.
#[derive(Clone, Debug)]
pub struct SpanEvent {
    /// When it happened.
    pub at: SystemTime,
    /// The event's name.
    pub name: &'static str,
    /// What is known about it.
    pub attributes: Attributes,
}

/// A span's role in an exchange. Numbers are those of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within the process.
    Internal = 1,
    /// A request from outside.
    Server = 2,
    /// A request to another server.
    Client = 3,
}

/// Whether a span failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanStatus {
    /// It did not, or that is for others to judge.
    Unset,
    /// It failed, for this reason.
    Error(&'static str),
}

/// Names and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Vec<(&'static str, AttributeValue)>);

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A fixed or short text.
    Text(Cow<'static, str>),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Double(f64),
    /// Yes or no.
    Bool(bool),
}

impl Attributes {
    /// Adds an attribute.
    pub fn add(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.0.push((name, value.into()));
    }

    /// Adds an attribute if its value is known.
    pub fn add_some(&mut self, name: &'static str, value: Option<impl Into<AttributeValue>>) {
        self.0.extend(value.map(|value| (name, value.into())));
    }

    /// All attributes, in the order of their addition.
    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, AttributeValue)> {
        self.0.iter()
    }
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> AttributeValue {
        AttributeValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    /// The beginning of the text, if it is long.
    fn from(mut text: String) -> AttributeValue {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        AttributeValue::Text(Cow::Owned(text))
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> AttributeValue {
        AttributeValue::Int(number.into())
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> AttributeValue {
        AttributeValue::Int(number.into())
    }
}

impl From<u64> for AttributeValue {
    /// Numbers beyond the range of OTLP become its greatest.
    fn from(number: u64) -> AttributeValue {
        AttributeValue::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f32> for AttributeValue {
    fn from(number: f32) -> AttributeValue {
        AttributeValue::Double(number.into())
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> AttributeValue {
        AttributeValue::Double(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(is_true: bool) -> AttributeValue {
        AttributeValue::Bool(is_true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let AttributeValue::Text(text) = AttributeValue::from("\u{e9}x".repeat(200)) else { panic!() };
        assert_eq!(text.len(), 256 - 256 % 3);
    }
}
