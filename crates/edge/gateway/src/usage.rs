//! Reads the token usage from a response as it passes through.
//!
//! Usage may stand anywhere: in the middle of a document with long fields after it, in the last events of a stream, or,
//! for the prompt, in the first. So every chunk is searched for its key. The largest numbers count: usage only grows
//! within a response, and a client that makes the engine repeat an object of the same name gains nothing.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use warmroute_types::Usage;

use crate::event_splitter::EventSplitter;
use crate::meta_info::MetaInfoWatch;
use crate::streamed_text::{Place, StreamedText, TextTokens};

/// Longer objects are no usage. Engines need a few hundred bytes.
const USAGE_BYTES_MAX: usize = 2_048;

/// The mark of an event.
const DATA: &[u8] = b"data:";

/// Every chunk is searched for these. To prepare a search takes longer than to search a chunk.
static DATA_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(DATA));
static KEY_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(KEY));
static CHOICES_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CHOICES));

/// Reads usage, and counts events and text.
#[derive(Debug, Default)]
pub(crate) struct UsageWatch {
    /// The bytes from a possible key on, when the rest is still to come.
    begun: Vec<u8>,
    totals: Totals,
    events: EventCount,
    text: StreamedText,
    /// Reads the counts of `/generate`, which has no usage.
    meta_info: Option<MetaInfoWatch>,
}

/// Number of the events seen so far.
#[derive(Debug)]
struct EventCount {
    count: u32,
    /// The end of the chunk before.
    carry: [u8; DATA.len()],
}

impl Default for EventCount {
    /// The first byte begins a line.
    fn default() -> EventCount {
        EventCount { count: 0, carry: [b'\n'; DATA.len()] }
    }
}

/// Usage in the names of OpenAI, the Responses API and Anthropic. An engine may use several of them at once.
#[derive(Debug, Default)]
struct RawUsage {
    prompt_tokens: Option<u32>,
    output_tokens: Option<u32>,
    total_tokens: Option<u32>,
    cached_tokens: Option<u32>,
}

impl EventCount {
    fn observe(&mut self, chunk: &[u8]) {
        // A mark that was split between two chunks.
        let (mut seam, next) = ([0; 2 * DATA.len() - 1], chunk.len().min(DATA.len() - 1));
        seam[..DATA.len()].copy_from_slice(&self.carry);
        seam[DATA.len()..][..next].copy_from_slice(&chunk[..next]);
        for at in (1..=next).filter(|&at| &seam[at..at + DATA.len()] == DATA) {
            self.take(seam[at - 1]);
        }
        for at in DATA_FINDER.find_iter(chunk) {
            self.take(if at == 0 { self.carry[DATA.len() - 1] } else { chunk[at - 1] });
        }
        let kept = chunk.len().min(DATA.len());
        self.carry.rotate_left(kept);
        self.carry[DATA.len() - kept..].copy_from_slice(&chunk[chunk.len() - kept..]);
    }

    /// Adds events with one mark each, of which the last ends with this chunk.
    fn add(&mut self, events: u32, chunk: &[u8]) {
        self.count = self.count.saturating_add(events);
        self.carry = chunk.last_chunk().copied().unwrap_or_default();
    }

    /// Counts a mark after this byte, if it begins a line.
    fn take(&mut self, before: u8) {
        self.count = self.count.saturating_add(u32::from(before == b'\n'));
    }
}

impl UsageWatch {
    /// Reads `meta_info` in place of a usage.
    pub(crate) fn of_meta_info(watch: MetaInfoWatch) -> UsageWatch {
        UsageWatch { meta_info: Some(watch), ..UsageWatch::default() }
    }

    /// Adds a chunk of the response.
    pub(crate) fn observe(&mut self, chunk: &[u8]) {
        self.events.observe(chunk);
        match &mut self.meta_info {
            Some(watch) => watch.observe(chunk),
            None => self.search(chunk),
        }
    }

