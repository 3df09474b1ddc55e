//! Recognizes events of a stream that differ from an earlier one in their text only.
//!
//! ```text
//! data: {"id":"chatcmpl-7","choices":[{"index":0,"delta":{"content":" and"},"finish_reason":null}]}
//! data: {"id":"chatcmpl-7","choices":[{"index":0,"delta":{"content":" so"},"finish_reason":null}]}
//! ╰───────────────────────────── start ─────────────────────────────╯   ╰───────── end ─────────╯
//! ```
//!
//! Most events of most streams are like that. Two of them are read in full. In those that follow, start and end tell nothing
//! new: the events are counted, and the tokens of their text.

use serde::de::IgnoredAny;

use crate::streamed_text::{Part, Place, StreamedText, TextTokens};
use crate::usage::{may_be_injected_usage, may_report_usage};

/// Between two events.
const BOUNDARY: &[u8] = b"\n\n";

/// Longer events are not compared.
const COMPARED_BYTES_MAX: usize = 2_048;

/// Consecutive events that are compared in vain. After them no more are compared.
const TRIES_MAX: u8 = 32;

/// The events that a stream repeats.
#[derive(Debug, Default)]
pub(crate) struct TextEvents {
    shape: Option<EventShape>,
    /// The last event that was read in full.
    last: Vec<u8>,
    tries: u8,
    /// Whether the last chunk ended within an event.
    is_within_event: bool,
}

/// What recognized events at the beginning of a chunk add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecognizedEvents {
    pub(crate) bytes: usize,
    pub(crate) count: u32,
    pub(crate) tokens: TextTokens,
    /// The place of `StreamedText` after them.
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
    /// The place of `StreamedText` after the event.
    place: Place,
}

impl TextEvents {
    /// The whole events that a chunk begins with, as far as they are recognized. `None` if the first one is not.
    pub(crate) fn recognize(&mut self, chunk: &[u8]) -> Option<RecognizedEvents> {
        let shape = self.shape.as_ref().filter(|_| !self.is_within_event)?;
        let mut events = RecognizedEvents { place: shape.place, ..RecognizedEvents::default() };
        while let Some((text, rest)) = shape.split(&chunk[events.bytes..]) {
            events.count += 1;
            events.tokens.add_all(shape.other_tokens);
            events.tokens.add_string(shape.part, text);
            events.bytes = chunk.len() - rest.len();
        }
        if events.count == 0 {
            return None;
        }
        self.tries = 0;
        Some(events)
    }

    /// How much of a chunk to read in full before the next try: up to the end of its first event, as long as there is hope
    /// that one is recognized.
    pub(crate) fn bytes_to_read(&self, chunk: &[u8]) -> usize {
        if self.tries == TRIES_MAX {
            return chunk.len();
        }
        let mut ends = memchr::memchr_iter(b'\n', chunk).filter(|end| chunk[*end..].starts_with(BOUNDARY));
        ends.next().map_or(chunk.len(), |end| end + BOUNDARY.len())
    }

    /// Learns from a chunk that was read in full.
    pub(crate) fn learn(&mut self, chunk: &[u8]) {
        if chunk.is_empty() {
            return;
        }
        let was_within_event = self.is_within_event;
        self.is_within_event = !chunk.ends_with(BOUNDARY);
        if self.tries == TRIES_MAX {
            return;
        }
        let before_boundary = chunk.strip_suffix(BOUNDARY);
        let event = before_boundary.and_then(|before| match last_boundary(before) {
            Some(at) => Some(&chunk[at + BOUNDARY.len()..]),
            None => Some(chunk).filter(|_| !was_within_event),
        });
        let Some(event) = event.filter(|event| event.len() <= COMPARED_BYTES_MAX) else {
            return self.last.clear();
        };
        self.tries += 1;
        if let Some(shape) = EventShape::of(&self.last, event) {
            (self.shape, self.tries) = (Some(shape), 0);
        }
        self.last.clear();
        self.last.extend_from_slice(event);
    }
}

impl EventShape {
    /// The shape of two events that differ in their text only, and whose readers find nothing that depends on that text.
    fn of(one: &[u8], other: &[u8]) -> Option<EventShape> {
        let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        let start = memchr::memrchr(b'"', &one[..same])? + 1;
        let ends = one[start..].iter().rev().zip(other[start..].iter().rev());
        let same_end = &one[one.len() - ends.take_while(|(one, other)| one == other).count()..];
        let end = &same_end[memchr::memchr(b'"', same_end)?..];
        let shape = EventShape::new(&one[..start], end)?;
        let is_whole = |event: &[u8]| shape.split(event).is_some_and(|(_, rest)| rest.is_empty());
        let is_text_only = is_object(one) && !may_be_injected_usage(one) && !may_report_usage(one);
        (is_text_only && is_whole(one) && is_whole(other)).then_some(shape)
    }

    /// A shape around a string that is a text of the answer.
    fn new(start: &[u8], end: &[u8]) -> Option<EventShape> {
        let mut text = StreamedText::default();
        text.observe(&start[..start.len() - 1]);
        // Otherwise the quote is an escaped one within the text.
        let is_outside = text.open_string().is_none();
        text.observe(b"\"");
        let part =
            text.open_string().filter(|part| is_outside && matches!(part, Part::Delta | Part::Text))?;
        text.observe(end);
        let (other_tokens, place) = text.reading();
        Some(EventShape { start: start.to_vec(), end: end.to_vec(), part, other_tokens, place })
    }

    /// The text of the event that these bytes begin with, and what follows it. A text with escapes is read in full.
    fn split<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let from_text = bytes.strip_prefix(&*self.start)?;
        let text = memchr::memchr3(b'"', b'\\', b'\n', from_text)?;
        Some((&from_text[..text], from_text[text..].strip_prefix(&*self.end)?))
    }
}

