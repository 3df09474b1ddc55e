//! Reads the token usage from a response as it passes through.
//!
//! Usage is in the last field of a document, or in the last events of a stream. The last few kilobytes are kept and
//! read once, at the end, so it does not matter where reads split events. Anthropic streams report the prompt at
//! their start, so the start is kept too.

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use warmroute_types::Usage;

/// More than enough for the usage and what follows it.
const TAIL_BYTES: usize = 4_096;

/// Keeps the start and the end of a response.
#[derive(Debug, Default)]
pub(crate) struct UsageWatch {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Events seen so far.
    events: u32,
}

/// Anthropic's first event is shorter.
const HEAD_BYTES: usize = 1_024;

/// Usage in the names of OpenAI, the Responses API and Anthropic.
#[derive(Deserialize)]
struct RawUsage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u32>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u32>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u32>,
    cache_creation_input_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

impl UsageWatch {
    /// Adds a chunk of the response.
    pub(crate) fn observe(&mut self, chunk: &[u8]) {
        self.events = self.events.saturating_add(memmem::find_iter(chunk, b"data:").count() as u32);
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&chunk[..chunk.len().min(room)]);
        let end = &chunk[chunk.len().saturating_sub(TAIL_BYTES)..];
        if self.tail.len() + end.len() > 2 * TAIL_BYTES {
            let surplus = (self.tail.len() + end.len()).saturating_sub(TAIL_BYTES).min(self.tail.len());
            self.tail.drain(..surplus);
        }
        self.tail.extend_from_slice(end);
    }

    /// Approximate output tokens of a stream that does not report them: engines send an event for one or a few tokens.
    pub(crate) fn events(&self) -> u32 {
        self.events
    }

    /// Whether the stream contains the final event of its API.
    pub(crate) fn has_final_event(&self) -> bool {
        const FINAL_EVENTS: [&[u8]; 6] = [
            b"data: [DONE]",
            b"data:[DONE]",
            b"message_stop",
            b"response.completed",
            b"response.incomplete",
            b"\"error\"",
        ];
        FINAL_EVENTS.iter().any(|event| memmem::find(&self.tail, event).is_some())
    }

    /// The last reported usage; `None` if the prompt's tokens were not reported.
    pub(crate) fn read(&self) -> Option<Usage> {
        let mut output_tokens = None;
        // The kept tail depends on how reads split the stream. Only its last part is always complete.
        let tail = &self.tail[self.tail.len().saturating_sub(TAIL_BYTES)..];
        for usage in usages_in(tail).chain(usages_in(&self.head)) {
            output_tokens = output_tokens.or(usage.completion_tokens);
            if let Some(usage) = usage.usage() {
                return Some(Usage { output_tokens: output_tokens.unwrap_or(0), ..usage });
            }
        }
        None
    }
}

/// All readable usages in these bytes, the last one first.
fn usages_in(bytes: &[u8]) -> impl Iterator<Item = RawUsage> {
    memmem::rfind_iter(bytes, KEY).filter_map(|at| parse(&bytes[at + KEY.len()..]))
}

const KEY: &[u8] = b"\"usage\"";

fn parse(after_key: &[u8]) -> Option<RawUsage> {
    let value = after_key.trim_ascii_start().strip_prefix(b":")?;
    // More bytes follow the object, so only the first value is read.
    serde_json::Deserializer::from_slice(value).into_iter().next()?.ok()
}

impl RawUsage {
    /// Anthropic's `input_tokens` excludes tokens read from the cache and tokens written to it. Both are added.
    fn usage(&self) -> Option<Usage> {
        let beside = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let beside = beside.into_iter().flatten().fold(0, u32::saturating_add);
        let cached = self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        Some(Usage {
            prompt_tokens: self.prompt_tokens?.saturating_add(beside),
            output_tokens: self.completion_tokens.unwrap_or(0),
            cached_tokens: cached.or(self.cache_read_input_tokens),
        })
    }
}

/// Removes injected usage events from a stream: events with usage and no choices. What is removed depends on the bytes
/// only, not on how reads split them.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    /// The beginning of an incomplete event.
    partial: Vec<u8>,
    state: EventState,
}

/// State of an incomplete event.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum EventState {
    /// Withheld until it is complete.
    #[default]
    Withheld,
    /// Too long for a usage event: its beginning was passed on, and so is the rest.
    PassingThrough,
}

/// Longer events are no usage events and are not withheld.
const EVENT_BYTES_MAX: usize = 64 << 10;

