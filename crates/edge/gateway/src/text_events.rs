//! Recognizes events of a stream that differ from an earlier one in their text only.
//!
//! ```text
//! data: {"id":"chatcmpl-7","choices":[{"index":0,"delta":{"content":" and"},"finish_reason":null}]}
//! data: {"id":"chatcmpl-7","choices":[{"index":0,"delta":{"content":" so"},"finish_reason":null}]}
//! ╰───────────────────────────── start ─────────────────────────────╯   ╰───────── end ─────────╯
//! ```
//!
//! Nearly all events of most streams are such. Whatever reads a stream has read the start and the end before, and finds out
//! nothing new about them: the events are counted, and the tokens of their text.

use std::sync::LazyLock;

use memchr::memmem::FinderRev;

use crate::stream_end::StreamEnd;
use crate::streamed_text::{Part, Place, StreamedText, TextTokens};
use crate::usage::may_be_injected_usage;

/// Between two events.
const BOUNDARY: &[u8] = b"\n\n";

static BOUNDARY_FINDER: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(BOUNDARY));

/// Longer events are not kept to compare others with.
const EVENT_BYTES_MAX: usize = 2_048;

/// Consecutive events without a common shape after which no more are compared.
const TRIES_MAX: u8 = 32;

/// The events that a stream repeats.
#[derive(Debug, Default)]
pub(crate) struct TextEvents {
    shape: Option<EventShape>,
    /// The last event that was not of the shape.
    last: Vec<u8>,
    tries: u8,
    /// Whether the last chunk ended within an event.
    is_within_event: bool,
}

/// Recognized events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecognizedEvents {
    pub(crate) count: u32,
    pub(crate) tokens: TextTokens,
    /// Where the last one ends, to readers of text.
    pub(crate) place: Place,
}

/// What is before and after the text of an event, and how its text counts.
#[derive(Debug)]
struct EventShape {
    /// Up to the quote before the text.
    start: Vec<u8>,
    /// From the quote after the text on.
    end: Vec<u8>,
    part: Part,
    /// Tokens of other text in the event.
    other_tokens: TextTokens,
    /// Where the event ends, to readers of text.
    place: Place,
}

impl TextEvents {
    /// The events of a chunk, if it consists of whole events that are recognized.
    pub(crate) fn recognize(&self, mut chunk: &[u8]) -> Option<RecognizedEvents> {
        let shape = self.shape.as_ref().filter(|_| !self.is_within_event && !chunk.is_empty())?;
        let mut events = RecognizedEvents { place: shape.place, ..RecognizedEvents::default() };
        while !chunk.is_empty() {
            let (text, rest) = shape.split(chunk)?;
            events.count += 1;
            events.tokens.add_all(shape.other_tokens);
            events.tokens.add_string(shape.part, text);
            chunk = rest;
        }
        Some(events)
    }

    /// Learns from a chunk that has been read in another way.
    pub(crate) fn learn(&mut self, chunk: &[u8]) {
        let was_within_event = self.is_within_event;
        self.is_within_event = !chunk.ends_with(BOUNDARY);
        if self.tries == TRIES_MAX {
            return;
        }
        let before_boundary = chunk.strip_suffix(BOUNDARY);
        let event = before_boundary.and_then(|before| match BOUNDARY_FINDER.rfind(before) {
            Some(at) => Some(&chunk[at + BOUNDARY.len()..]),
            None => Some(chunk).filter(|_| !was_within_event),
        });
        match event.filter(|event| event.len() <= EVENT_BYTES_MAX) {
            Some(event) => {
                self.tries += 1;
                if let Some(shape) = EventShape::of(&self.last, event) {
                    (self.shape, self.tries) = (Some(shape), 0);
                }
                self.last.clear();
                self.last.extend_from_slice(event);
            }
            None => self.last.clear(),
        }
    }
}