    /// Adds a chunk of the response to the text that counts until a usage comes.
    pub(crate) fn observe_text(&mut self, chunk: &[u8]) {
        self.text.observe(chunk);
    }

    /// Whether nothing that the next event may continue has begun.
    pub(crate) fn is_between_events(&self) -> bool {
        self.begun.is_empty() && self.meta_info.is_none() && self.text.open_string().is_none()
    }

    /// Adds a chunk of whole events that differ from earlier ones in their text only, and report no usage.
    pub(crate) fn add_recognized(&mut self, chunk: &[u8], events: u32) {
        self.events.add(events, chunk);
    }

    /// Adds the text of recognized events. Readers of text find the last one's end at this place.
    pub(crate) fn add_text(&mut self, tokens: TextTokens, place: Place) {
        self.text.add(tokens, place);
    }

    /// Looks for usage in a chunk, and in what the chunks before have begun.
    fn search(&mut self, chunk: &[u8]) {
        if self.begun.is_empty() {
            let rest = self.take_usages(chunk);
            return self.begun.extend_from_slice(rest);
        }
        let was_open = self.begun.len() >= KEY.len();
        let mut begun = std::mem::take(&mut self.begun);
        begun.extend_from_slice(chunk);
        // An object ends with a brace, so there is nothing to read before one has come.
        if was_open && begun.len() <= USAGE_BYTES_MAX && memchr::memchr(b'}', chunk).is_none() {
            self.begun = begun;
            return;
        }
        let rest = self.take_usages(&begun).len();
        begun.drain(..begun.len() - rest);
        self.begun = begun;
    }

    /// Takes all usages in these bytes. Returns the end of them that may begin another one.
    fn take_usages<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.totals.take_usages(bytes, Follows::More)
    }

    /// Takes a usage that was read elsewhere.
    pub(crate) fn set(&mut self, usage: Usage) {
        let output_tokens = Some(usage.output_tokens);
        self.totals = Totals { prompt: Some(usage), output_tokens, total_tokens: None };
    }

    /// Approximate output tokens so far: one for each event, or more where events have much text.
    pub(crate) fn streamed_tokens(&self) -> u32 {
        // With `meta_info` each event repeats the text so far.
        let by_text = self.meta_info.as_ref().map_or(self.text.tokens(), MetaInfoWatch::output_tokens);
        self.events.count.max(by_text)
    }

    /// All tokens, if the response reports them but not those of the prompt, which is estimated at this many.
    pub(crate) fn tokens_with_prompt_of(&self, prompt_tokens: u32) -> Option<u32> {
        let totals = self.totals_at_end();
        let with_output = totals.output_tokens.map(|output| output.saturating_add(prompt_tokens));
        totals.total_tokens.max(with_output)
    }

    /// The usage that the response reported, if it ends here; `None` if the prompt's tokens were not reported.
    pub(crate) fn read(&self) -> Option<Usage> {
        if let Some(usage) = self.meta_info.as_ref().and_then(MetaInfoWatch::read) {
            // Events of several answers each have the counts of one. Every event has a token, except `[DONE]`.
            let output_tokens = usage.output_tokens.max(self.events.count.saturating_sub(1));
            return Some(Usage { output_tokens, ..usage });
        }
        let totals = self.totals_at_end();
        totals.prompt.map(|usage| Usage { output_tokens: totals.output_tokens.unwrap_or(0), ..usage })
    }

    /// What was reported if the response ends here. A usage may stand within an object that was never completed.
    fn totals_at_end(&self) -> Totals {
        let mut totals = self.totals;
        totals.take_usages(&self.begun, Follows::Nothing);
        totals
    }
}

/// The largest numbers that a response has reported.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    prompt: Option<Usage>,
    output_tokens: Option<u32>,
    total_tokens: Option<u32>,
}