/// The place of the last boundary. Events have few line breaks, so each one is looked at.
fn last_boundary(bytes: &[u8]) -> Option<usize> {
    let mut ends = memchr::memrchr_iter(b'\n', bytes).filter(|end| bytes[..*end].ends_with(b"\n"));
    ends.next().map(|end| end - 1)
}

/// Whether the event consists of one line with an object, and perhaps its name before it. Readers of text would take a string
/// before an object for a value in the event before.
fn is_object(event: &[u8]) -> bool {
    let mut lines = event.strip_suffix(BOUNDARY).unwrap_or(event).rsplit(|byte| *byte == b'\n');
    let data = lines.next().and_then(|line| line.strip_prefix(b"data:"));
    data.is_some_and(|data| {
        data.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(data).is_ok()
    }) && lines.all(|line| line.starts_with(b"event:") && !line.contains(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_state::AnswerState;
    use crate::framing::Framing;
    use crate::response_content::{ChunkKind, ResponseContent};
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
        let content = ResponseContent::new(Framing::Events, UsageWatch::default()).count_text(true);
        content.read_state(Some(AnswerState::new(Framing::Events)))
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
            let usage = (content.usage.read(), content.usage.tokens_with_prompt_of(7));
            (usage, content.usage.streamed_tokens(), said, end.has_events())
        };
        assert_eq!(found(&fast), found(&slow), "{chunks:#?}");
        kinds.iter().filter(|kind| **kind == ChunkKind::TextEvents).count()
    }

    #[test]
    fn events_that_differ_in_their_text_are_recognized_after_two() {
        let texts = ["a", "b", "", "long words, and 4 more", " usage", "usage", "[DONE]", "choices", "data:"];
        for api in [CHAT, RESPONSES, MESSAGES] {
            assert_eq!(recognized(&events(api, &texts)), texts.len() - 2, "{api:?}");
            let all_in_one = [events(api, &texts[..2]).concat(), events(api, &texts[2..]).concat()];
            assert_eq!(recognized(&all_in_one), 1, "the events of one chunk are compared too");
            let mixed = [events(api, &texts[..4]).concat(), "data: {}\n\n".to_owned()].concat();
            assert_eq!(recognized(&[mixed, events(api, &texts)[4].clone()]), 1);
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

    /// Streams that a reader of this code made up to mislead it.
    #[test]
    fn what_is_found_never_depends_on_recognition() {
        let text = ["data: {\"choices\":[{\"text\":\"", "\"}]}\n\n"];
        let long = |letter: &str| letter.repeat(1_100);
        let usage = |cached: u32| {
            format!(
                "\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":1,\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}"
            )
        };
        let with_usage = format!("\"}}],{}}}\n\n", usage(5));
        let with_usage = [text[0], &with_usage];
        let in_usage =
            ["data: {\"usage\":{\"text\":\"", "\",\"prompt_tokens\":9,\"completion_tokens\":3}}\n\n"];
        let cut = ["data: {\"text\":\"", "\",\"usage\":\n\n"];
        let delta = "data: {\"delta\":\"a\"}\n\n".to_owned();
        for chunks in [
            events(text, &[r#"\"a"#, r#"\"b"#, r#"\"!"#, r#"\":"#]),
            [
                events(with_usage, &["a", "b"]),
                vec![format!("data: {{\"choices\":[],{}}}\n\n", usage(7))],
                events(with_usage, &["c"]),
            ]
            .concat(),
            events(in_usage, &[&long("a"), &long("b"), "c"]),
            events(["data: {\"type\":1 \"text\":\"", "\"}\n\n"], &["a", "b", "message_stop"]),
            events(["data: {\"type\":{\"text\"}:\"", "\"}\n\n"], &["a", "b", "message_stop"]),
            [
                events(cut, &["a", "b"]),
                vec!["data: {}\n\n".to_owned()],
                events(cut, &["c"]),
                vec!["{\"prompt_tokens\":9,\"completion_tokens\":3}\n\n".to_owned()],
            ]
            .concat(),
            [vec![delta], events(["data: {\"text\":\"", "\"}\n\n"], &["a", "b", "\0data:\0data:\0data:"])]
                .concat(),
            events(["data: {:\"w w w w\",\"text\":\"", "\"}\n\n"], &["a", "b", "c"]),
        ] {
            recognized(&chunks);
        }
    }

    #[test]
    fn events_that_are_read_between_recognized_ones_do_not_end_learning() {
        let escaped = ["a", r"\n", "b"].repeat(usize::from(TRIES_MAX));
        let thinking = CHAT.map(|part| part.replace("content", "reasoning_content"));
        let mut chunks = events([&thinking[0], &thinking[1]], &["a", "b"]);
        chunks.extend(events([&thinking[0], &thinking[1]], &escaped));
        chunks.extend(["".to_owned(), "".to_owned()]);
        chunks.extend(events(CHAT, &["a", "b", "c", "d"]));
        assert_eq!(recognized(&chunks), 2 * usize::from(TRIES_MAX) + 2);
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
        for text in ["a", "b"] {
            text_events.learn(events(CHAT, &[&text.repeat(1 << 20)])[0].as_bytes());
        }
        assert!(text_events.shape.is_none(), "long events are not compared");
        for number in 0..100 {
            text_events.learn(format!("data: {{\"number\":{number}}}\n\n").as_bytes());
        }
        assert!(text_events.last.capacity() <= COMPARED_BYTES_MAX);
        assert_eq!(text_events.tries, TRIES_MAX);
    }
}
