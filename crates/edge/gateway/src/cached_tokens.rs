//! Hides the numbers of cached tokens from tenants that must not learn what others have sent.
//!
//! A response's `usage` says how many tokens of the prompt were cached: an exact answer to the question whether a
//! prompt was sent before, by any tenant. For a tenant with `cached-tokens=hidden` every `usage` object, and what engines
//! report beside it, is rewritten as if nothing had been cached. The time to the first token still tells, but less exactly; a
//! cache salt hides both.

use bytes::Bytes;
use memchr::memmem;
use serde_json::{Map, Value};
use warmroute_types::OptionValue;

/// Whether clients see how many tokens of their prompts were cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachedTokens {
    /// Usage is passed on as it is.
    #[default]
    Shown,
    /// Usage says that nothing was cached.
    Hidden,
}

impl OptionValue for CachedTokens {
    const VALUES: &'static [(CachedTokens, &'static str, &'static str)] = &[
        (CachedTokens::Shown, "shown", "Pass the engine's numbers on"),
        (CachedTokens::Hidden, "hidden", "Report that nothing was cached"),
    ];
}

/// Names of the values that tell: every API's usage, SGLang's with `return_cached_tokens_details`, llama.cpp's timings,
/// and single numbers. Those stand beside a usage, in one that is too long to be read as a whole, or in SGLang's
/// `meta_info`, which always is.
const KEYS: [&[u8]; 9] = [
    b"\"usage\"",
    b"\"sglext\"",
    TIMINGS,
    b"\"cached_tokens\"",
    b"\"cached_tokens_details\"",
    b"\"cached_tokens_per_turn\"",
    b"\"num_cached_tokens\"",
    b"\"tokens_cached\"",
    b"\"cache_n\"",
];

/// llama.cpp's counts and times of a prompt without what was cached.
const TIMINGS: &[u8] = b"\"timings\"";

/// In names that speak of the cache.
const CACHE: &str = "cache";

/// Longer numbers are no count and pass unchanged.
const DIGITS_MAX: usize = 20;

/// Longer objects are no usage and pass unchanged.
const USAGE_BYTES_MAX: usize = 4_096;

/// Rewrites the usage in a response as it passes. What comes out does not depend on how reads split the response.
#[derive(Debug, Default)]
pub(crate) struct CachedTokensFilter {
    /// The beginning of a possible usage, withheld until it is complete.
    withheld: Vec<u8>,
}

/// What stands after the key.
enum Usage {
    /// An object, a list or a number of this many bytes, key included.
    Whole(usize),
    /// More bytes are needed.
    Partial,
    /// Something else.
    Other,
}

impl CachedTokensFilter {
    /// What the client gets of this chunk.
    pub(crate) fn filter(&mut self, chunk: Bytes) -> Bytes {
        if self.withheld.is_empty() && memchr::memchr(b'"', &chunk).is_none() {
            return chunk;
        }
        let mut bytes = std::mem::take(&mut self.withheld);
        bytes.extend_from_slice(&chunk);
        let mut passed = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some((found, key)) = first_key(&bytes[at..]) {
            passed.extend_from_slice(&bytes[at..at + found]);
            at += found;
            match usage_at(&bytes[at..], key.len()) {
                Usage::Whole(length) => {
                    rewrite(key, &bytes[at..at + length], &mut passed);
                    at += length;
                }
                Usage::Partial => {
                    self.withheld.extend_from_slice(&bytes[at..]);
                    return Bytes::from(passed);
                }
                Usage::Other => {
                    passed.extend_from_slice(key);
                    at += key.len();
                }
            }
        }
        let rest = &bytes[at..];
        let begun = KEYS.iter().map(|key| begun_bytes(rest, key)).max().unwrap_or(0);
        passed.extend_from_slice(&rest[..rest.len() - begun]);
        self.withheld.extend_from_slice(&rest[rest.len() - begun..]);
        Bytes::from(passed)
    }

    /// What is still withheld, at the end.
    pub(crate) fn take_rest(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(&mut self.withheld);
        (!rest.is_empty()).then(|| Bytes::from(rest))
    }
}