/// What follows the bytes that are searched.
#[derive(Clone, Copy, PartialEq)]
enum Follows {
    More,
    Nothing,
}

impl Totals {
    /// Takes all usages in these bytes. Returns the end of them that may begin another one.
    fn take_usages<'a>(&mut self, mut bytes: &'a [u8], follows: Follows) -> &'a [u8] {
        while let Some(at) = KEY_FINDER.find(bytes) {
            let from = &bytes[at..];
            match parse(&from[KEY.len()..]) {
                Parsed::Usage(usage) => self.take(&usage),
                Parsed::Partial if follows == Follows::More && from.len() <= USAGE_BYTES_MAX => return from,
                // More space than any engine writes, never completed, or no usage.
                Parsed::Partial | Parsed::Other => {}
            }
            bytes = &from[KEY.len() - 1..];
        }
        let begun = (1..KEY.len()).rev().find(|&length| bytes.ends_with(&KEY[..length])).unwrap_or(0);
        &bytes[bytes.len() - begun..]
    }

    fn take(&mut self, raw: &RawUsage) {
        self.output_tokens = self.output_tokens.max(raw.output_tokens);
        self.total_tokens = self.total_tokens.max(raw.total_tokens);
        if let Some(usage) = raw.usage()
            && self.prompt.is_none_or(|known| known.prompt_tokens <= usage.prompt_tokens)
        {
            self.prompt = Some(usage);
        }
    }
}

const KEY: &[u8] = b"\"usage\"";

/// What stands after the key.
enum Parsed {
    Usage(RawUsage),
    /// More bytes are needed.
    Partial,
    Other,
}

fn parse(after_key: &[u8]) -> Parsed {
    let value = match after_key.trim_ascii_start() {
        [] => return Parsed::Partial,
        [b':', value @ ..] => value.trim_ascii_start(),
        _ => return Parsed::Other,
    };
    match value.first() {
        None => return Parsed::Partial,
        Some(b'{') => {}
        Some(_) => return Parsed::Other,
    }
    // More bytes follow the object, so only the first value is read.
    let mut objects = serde_json::Deserializer::from_slice(value).into_iter::<UsageFields>();
    match objects.next() {
        // The bound applies to the object, so that it does not depend on how reads split the response.
        Some(Ok(usage)) if objects.byte_offset() <= USAGE_BYTES_MAX / 2 => {
            Parsed::Usage(RawUsage::of(&usage))
        }
        Some(Err(error))
            if (error.is_eof() || may_end_within_number(value)) && value.len() <= USAGE_BYTES_MAX / 2 =>
        {
            Parsed::Partial
        }
        _ => Parsed::Other,
    }
}

/// Whether the bytes may end after a number's sign, point or exponent. In a field that it skips, serde_json calls such a number
/// invalid, not incomplete.
fn may_end_within_number(bytes: &[u8]) -> bool {
    matches!(bytes.last(), Some(b'-' | b'+' | b'.' | b'e' | b'E'))
}

impl RawUsage {
    /// Reads a usage. Where an engine gives a number under two names, the larger one counts, and what it leaves out follows
    /// from the total.
    fn of(usage: &UsageFields) -> RawUsage {
        let cached = usage.cached_of_prompt.or(usage.cached_of_input);
        // Anthropic's `input_tokens` excludes tokens read from the cache and tokens written to it.
        let beside = [usage.cache_read, usage.cache_creation];
        let beside = beside.into_iter().flatten().fold(0, u32::saturating_add);
        let input = usage.input.map(|input| input.saturating_add(beside));
        let prompt = usage.prompt.max(input);
        let output = usage.completion.max(usage.output);
        let total = usage.total;
        let rest = |known: Option<u32>| Some(total?.saturating_sub(known?));
        RawUsage {
            prompt_tokens: prompt.or_else(|| rest(output)),
            output_tokens: output.or_else(|| rest(prompt)),
            total_tokens: total,
            cached_tokens: cached.or(usage.cache_read),
        }
    }

