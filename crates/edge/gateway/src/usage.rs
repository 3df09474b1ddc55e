//! Reading what an engine says it used, on the way through.
//!
//! The numbers stand at the end of an answer: in a document's last field, in a stream's last events. So the last few
//! kilobytes are kept and looked at once, at the end; events may be split between reads without anybody noticing. Streams
//! of Anthropic's API say what the prompt was at their beginning, so that is kept too.

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use warmroute_types::Usage;

/// More than enough for usage and what follows it.
const TAIL_BYTES: usize = 4_096;

/// Keeps the end of an answer, and its beginning.
#[derive(Debug, Default)]
pub(crate) struct UsageWatch {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// How many events a stream has had so far.
    events: u32,
}

/// The beginning of a stream is announced in less.
const HEAD_BYTES: usize = 1_024;

/// OpenAI's, the Responses API's and Anthropic's names for the same things.
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
    /// More of the answer.
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

    /// About how many tokens a stream has brought, should it never say so: engines send an event for each, or for a few.
    pub(crate) fn events(&self) -> u32 {
        self.events
    }

    /// Whether a stream has usage, in its API's way, that it is over.
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

    /// What the answer says last of each number, if it counts its prompt at all.
    pub(crate) fn read(&self) -> Option<Usage> {
        let mut output_tokens = None;
        // More may be kept, by how the reads fell; before a long read something may even be missing from it.
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

/// Every usage in these bytes that can be read, the last one first.
fn usages_in(bytes: &[u8]) -> impl Iterator<Item = RawUsage> {
    memmem::rfind_iter(bytes, KEY).filter_map(|at| parse(&bytes[at + KEY.len()..]))
}

const KEY: &[u8] = b"\"usage\"";

fn parse(after_key: &[u8]) -> Option<RawUsage> {
    let value = after_key.trim_ascii_start().strip_prefix(b":")?;
    // Something follows the object, so it is read as the first of several values.
    serde_json::Deserializer::from_slice(value).into_iter().next()?.ok()
}

impl RawUsage {
    /// Anthropic's `input_tokens` leaves out what it counts beside it: read from the cache, and newly written to it.
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

/// Takes the event out of a stream that we asked for and the client did not: the one with usage and no choices. What it takes out
/// depends on the bytes alone, not on how they were cut.
#[derive(Debug, Default)]
pub(crate) struct UsageFilter {
    /// The beginning of an event whose end has not come.
    partial: Vec<u8>,
    state: EventState,
}

/// What is known of an event whose end has not come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum EventState {
    /// It is held back from its beginning on.
    #[default]
    Withheld,
    /// It is too long to be ours: its beginning has been passed on, and the rest follows whatever it says.
    PassingThrough,
}

/// A longer event than this is not ours, and is not held back until its end.
const EVENT_BYTES_MAX: usize = 64 << 10;

impl UsageFilter {
    /// What the client is to see of this chunk. Nearly always that is the chunk itself, uncopied.
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
            // What may be the beginning of its end is needed to see the end.
            let kept = [&b"\n\r"[..], b"\n"].into_iter().find(|end| self.partial.ends_with(end));
            let end = self.partial.len() - kept.map_or(0, <[u8]>::len);
            passed.extend(self.partial.drain(..end));
        }
    }

    /// What is left when the stream ends in the middle of an event.
    pub(crate) fn take_rest(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(self).partial;
        (!rest.is_empty()).then(|| Bytes::from(rest))
    }
}

/// Where the first event ends: after an empty line, whichever way lines are ended. Where one begins, an empty line is an event
/// by itself.
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

/// Usage that is usage, not left empty: with `"usage":null` an event is about something else.
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
    fn usage_is_read_in_every_dialect_and_however_it_is_split() {
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
    fn a_long_stream_that_counts_its_prompt_at_the_beginning_is_understood() {
        let start: &[u8] = br#"{"usage":{"input_tokens":5,"output_tokens":0,"cache_read_input_tokens":4}}"#;
        let end: &[u8] = br#"{"type":"message_delta","usage":{"output_tokens":7000}}"#;
        let text = vec![b'x'; 5 * TAIL_BYTES];
        let expected = Usage { prompt_tokens: 9, output_tokens: 7_000, cached_tokens: Some(4) };
        assert_eq!(read(&[start, &text, end]), Some(expected));
        assert_eq!(read(&[&start[..20], &start[20..], &text, end]), Some(expected));
        assert_eq!(read(&[start, end]), Some(expected), "a short one too");
        assert_eq!(read(&[&text, end]), None);
    }

    #[test]
    fn no_usage_is_none_and_the_tail_is_bounded() {
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
    fn only_the_event_we_asked_for_is_taken_out_wherever_the_reads_fall() {
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
    fn an_event_about_something_else_is_not_taken_out() {
        let other =
            Bytes::from_static(b"data: {\"choices\":[],\"usage\":null,\"prompt_filter_results\":[1]}\n\n");
        assert_eq!(UsageFilter::default().strip(other.clone()), other);
    }

    #[test]
    fn lines_may_end_in_two_bytes_and_long_events_are_not_held_back() {
        let mut events = UsageFilter::default();
        let stream = STREAM.replace('\n', "\r\n");
        let passed = events.strip(Bytes::from(stream));
        assert_eq!(passed.iter().filter(|&&byte| byte == b'\n').count(), 4);
        assert_eq!(events.take_rest(), None);
        let long = Bytes::from(vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert_eq!(events.strip(long.clone()), long);
    }

    /// The same bytes in two reads, cut there.
    fn stripped(stream: &[u8], cut: usize) -> Vec<u8> {
        let mut events = UsageFilter::default();
        let [first, second] = [&stream[..cut], &stream[cut..]].map(Bytes::copy_from_slice);
        [&events.strip(first)[..], &events.strip(second), &events.take_rest().unwrap_or_default()].concat()
    }

    #[test]
    fn empty_lines_before_our_event_are_not_ours() {
        let stream = format!("\n\r\n\n{STREAM}");
        let expected = stripped(stream.as_bytes(), 0);
        assert!(expected.starts_with(b"\n\r\n\ndata: {\"choices\":[{"));
        for cut in 0..=stream.len() {
            assert_eq!(stripped(stream.as_bytes(), cut), expected, "cut at {cut}");
        }
    }

    #[test]
    fn the_end_of_a_long_event_is_not_taken_for_ours() {
        let long = [&vec![b'x'; EVENT_BYTES_MAX + 9], &b"\"choices\":[],\"usage\":{\n"[..]].concat();
        let stream = [&long, &b"\r\n"[..], STREAM.as_bytes()].concat();
        let expected = stripped(&stream, 0);
        assert!(expected.starts_with(&long) && !expected.ends_with(STREAM.as_bytes()));
        for cut in EVENT_BYTES_MAX..=stream.len() {
            assert!(stripped(&stream, cut) == expected, "cut at {cut}");
        }
    }

    #[test]
    fn usage_is_read_alike_however_long_the_reads_are() {
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
    fn a_stream_that_ends_within_an_event_loses_nothing() {
        let mut events = UsageFilter::default();
        assert_eq!(events.strip(Bytes::from_static(b"data: {\"half\"")), Bytes::new());
        assert_eq!(events.take_rest().unwrap(), &b"data: {\"half\""[..]);
    }
}