/// The first of the keys, and where it begins.
fn first_key(bytes: &[u8]) -> Option<(usize, &'static [u8])> {
    KEYS.iter().filter_map(|key| Some((memmem::find(bytes, key)?, *key))).min()
}

/// How many bytes at the end may be the beginning of a key.
fn begun_bytes(bytes: &[u8], key: &[u8]) -> usize {
    (1..key.len()).rev().find(|&length| bytes.ends_with(&key[..length])).unwrap_or(0)
}

fn usage_at(bytes: &[u8], key_bytes: usize) -> Usage {
    let mut values = [b':', b'{'].into_iter();
    let mut wanted = values.next();
    for (at, &byte) in bytes.iter().enumerate().skip(key_bytes).take(USAGE_BYTES_MAX) {
        match wanted {
            _ if byte.is_ascii_whitespace() => {}
            Some(b'{') if matches!(byte, b'{' | b'[') => return value_at(bytes, at),
            Some(b'{') if byte.is_ascii_digit() => return number_at(bytes, at),
            Some(next) if byte == next => wanted = values.next(),
            _ => return Usage::Other,
        }
    }
    if bytes.len() > USAGE_BYTES_MAX { Usage::Other } else { Usage::Partial }
}

/// The number that begins at `from`. It ends where something else begins.
fn number_at(bytes: &[u8], from: usize) -> Usage {
    let digits = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    match from + digits < bytes.len() {
        _ if digits > DIGITS_MAX => Usage::Other,
        true => Usage::Whole(from + digits),
        false => Usage::Partial,
    }
}

/// The object or list that begins at `from`.
fn value_at(bytes: &[u8], from: usize) -> Usage {
    let mut values = serde_json::Deserializer::from_slice(&bytes[from..]).into_iter::<Value>();
    match values.next() {
        // The bound applies to the value, so that it does not depend on how reads split the response.
        Some(Ok(_)) if values.byte_offset() <= USAGE_BYTES_MAX => Usage::Whole(from + values.byte_offset()),
        Some(Err(error)) if error.is_eof() && bytes.len() - from <= USAGE_BYTES_MAX => Usage::Partial,
        _ => Usage::Other,
    }
}

/// Writes a usage as if nothing had been cached.
fn rewrite(key: &[u8], usage: &[u8], out: &mut Vec<u8>) {
    let is_of_cache = memmem::find(key, CACHE.as_bytes()).is_some();
    let Some(from) = memchr::memchr2(b'{', b'[', usage) else {
        let digits = usage.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (key, number) = usage.split_at(usage.len() - digits);
        out.extend_from_slice(key);
        return out.extend_from_slice(if is_of_cache { b"0" } else { number });
    };
    let Ok(mut value) = serde_json::from_slice::<Value>(&usage[from..]) else {
        return out.extend_from_slice(usage);
    };
    if let Value::Object(object) = &mut value {
        // These counts exclude cached tokens, so cached ones are added.
        add_to(object, "input_tokens", &["cache_read_input_tokens", "cache_creation_input_tokens"]);
        add_to(object, "prompt_n", &["cache_n"]);
        if key == TIMINGS {
            let is_time = |name: &str| name.starts_with("prompt_") && name != "prompt_n";
            let times = object.iter_mut().filter(|(name, _)| is_time(name));
            times.for_each(|(_, time)| *time = Value::from(0));
        }
    }
    hide_in(&mut value, is_of_cache);
    out.extend_from_slice(&usage[..from]);
    out.extend_from_slice(value.to_string().as_bytes());
}

/// Adds other counts to one.
fn add_to(object: &mut Map<String, Value>, name: &str, others: &[&str]) {
    let count_of = |name: &str| object.get(name).and_then(Value::as_u64);
    let added = others.iter().filter_map(|other| count_of(other)).fold(0, u64::saturating_add);
    if let Some(count) = count_of(name).filter(|_| added > 0) {
        object.insert(name.to_owned(), Value::from(count.saturating_add(added)));
    }
}