    /// The usage, if the prompt's tokens are known.
    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: self.prompt_tokens?,
            output_tokens: self.output_tokens.unwrap_or(0),
            cached_tokens: self.cached_tokens,
        })
    }
}

/// The fields of a usage that count. Of a repeated field the last one counts, and what is no number of tokens is left out.
#[derive(Debug, Default)]
struct UsageFields {
    prompt: Option<u32>,
    completion: Option<u32>,
    total: Option<u32>,
    input: Option<u32>,
    output: Option<u32>,
    cache_read: Option<u32>,
    cache_creation: Option<u32>,
    cached_of_prompt: Option<u32>,
    cached_of_input: Option<u32>,
}

/// The names of these fields.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum UsageName {
    PromptTokens,
    CompletionTokens,
    TotalTokens,
    InputTokens,
    OutputTokens,
    CacheReadInputTokens,
    CacheCreationInputTokens,
    PromptTokensDetails,
    InputTokensDetails,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for UsageFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UsageFields, D::Error> {
        deserializer.deserialize_map(UsageVisitor)
    }
}

/// Reads a usage field by field, without a map of all of them.
struct UsageVisitor;

impl<'de> Visitor<'de> for UsageVisitor {
    type Value = UsageFields;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a usage")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<UsageFields, A::Error> {
        let mut usage = UsageFields::default();
        while let Some(name) = fields.next_key()? {
            let count = match name {
                UsageName::PromptTokens => &mut usage.prompt,
                UsageName::CompletionTokens => &mut usage.completion,
                UsageName::TotalTokens => &mut usage.total,
                UsageName::InputTokens => &mut usage.input,
                UsageName::OutputTokens => &mut usage.output,
                UsageName::CacheReadInputTokens => &mut usage.cache_read,
                UsageName::CacheCreationInputTokens => &mut usage.cache_creation,
                UsageName::PromptTokensDetails => {
                    usage.cached_of_prompt = cached_of(&fields.next_value()?);
                    continue;
                }
                UsageName::InputTokensDetails => {
                    usage.cached_of_input = cached_of(&fields.next_value()?);
                    continue;
                }
                UsageName::Other => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *count = count_of(&fields.next_value()?);
        }
        Ok(usage)
    }
}

/// The cached tokens in the details of a usage.
fn cached_of(details: &Value) -> Option<u32> {
    count_of(details.get("cached_tokens")?)
}

/// A number of tokens. Some engines write `99.0`.
fn count_of(number: &Value) -> Option<u32> {
    let whole = number.as_u64().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    // A float beyond the type's range saturates.
    let is_count = |float: &f64| *float >= 0.0 && float.fract() == 0.0;
    whole.or_else(|| number.as_f64().filter(is_count).map(|float| float as u32))
}

/// Removes injected usage events from a stream: events with usage and no choices. What is removed depends on the bytes
/// only, not on how reads split them.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    splitter: EventSplitter,
}

/// Longer events are no usage events and are not withheld.
const EVENT_BYTES_MAX: usize = 64 << 10;

impl UsageFilter {
    /// Returns what the client gets of this chunk. That is nearly always the chunk itself, without a copy.
    pub(crate) fn strip(&mut self, chunk: Bytes) -> Bytes {
        if self.splitter.is_between_events() && ends_an_event(&chunk) && !may_be_injected_usage(&chunk) {
            return chunk;
        }
        self.splitter.push(&chunk);
        let mut passed = Vec::new();
        let mut is_long = self.splitter.is_within_event();
        while let Some(event) = self.splitter.next_event() {
            if is_long || !is_injected_usage(&event) {
                passed.extend_from_slice(&event);
            }
            is_long = false;
        }
        if is_long || self.splitter.partial_len() > EVENT_BYTES_MAX {
            self.splitter.take_beginning(&mut passed);
        }
        Bytes::from(passed)
    }