impl EventShape {
    /// The shape of two events that differ in their text only.
    fn of(one: &[u8], other: &[u8]) -> Option<EventShape> {
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        let start = memchr::memrchr(b'"', &one[..same])? + 1;
        let ends = one[start..].iter().rev().zip(other[start..].iter().rev());
        let same_end = &one[one.len() - ends.take_while(|(one, other)| one == other).count()..];
        let end = &same_end[memchr::memchr(b'"', same_end)?..];
        let shape = EventShape::new(&one[..start], end).filter(|_| !may_be_injected_usage(one))?;
        let is_whole = |event: &[u8]| shape.split(event).is_some_and(|(_, rest)| rest.is_empty());
        (is_whole(one) && is_whole(other)).then_some(shape)
    }

    /// A shape around a text, if what readers find in the event does not depend on that text.
    fn new(start: &[u8], end: &[u8]) -> Option<EventShape> {
        let (mut text, mut events) = (StreamedText::default(), StreamEnd::default());
        text.observe(start);
        events.observe(start);
        let part = text.open_string().filter(|part| matches!(part, Part::Delta | Part::Text))?;
        text.observe(end);
        let (other_tokens, place) = text.reading();
        let is_value = matches!(end[1..].trim_ascii_start().first(), Some(b',' | b'}' | b']'));
        let is_text = events.is_within_text() && is_value && text.open_string().is_none();
        (is_text
            && is_object_last(start)
            && end.iter().position(|byte| *byte == b'\n') == Some(end.len() - 2))
        .then(|| EventShape { start: start.to_vec(), end: end.to_vec(), part, other_tokens, place })
    }

    /// The text of the event that these bytes begin with, and what follows it.
    fn split<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let from_text = bytes.strip_prefix(&*self.start)?;
        // A text with escapes is read in another way.
        let text = memchr::memchr3(b'"', b'\\', b'\n', from_text)?;
        Some((&from_text[..text], from_text[text..].strip_prefix(&*self.end)?))
    }
}

