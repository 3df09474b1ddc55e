//! A prompt as the digests of its spans.
//!
//! Spans end where messages end, so the spans of a prompt are the first spans of the next turn's prompt. A longer
//! message is split into several spans.

use std::sync::Arc;

use warmroute_prompt::{Body, CHUNK_BYTES, MESSAGE, write_prompt};

/// Most spans of a prompt; the rest is one more span. A megabyte of text has fewer.
pub const SPANS_MAX: usize = 4_096;

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The digest of its bytes.
    pub digest: u64,
    /// Its length in bytes.
    pub bytes: u32,
}

/// A prompt without its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    /// A digest of the cache salt, which separates caches beside the model. Zero without one.
    pub salt: u64,
    /// The spans, in order.
    pub spans: Arc<[Span]>,
}

impl Sketch {
    /// The sketch of a request's prompt; `digest` should be seeded.
    pub fn of(body: &Body<'_>, digest: impl Fn(&[u8]) -> u64) -> Sketch {
        let mut bytes = Vec::new();
        write_prompt(body, &mut bytes);
        let salt = body.salt().map_or(0, |salt| digest(&salt));
        Sketch { salt, spans: spans(&bytes, digest) }
    }
}

fn spans(mut bytes: &[u8], digest: impl Fn(&[u8]) -> u64) -> Arc<[Span]> {
    let mut spans = Vec::with_capacity(bytes.len() / CHUNK_BYTES + 8);
    while !bytes.is_empty() {
        let end = if spans.len() == SPANS_MAX { bytes.len() } else { span_end(bytes) };
        let bytes_len = u32::try_from(end).unwrap_or(u32::MAX);
        spans.push(Span { digest: digest(&bytes[..end]), bytes: bytes_len });
        bytes = &bytes[end..];
    }
    spans.into()
}

/// The end of the first span: before the next message, or at the length limit.
fn span_end(bytes: &[u8]) -> usize {
    let most = bytes.len().min(CHUNK_BYTES);
    bytes[1..most].iter().position(|&byte| byte == MESSAGE).map_or(most, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sketch(messages: &[(&str, &str)], more: &str) -> Sketch {
        let turn = |(role, text): &(&str, &str)| json!({"role": role, "content": text});
        let turns: Vec<_> = messages.iter().map(turn).collect();
        let body = format!(r#"{{"messages":{}{more}}}"#, serde_json::to_string(&turns).unwrap());
        let sum =
            |bytes: &[u8]| bytes.iter().fold(7, |sum: u64, &byte| sum.wrapping_mul(31) + u64::from(byte));
        Sketch::of(&Body::read(body.as_bytes()).unwrap(), sum)
    }

    #[test]
    fn a_turns_spans_are_the_first_of_the_next_turns() {
        let (question, answer) = ("how are you? ".repeat(50), "fine. ".repeat(70));
        let first = sketch(&[("system", "be kind"), ("user", &question)], "");
        let turns = [("system", "be kind"), ("user", &question), ("assistant", &answer), ("user", "good")];
        let second = sketch(&turns, "");
        assert!(first.spans.len() >= 4, "a long message is cut");
        assert_eq!(second.spans[..first.spans.len()], first.spans[..]);
        assert!(second.spans.len() > first.spans.len() + 1);
        assert!(second.spans.iter().all(|span| span.bytes <= CHUNK_BYTES as u32));
    }

    #[test]
    fn a_salt_is_kept_apart_and_a_huge_prompt_is_bounded() {
        let plain = sketch(&[("user", "hi")], "");
        let salted = sketch(&[("user", "hi")], r#","cache_salt":"mine""#);
        assert_eq!((plain.salt, &plain.spans), (0, &salted.spans));
        assert_ne!(salted.salt, 0);
        let huge = sketch(&[("user", &"x".repeat(3 << 20))], "");
        assert_eq!(huge.spans.len(), SPANS_MAX + 1);
        assert!(huge.spans.iter().map(|span| u64::from(span.bytes)).sum::<u64>() > 3 << 20);
    }
}