    /// Whether the next byte begins an event.
    pub(crate) fn is_between_events(&self) -> bool {
        self.splitter.is_between_events()
    }

    /// The beginning of an event that the stream never completed.
    pub(crate) fn take_rest(&mut self) -> Option<Bytes> {
        Some(self.splitter.take_rest()).filter(|rest| !rest.is_empty())
    }
}

fn is_injected_usage(event: &[u8]) -> bool {
    event.len() <= EVENT_BYTES_MAX && may_be_injected_usage(event) && carries_usage(event)
}

fn ends_an_event(chunk: &[u8]) -> bool {
    chunk.ends_with(b"\n\n") || chunk.ends_with(b"\n\r\n")
}

/// Whether the event reports usage. `"usage":null` does not count.
fn carries_usage(event: &[u8]) -> bool {
    let is_object = |after_key: &[u8]| after_key.starts_with(b":{") || after_key.starts_with(b": {");
    after_keys(event).any(is_object)
}

/// Whether something in the event may be read as a usage.
pub(crate) fn may_report_usage(event: &[u8]) -> bool {
    let value = |after_key: &[u8]| {
        after_key.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().first().copied()
    };
    after_keys(event).any(|after_key| value(after_key) == Some(b'{'))
}

/// What follows each key. The quote that ends one may begin the next.
fn after_keys(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        bytes = &bytes[KEY_FINDER.find(bytes)? + KEY.len() - 1..];
        Some(&bytes[1..])
    })
}

const CHOICES: &[u8] = b"\"choices\":";