/// Whether the last of these lines is the only one of an event's data, which begins with an object. Strings before that
/// would be read by what the event before was.
fn is_object_last(lines: &[u8]) -> bool {
    let mut lines = lines.rsplit(|byte| *byte == b'\n');
    let data = lines.next().and_then(|line| line.strip_prefix(b"data:"));
    data.is_some_and(|data| data.trim_ascii_start().starts_with(b"{"))
        && lines.all(|line| line.starts_with(b"event:") && !line.contains(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::Framing;
    use crate::response_content::{ChunkKind, ResponseContent, TextCounting};
    use crate::usage::UsageWatch;

    const CHAT: [&str; 2] = [
        "data: {\"id\":\"chatcmpl-7\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"",
        "\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    ];
    const RESPONSES: [&str; 2] = [
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"",
        "\",\"item_id\":\"msg-1\"}\n\n",
    ];
    const MESSAGES: [&str; 2] = [
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"",
        "\"}}\n\n",
    ];

    fn events([start, end]: [&str; 2], texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| format!("{start}{text}{end}")).collect()
    }

    fn content() -> ResponseContent {
        let content =
            ResponseContent::new(Framing::Events, UsageWatch::default(), TextCounting::WithoutUsage);
        content.with_state(Framing::Events)
    }

    /// The number of chunks that were recognized, after everything was found to be as if they had been read byte by byte.
    fn recognized(chunks: &[String]) -> usize {
        let (mut fast, mut slow) = (content(), content());
        let kinds: Vec<ChunkKind> = chunks.iter().map(|chunk| fast.observe(chunk.as_bytes())).collect();
        chunks.concat().as_bytes().chunks(1).for_each(|byte| {
            slow.observe(byte);
        });
        let found = |content: &ResponseContent| {
            let end = content.state.as_ref().unwrap().events().unwrap();
            let said = [end.is_complete(1), end.is_complete(2), end.has_final_event(), end.has_named_error()];
            (content.usage.read(), content.usage.streamed_tokens(), said, end.has_events())
        };
        assert_eq!(found(&fast), found(&slow), "{chunks:#?}");
        kinds.iter().filter(|kind| **kind == ChunkKind::TextEvents).count()
    }

    #[test]
    fn events_that_differ_in_their_text_are_recognized_after_two() {
        let texts = ["a", "b", "", "long words, and 4 more", " usage", "usage", "[DONE]", "choices", "data:"];
        for api in [CHAT, RESPONSES, MESSAGES] {
            assert_eq!(recognized(&events(api, &texts)), texts.len() - 2, "{api:?}");
            let all_in_one = vec![events(api, &texts[..2]).concat(), events(api, &texts[2..]).concat()];
            assert_eq!(recognized(&all_in_one), 0, "one event is compared with the last of the chunk before");
            let later = [all_in_one, events(api, &texts)].concat();
            assert_eq!(recognized(&later), texts.len());
        }
    }

    #[test]
    fn texts_with_escapes_and_other_events_are_read() {
        let mut chunks = events(CHAT, &["a", "b", "c", r#"\""#, "d", r"\n", "e"]);
        chunks.push(CHAT.concat().replace("null}]", "\"stop\"}]"));
        chunks.push(
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n".to_owned(),
        );
        chunks.push("data: [DONE]\n\n".to_owned());
        assert_eq!(recognized(&chunks), 3, "c, d and e");
    }

    #[test]
    fn events_split_by_reads_are_read() {
        let mut chunks = events(CHAT, &["a", "b", "c"]);
        let (first, second) = chunks[2].split_at(90);
        let split = [first.to_owned(), second.to_owned()];
        chunks.splice(2.., split);
        chunks.extend(events(CHAT, &["d"]));
        assert_eq!(recognized(&chunks), 1, "d");
        let within = format!("{}data: {{\"text\":\"", events(CHAT, &["c"])[0]);
        let chunks = [events(CHAT, &["a", "b"]), vec![within], events(CHAT, &["d", "e"])].concat();
        assert_eq!(recognized(&chunks), 1, "d is in another event, and e is not");
    }

    #[test]
    fn what_decides_something_is_no_text() {
        for [start, end] in [
            ["data: {\"type\":\"", "\"}\n\n"],
            ["data: {\"choices\":[{\"index\":0,\"finish_reason\":\"", "\"}]}\n\n"],
            ["data: {\"error\":\"", "\"}\n\n"],
            ["event: ping\nid: \"", "\"\n\n"],
            ["data: \"delta\":{\"content\":\"", "\"}}\n\n"],
            ["event: \"content\"\ndata: {\"content\":\"", "\"}}\n\n"],
            ["data: {\"content\":{\"", "\":{\"prompt_tokens\":1}}}\n\n"],
            ["data: {\"text\":\"x\"\ndata: ,\"text\":\"", "\"}\n\n"],
            ["data: {\"text\":\"", "\"\ndata: }\n\n"],
            ["data: {\"choices\":[],\"text\":\"", "\"}\n\n"],
        ] {
            let texts = ["a", "b", "usage", "message_stop", "error", "stop", "c", "d", "e"];
            assert_eq!(recognized(&events([start, end], &texts)), 0, "{start}");
        }
    }

    #[test]
    fn another_shape_is_found_when_the_stream_has_another() {
        let thinking = CHAT.map(|part| part.replace("content", "reasoning_content"));
        let mut chunks = events([&thinking[0], &thinking[1]], &["a", "b", "c", "d"]);
        chunks.extend(events(CHAT, &["a", "b", "c", "d"]));
        assert_eq!(recognized(&chunks), 4);
    }

    #[test]
    fn little_is_kept_and_streams_without_a_shape_are_left_alone() {
        let mut text_events = TextEvents::default();
        text_events.learn(&vec![b'x'; 1 << 20]);
        text_events.learn(b"\n\n");
        for number in 0..100 {
            text_events.learn(format!("data: {{\"number\":{number}}}\n\n").as_bytes());
        }
        assert!(text_events.last.capacity() <= EVENT_BYTES_MAX);
        assert_eq!(text_events.tries, TRIES_MAX);
    }
}