impl UsageFilter {
    /// Returns what the client gets of this chunk. That is nearly always the chunk itself, without a copy.
    pub(crate) fn strip(&mut self, chunk: Bytes) -> Bytes {
        let is_between = self.partial.is_empty() && self.state == EventState::Withheld;
        if is_between && ends_an_event(&chunk) && !may_be_injected_usage(&chunk) {
            return chunk;
        }
        self.partial.extend_from_slice(&chunk);
        let mut passed = Vec::with_capacity(self.partial.len());
        let mut at = 0;
        while let Some(end) = event_end(&self.partial[at..], self.state) {
            let event = &self.partial[at..at + end];
            if self.state == EventState::PassingThrough || !is_injected_usage(event) {
                passed.extend_from_slice(event);
            }
            self.state = EventState::Withheld;
            at += end;
        }
        self.partial.drain(..at);
        self.pass_if_long(&mut passed);
        Bytes::from(passed)
    }

    fn pass_if_long(&mut self, passed: &mut Vec<u8>) {
        if self.state == EventState::PassingThrough || self.partial.len() > EVENT_BYTES_MAX {
            self.state = EventState::PassingThrough;
            // A possible beginning of the end mark stays, so that the end can be recognized.
            let kept = [&b"\n\r"[..], b"\n"].into_iter().find(|end| self.partial.ends_with(end));
            let end = self.partial.len() - kept.map_or(0, <[u8]>::len);
            passed.extend(self.partial.drain(..end));
        }
    }

    /// The beginning of an event that the stream never completed.
    pub(crate) fn take_rest(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(self).partial;
        (!rest.is_empty()).then(|| Bytes::from(rest))
    }
}

/// The end of the first event: after an empty line, with either kind of line ending. An empty line at the start is an
/// event of its own.
fn event_end(bytes: &[u8], state: EventState) -> Option<usize> {
    if state == EventState::Withheld
        && let Some(end) = empty_line(bytes)
    {
        return Some(end);
    }
    memchr::memchr_iter(b'\n', bytes).find_map(|at| empty_line(&bytes[at + 1..]).map(|end| at + 1 + end))
}

fn empty_line(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
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
    [&b"\"usage\":{"[..], b"\"usage\": {"].iter().any(|key| memmem::find(event, key).is_some())
}

fn may_be_injected_usage(event: &[u8]) -> bool {
    memmem::find(event, b"\"choices\":[]").is_some() || memmem::find(event, b"\"choices\": []").is_some()
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
        let silent = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}"#;
        assert_eq!(read(&[silent]).unwrap().cached_tokens, None);
    }

    #[test]
    fn prompt_tokens_reported_at_the_start_of_a_long_stream_are_read() {
        let start: &[u8] = br#"{"usage":{"input_tokens":5,"output_tokens":0,"cache_read_input_tokens":4}}"#;
        let end: &[u8] = br#"{"type":"message_delta","usage":{"output_tokens":7000}}"#;
        let text = vec![b'x'; 5 * TAIL_BYTES];
        let expected = Usage { prompt_tokens: 9, output_tokens: 7_000, cached_tokens: Some(4) };
        assert_eq!(read(&[start, &text, end]), Some(expected));
        assert_eq!(read(&[&start[..20], &start[20..], &text, end]), Some(expected));
        assert_eq!(read(&[start, end]), Some(expected), "a short stream too");
        assert_eq!(read(&[&text, end]), None);
    }

    #[test]
    fn missing_usage_is_none_and_the_kept_tail_is_bounded() {
        assert_eq!(read(&[br#"{"usage":null}"#, b"\"usage\"", b"\"usage\":{\"prompt_tok"]), None);
        let mut watch = UsageWatch::default();
        (0..100).for_each(|_| watch.observe(&[b'x'; 3_000]));
        watch.observe(&vec![b'x'; 1 << 20]);
        assert!(watch.tail.len() <= 2 * TAIL_BYTES);
        watch.observe(br#""usage":{"prompt_tokens":9}"#);
        assert_eq!(watch.read().unwrap().prompt_tokens, 9);
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
    fn usage_does_not_depend_on_the_size_of_reads() {
        let usage = br#""usage":{"prompt_tokens":9}"#;
        let stream = [&usage[..], &[b' '; TAIL_BYTES]].concat();
        let stream = [&[b' '; HEAD_BYTES], &stream[..], b"x"].concat();
        assert_eq!(read(&[&stream]), None);
        assert_eq!(
            stream
                .chunks(100)
                .fold(UsageWatch::default(), |mut watch, part| {
                    watch.observe(part);
                    watch
                })
                .read(),
            None
        );
    }

    #[test]
    fn a_stream_that_ends_within_an_event_is_passed_on_completely() {
        let mut events = UsageFilter::default();
        assert_eq!(events.strip(Bytes::from_static(b"data: {\"half\"")), Bytes::new());
        assert_eq!(events.take_rest().unwrap(), &b"data: {\"half\""[..]);
    }
}