/// Whether the event has no choices.
pub(crate) fn may_be_injected_usage(event: &[u8]) -> bool {
    let is_empty = |list: &[u8]| list.starts_with(b"[]") || list.starts_with(b" []");
    CHOICES_FINDER.find_iter(event).any(|at| is_empty(&event[at + CHOICES.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&[u8]]) -> Option<Usage> {
        let mut watch = UsageWatch::default();
        chunks.iter().for_each(|chunk| watch.observe(chunk));
        watch.read()
    }

    #[test]
    fn usage_is_read_in_every_dialect_wherever_reads_split_it() {
        let openai = br#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let expected = Usage { prompt_tokens: 9, output_tokens: 2, cached_tokens: Some(4) };
        for cut in 0..openai.len() {
            assert_eq!(
                read(&[&openai[..cut], &openai[cut..], b"\n\ndata: [DONE]\n\n"]),
                Some(expected),
                "{cut}"
            );
        }
        let responses =
            br#"{"usage": {"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(read(&[responses]), Some(expected));
        let anthropic = br#"{"usage":{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":4}}"#;
        assert_eq!(read(&[anthropic]), Some(expected));
        for both in [
            r#"{"prompt_tokens":9,"completion_tokens":2,"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}"#,
            r#"{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":4,"prompt_tokens":9,"completion_tokens":1}"#,
            r#"{"prompt_tokens":9.0,"completion_tokens":2.0,"prompt_tokens_details":{"cached_tokens":4.0}}"#,
            r#"{"prompt_tokens":9,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}"#,
            r#"{"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4}}"#,
            r#"{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens":9,"input_tokens_details":{"cached_tokens":4}}"#,
        ] {
            assert_eq!(read(&[format!(r#"{{"usage":{both}}}"#).as_bytes()]), Some(expected), "{both}");
        }
        let timed = br#"{"usage":{"queue_time":-1.5e-3,"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        for cut in 0..timed.len() {
            assert_eq!(read(&[&timed[..cut], &timed[cut..]]), Some(expected), "{cut}");
        }
        let silent = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}"#;
        assert_eq!(read(&[silent]).unwrap().cached_tokens, None);
    }

    #[test]
    fn a_usage_within_an_object_that_never_ends_is_read_wherever_reads_split_it() {
        for end in [&b""[..], b"\n\n\xcf", b"\n\n"] {
            let nested =
                [br#"{"usage":{"a":[],"usage":{"prompt_tokens":9,"completion_tokens":2}"#, end].concat();
            let expected = Some(Usage { prompt_tokens: 9, output_tokens: 2, cached_tokens: None });
            assert_eq!(read(&nested.chunks(1).collect::<Vec<_>>()), expected);
            for cut in 0..nested.len() {
                assert_eq!(read(&[&nested[..cut], &nested[cut..]]), expected, "{cut}");
            }
        }
    }

    #[test]
    fn prompt_tokens_reported_at_the_start_of_a_long_stream_are_read() {
        let start: &[u8] = br#"{"usage":{"input_tokens":5,"output_tokens":0,"cache_read_input_tokens":4}}"#;
        let end: &[u8] = br#"{"type":"message_delta","usage":{"output_tokens":7000}}"#;
        let text = vec![b'x'; 20_000];
        let expected = Usage { prompt_tokens: 9, output_tokens: 7_000, cached_tokens: Some(4) };
        assert_eq!(read(&[start, &text, end]), Some(expected));
        assert_eq!(read(&[&start[..20], &start[20..], &text, end]), Some(expected));
        assert_eq!(read(&[start, end]), Some(expected), "a short stream too");
        assert_eq!(read(&[&text, end]), None);
    }

    #[test]
    fn a_total_or_the_output_alone_is_known_with_an_estimate_of_the_prompt() {
        for (usage, expected) in [
            (r#"{"total_tokens":1000}"#, Some(1_000)),
            (r#"{"completion_tokens":900}"#, Some(907)),
            (r#"{"total_tokens":-1,"completion_tokens":0.5,"prompt_tokens":"9"}"#, None),
        ] {
            let mut watch = UsageWatch::default();
            watch.observe(format!(r#"{{"usage":{usage}}}"#).as_bytes());
            assert_eq!((watch.read(), watch.tokens_with_prompt_of(7)), (None, expected), "{usage}");
        }
    }

    #[test]
    fn missing_usage_is_none() {
        assert_eq!(read(&[br#"{"usage":null}"#, b"\"usage\"", b"\"usage\":{\"prompt_tok"]), None);
    }

    #[test]
    fn usage_is_read_wherever_it_stands_and_the_largest_counts() {
        let long = vec![b'7'; 100_000];
        let usage: &[u8] = br#","usage":{"prompt_tokens":9,"completion_tokens":900},"#;
        let forged: &[u8] = br#""tools":[{"usage":{"prompt_tokens":1,"completion_tokens":1}}]"#;
        let document =
            [&br#"{"prompt_logprobs":["#[..], &long, b"]", usage, b"\"ids\":[", &long, b"],", forged];
        let document = document.concat();
        for size in [1, 7, 100, 4_096, document.len()] {
            let pieces: Vec<&[u8]> = document.chunks(size).collect();
            let usage = read(&pieces).unwrap();
            assert_eq!((usage.prompt_tokens, usage.output_tokens), (9, 900), "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_usage_is_given_up_and_bounded() {
        let mut watch = UsageWatch::default();
        for _ in 0..2_000 {
            watch.observe(b"\"usage\":{\"a\":\"");
            (0..10).for_each(|_| watch.observe(&[b'}'; 100]));
            assert!(watch.begun.len() <= USAGE_BYTES_MAX + 100);
        }
        watch.observe(&[b' '; 2 * USAGE_BYTES_MAX]);
        watch.observe(br#""usage":{"prompt_tokens":9}"#);
        assert_eq!(watch.read().unwrap().prompt_tokens, 9);
    }

    #[test]
    fn tokens_of_a_stream_without_usage_are_counted_by_events_and_by_text() {
        let event =
            |text: &str| format!("data: {{\"id\":\"chatcmpl-1\",\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
        let tokens = |stream: String, size: usize| {
            let mut watch = UsageWatch::default();
            for part in stream.as_bytes().chunks(size) {
                watch.observe(part);
                watch.observe_text(part);
            }
            watch.streamed_tokens()
        };
        for size in [1, 3, 64, 10_000] {
            let plain = event(" a").repeat(50) + "data: [DONE]\n\n";
            assert_eq!(tokens(plain, size), 51, "one token in an event");
            let packed = event(&"word ".repeat(50)).repeat(20) + "data: [DONE]\n\n";
            assert_eq!(tokens(packed, size), 1_000, "fifty tokens in each event");
            let quoting = event("data:").repeat(10);
            assert_eq!(tokens(quoting, size), 20, "text that looks like an event is none");
        }
    }

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n\
                          data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9}}\n\ndata: [DONE]\n\n";

    #[test]
    fn only_the_injected_usage_event_is_removed_wherever_reads_split_the_stream() {
        let expected = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n";
        for cut in 0..=STREAM.len() {
            let mut events = UsageFilter::default();
            let mut passed = Vec::new();
            for part in [&STREAM[..cut], &STREAM[cut..]] {
                passed.extend_from_slice(&events.strip(Bytes::copy_from_slice(part.as_bytes())));
            }
            assert_eq!(events.take_rest(), None);
            assert_eq!(String::from_utf8(passed).unwrap(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn an_event_without_choices_or_usage_is_kept() {
        let other =
            Bytes::from_static(b"data: {\"choices\":[],\"usage\":null,\"prompt_filter_results\":[1]}\n\n");
        assert_eq!(UsageFilter::default().strip(other.clone()), other);
    }

    #[test]
    fn both_line_endings_work_and_long_events_are_not_withheld() {
        let mut events = UsageFilter::default();
        let stream = STREAM.replace('\n', "\r\n");
        let passed = events.strip(Bytes::from(stream));
        assert_eq!(passed.iter().filter(|&&byte| byte == b'\n').count(), 4);
        assert_eq!(events.take_rest(), None);
        let long = Bytes::from(vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert_eq!(events.strip(long.clone()), long);
    }

    /// The stream after filtering, read in two parts split at `cut`.
    fn stripped(stream: &[u8], cut: usize) -> Vec<u8> {
        let mut events = UsageFilter::default();
        let [first, second] = [&stream[..cut], &stream[cut..]].map(Bytes::copy_from_slice);
        [&events.strip(first)[..], &events.strip(second), &events.take_rest().unwrap_or_default()].concat()
    }

    #[test]
    fn empty_lines_before_the_usage_event_are_kept() {
        let stream = format!("\n\r\n\n{STREAM}");
        let expected = stripped(stream.as_bytes(), 0);
        assert!(expected.starts_with(b"\n\r\n\ndata: {\"choices\":[{"));
        for cut in 0..=stream.len() {
            assert_eq!(stripped(stream.as_bytes(), cut), expected, "cut at {cut}");
        }
    }

    #[test]
    fn the_end_of_a_long_event_is_not_mistaken_for_a_usage_event() {
        let long = [&vec![b'x'; EVENT_BYTES_MAX + 9], &b"\"choices\":[],\"usage\":{\n"[..]].concat();
        let stream = [&long, &b"\r\n"[..], STREAM.as_bytes()].concat();
        let expected = stripped(&stream, 0);
        assert!(expected.starts_with(&long) && !expected.ends_with(STREAM.as_bytes()));
        for cut in EVENT_BYTES_MAX..=stream.len() {
            assert!(stripped(&stream, cut) == expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_stream_that_ends_within_an_event_is_passed_on_completely() {
        let mut events = UsageFilter::default();
        assert_eq!(events.strip(Bytes::from_static(b"data: {\"half\"")), Bytes::new());
        assert_eq!(events.take_rest().unwrap(), &b"data: {\"half\""[..]);
    }
}