/// Sets every number to zero whose name, or the name of an object or list around it, speaks of the cache.
fn hide_in(value: &mut Value, is_of_cache: bool) {
    match value {
        Value::Object(object) => {
            object.iter_mut().for_each(|(name, inner)| hide_in(inner, is_of_cache || name.contains(CACHE)));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| hide_in(inner, is_of_cache)),
        Value::Number(_) if is_of_cache => *value = Value::from(0),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(text: &str, cut: usize) -> String {
        let mut filter = CachedTokensFilter::default();
        let mut out = Vec::new();
        for part in text.as_bytes().chunks(cut.max(1)) {
            out.extend_from_slice(&filter.filter(Bytes::copy_from_slice(part)));
        }
        out.extend_from_slice(&filter.take_rest().unwrap_or_default());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn usage_says_that_nothing_was_cached_wherever_reads_split_it() {
        for (text, expected) in [
            (
                r#"{"a":"\"usage\":{","usage": {"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}},"z":1}"#,
                r#"{"a":"\"usage\":{","usage": {"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}},"z":1}"#,
            ),
            (
                r#"data: {"usage":{"cache_read_input_tokens":7,"input_tokens":2,"output_tokens":1}}"#,
                r#"data: {"usage":{"cache_read_input_tokens":0,"input_tokens":9,"output_tokens":1}}"#,
            ),
            (
                r#"{"sglext":{"cached_tokens_details":{"device":608,"host":0}},"usage":{"prompt_tokens":640}}"#,
                r#"{"sglext":{"cached_tokens_details":{"device":0,"host":0}},"usage":{"prompt_tokens":640}}"#,
            ),
            (
                r#"{"text":"\"cached_tokens\":7,","meta_info":{"cached_tokens": 64,"cached_tokens_details":{"device":64}}}"#,
                r#"{"text":"\"cached_tokens\":7,","meta_info":{"cached_tokens": 0,"cached_tokens_details":{"device":0}}}"#,
            ),
            (
                r#"{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4,"cached_tokens_per_turn":[4,[3]],"input_tokens_per_turn":[9]}}}"#,
                r#"{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":0,"cached_tokens_per_turn":[0,[0]],"input_tokens_per_turn":[9]}}}"#,
            ),
            (
                r#"{"cached_tokens_per_turn": [4,3],"num_cached_tokens":4,"tokens_cached":4,"cached":4}"#,
                r#"{"cached_tokens_per_turn": [0,0],"num_cached_tokens":0,"tokens_cached":0,"cached":4}"#,
            ),
            (
                r#"{"timings":{"cache_n":608,"predicted_ms":7.5,"prompt_ms":1.5,"prompt_n":32}}"#,
                r#"{"timings":{"cache_n":0,"predicted_ms":7.5,"prompt_ms":0,"prompt_n":640}}"#,
            ),
            (r#"{"timings":7,"cache_n":608}"#, r#"{"timings":7,"cache_n":0}"#),
            (r#"{"cached_tokens":6"#, r#"{"cached_tokens":6"#),
            (r#"{"usage":null,"b":"usage","usage":5}"#, r#"{"usage":null,"b":"usage","usage":5}"#),
            (r#"{"usage":{"prompt_tokens":"#, r#"{"usage":{"prompt_tokens":"#),
            (r#"{"usage":[{"cached_tokens":4}]}"#, r#"{"usage":[{"cached_tokens":0}]}"#),
        ] {
            for cut in 1..text.len() + 1 {
                assert_eq!(filtered(text, cut), expected, "in pieces of {cut}");
            }
        }
    }

    #[test]
    fn a_usage_that_is_too_long_has_no_numbers_of_the_cache_either() {
        let turns = "1,".repeat(USAGE_BYTES_MAX);
        let usage = format!(
            r#"{{"usage":{{"per_turn":[{turns}0],"cached_tokens":6,"cached_tokens_per_turn":[6,6]}}}}"#
        );
        let seen = filtered(&usage, 100);
        assert_eq!(seen, usage.replace('6', "0"));
    }

    #[test]
    fn a_usage_that_never_ends_is_not_withheld_forever() {
        let endless = format!("{{\"usage\":{{\"a\":\"{}", "x".repeat(3 * USAGE_BYTES_MAX));
        let mut filter = CachedTokensFilter::default();
        let mut seen = 0;
        for part in endless.as_bytes().chunks(100) {
            seen += filter.filter(Bytes::copy_from_slice(part)).len();
        }
        assert!(seen > 2 * USAGE_BYTES_MAX, "{seen}");
    }
}
