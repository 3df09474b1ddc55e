//! Whether a stream of server-sent events has come to the end that its API defines.
//!
//! | API | its end |
//! |---|---|
//! | chats, completions | `data: [DONE]`, or each of the answers has its `finish_reason` |
//! | responses | an event `response.completed`, `response.incomplete`, `response.failed` or `response.cancelled` |
//! | messages | an event `message_stop` |
//! | SGLang's `/generate` | `data: [DONE]` |
//!
//! An event that reports an error ends all of them. What counts are events and fields of the API: text of the answer
//! can have any of these words. A stream that ends otherwise was cut off, even if HTTP sees a proper end.

use std::collections::BTreeSet;

use crate::json_walk::{JsonWalk, Name, Value};

/// Names of fields and events that are longer are none that are looked for.
const NAME_BYTES_MAX: usize = 32;

/// Answers in one stream that are told apart. A stream with more has to say `[DONE]`.
const ANSWERS_MAX: usize = 4_096;

/// Reads the events of a stream as its bytes pass.
#[derive(Debug, Default)]
pub(crate) struct StreamEnd {
    line: Line,
    /// The field's name, then the event's name or the first bytes of its data.
    text: Vec<u8>,
    event: Event,
    /// The choice in whose object the walk is.
    choice: Choice,
    /// Answers that have begun, and those that have said why they end.
    begun: BTreeSet<u32>,
    finished: BTreeSet<u32>,
    /// Events with data.
    count: u64,
    has_final: bool,
    has_error: bool,
    has_named_error: bool,
}

/// The part of a line in which the walk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// The name of a field, before the colon.
    #[default]
    Field,
    EventName,
    Data,
    /// A comment or another field.
    Other,
}

/// The event in which the walk is.
#[derive(Debug, Default)]
struct Event {
    walk: JsonWalk,
    lines: u32,
    name: Kind,
    /// What its data says that it is.
    kind: Kind,
    has_error: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Other,
    Final,
    Error,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Choice {
    index: u32,
    is_finished: bool,
}

impl Kind {
    fn of(name: &[u8]) -> Kind {
        match name {
            b"message_stop"
            | b"response.completed"
            | b"response.incomplete"
            | b"response.failed"
            | b"response.cancelled" => Kind::Final,
            b"error" => Kind::Error,
            _ => Kind::Other,
        }
    }
}

impl StreamEnd {
    /// Adds a chunk of the stream.
    pub(crate) fn observe(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let end = memchr::memchr(b'\n', chunk);
            self.walk_line(&chunk[..end.unwrap_or(chunk.len())]);
            let Some(end) = end else { return };
            self.end_line();
            chunk = &chunk[end + 1..];
        }
    }

    /// Adds events that differ from an earlier one in their text only.
    pub(crate) fn add_recognized(&mut self, events: u32) {
        self.count += u64::from(events);
    }

    /// Whether the stream has ended as its API wants it, for a request for this many answers.
    pub(crate) fn is_complete(&self, answers: u32) -> bool {
        let StreamEnd { begun, finished, .. } = self;
        let has_all = begun == finished && finished.len() as u64 >= u64::from(answers.max(1));
        has_all || self.has_final_event()
    }

    /// Whether an event said that the stream ends.
    pub(crate) fn has_final_event(&self) -> bool {
        let StreamEnd { line, event, has_final, has_error, .. } = self;
        // The last event may lack the empty line after it.
        let is_done = *line == Line::Data && self.is_done();
        *has_final || *has_error || is_done || (event.walk.is_whole() && event.kind() != Kind::Other)
    }

    /// Whether an event was named an error.
    pub(crate) fn has_named_error(&self) -> bool {
        self.has_named_error
    }

    /// Whether an event with data has come.
    pub(crate) fn has_events(&self) -> bool {
        self.count > 0 || self.event.lines > 0
    }

    fn walk_line(&mut self, mut part: &[u8]) {
        if self.line == Line::Field {
            let colon = memchr::memchr(b':', part);
            self.keep(&part[..colon.unwrap_or(part.len())]);
            let Some(colon) = colon else { return };
            self.begin_value();
            part = &part[colon + 1..];
        }
        match self.line {
            Line::EventName => self.keep(part),
            Line::Data => {
                self.keep(part);
                self.walk_data(part);
            }
            Line::Field | Line::Other => {}
        }
    }

    /// Walks through the data of an event.
    fn walk_data(&mut self, part: &[u8]) {
        let StreamEnd { event, choice, begun, finished, .. } = self;
        let Event { walk, kind, has_error, .. } = event;
        walk.walk(part, |names, value| match (names, value) {
            ([Name::Type], Value::Text(name)) => *kind = Kind::of(name),
            ([Name::Error], value) => {
                *has_error |= !matches!(value, Value::Plain(b"null" | b"false") | Value::Text(b""));
            }
            ([Name::Choices, Name::Item], Value::Begin) => *choice = Choice::default(),
            ([Name::Choices, Name::Item, Name::Index], Value::Plain(digits)) => {
                choice.index = index_of(digits);
            }
            ([Name::Choices, Name::Item, Name::FinishReason], value) => {
                choice.is_finished = matches!(value, Value::Text(_) | Value::LongText);
            }
            ([Name::Choices, Name::Item], Value::End) => note(*choice, begun, finished),
            _ => {}
        });
    }

    /// Begins the value of a field.
    fn begin_value(&mut self) {
        self.line = match &*self.text {
            b"data" => Line::Data,
            b"event" => Line::EventName,
            _ => Line::Other,
        };
        self.event.lines += u32::from(self.line == Line::Data);
        self.text.clear();
    }

    fn end_line(&mut self) {
        match self.line {
            Line::Field if self.text.trim_ascii().is_empty() => self.end_event(),
            Line::EventName => self.event.name = Kind::of(self.text.trim_ascii()),
            Line::Data => {
                self.has_final |= self.is_done();
                // Lines of data are joined by a line feed, which ends a number as well.
                self.walk_data(b"\n");
            }
            Line::Field | Line::Other => {}
        }
        self.line = Line::Field;
        self.text.clear();
    }

    fn end_event(&mut self) {
        let event = &mut self.event;
        if event.lines > 0 {
            self.count += 1;
            // Data that breaks off says nothing.
            if event.walk.is_whole() {
                self.has_final |= event.kind() == Kind::Final;
                self.has_error |= event.kind() == Kind::Error;
            }
            self.has_named_error |= event.name == Kind::Error;
            self.has_error |= self.has_named_error;
        }
        event.clear();
    }

    /// Whether the line of data is the only one of its event and says `[DONE]`.
    fn is_done(&self) -> bool {
        self.event.lines == 1 && self.text.trim_ascii() == b"[DONE]"
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (NAME_BYTES_MAX + 1).saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Event {
    fn clear(&mut self) {
        self.walk.clear();
        let walk = std::mem::take(&mut self.walk);
        *self = Event { walk, ..Event::default() };
    }

    fn kind(&self) -> Kind {
        match (self.kind, self.name) {
            (Kind::Error, _) | (_, Kind::Error) => Kind::Error,
            _ if self.has_error => Kind::Error,
            (Kind::Final, _) | (_, Kind::Final) => Kind::Final,
            _ => Kind::Other,
        }
    }
}

fn index_of(digits: &[u8]) -> u32 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(u32::MAX)
}

fn note(choice: Choice, begun: &mut BTreeSet<u32>, finished: &mut BTreeSet<u32>) {
    if begun.len() >= ANSWERS_MAX && !begun.contains(&choice.index) {
        // One more has begun and will not be known to end.
        begun.insert(u32::MAX);
        return;
    }
    begun.insert(choice.index);
    if choice.is_finished {
        finished.insert(choice.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str, size: usize) -> StreamEnd {
        let mut end = StreamEnd::default();
        stream.as_bytes().chunks(size).for_each(|chunk| end.observe(chunk));
        end
    }

    fn choice(index: u32, reason: &str) -> String {
        format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":{reason}}}]}}\n\n")
    }

    fn assert_ends(stream: &str, answers: u32, expected: bool) {
        for size in [1, 2, 3, 7, 64, stream.len().max(1)] {
            let end = read(stream, size);
            assert_eq!(end.is_complete(answers), expected, "{answers} answers, {size} bytes: {stream:.300}");
        }
    }

    #[test]
    fn the_final_event_of_each_api_ends_a_stream() {
        for stream in [
            "data: [DONE]\n\n",
            "data:[DONE]\r\n\r\n",
            "data: {}\n\ndata: [DONE]",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            "data: {\"type\": \"message_stop\"}\n\n",
            "event: message_stop\r\ndata: {}\r\n\r\n",
            "event: response.completed\ndata: {\"response\":{}}\n\n",
            "data: {\"response\":{\"a\":[1]},\"type\":\"response.incomplete\"}",
            "data: {\"type\":\ndata: \"response.failed\"}\n\n",
            "data: {\"error\":{\"message\":\"dead\"}}\n\n",
            "data: {\"error\":\"dead\"}\n\n",
            "event: error\ndata: dead\n\n",
            "data: {\"type\":\"error\",\"error\":{}}\n\n",
        ] {
            assert_ends(stream, 1, true);
            assert_ends(&format!("{}{stream}", choice(0, "null")), 2, true);
        }
    }

    #[test]
    fn text_of_the_answer_does_not_end_a_stream() {
        let escaped =
            r#"\ndata: [DONE]\n\nevent: message_stop\ndata: {\"type\":\"response.completed\",\"error\":{}}"#;
        for stream in [
            "",
            "data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"}}]}\n\n",
            "data: {\"text\":\"[DONE]\",\"delta\":\"response.completed\",\"x\":{\"type\":\"message_stop\"}}\n\n",
            "data: {\"error\":null}\n\n",
            "data: {\"choices\":[{\"error\":{}}],\"response\":{\"error\":{},\"type\":\"response.completed\"}}\n\n",
            ": data: [DONE]\n\n: event: error\n\n",
            "data: [DON\n\n",
            "data: x\ndata: [DONE]\n\n",
            "id: [DONE]\n\n",
            "data: {\"type\":\"message_stop\"",
            "data: {\"type\":\"message_stop\"\n\n",
            "event: message_stop\n\n",
            "data: \"message_stop\"\n\n",
            &format!("data: {{\"delta\":\"{escaped}\"}}\n\n"),
            &format!("data: {{\"delta\":\"{}{escaped}", "x".repeat(20_000)),
        ] {
            assert_ends(stream, 1, false);
        }
    }

    #[test]
    fn a_chat_ends_when_each_answer_has_said_why() {
        let (open, stop) = (choice(0, "null"), choice(0, "\"stop\""));
        assert_ends(&format!("{open}{stop}"), 1, true);
        assert_ends(&format!("{open}{stop}data: {{\"choices\":[],\"usage\":{{}}}}\n\n"), 1, true);
        assert_ends(&format!("{open}{stop}"), 2, false);
        assert_ends(&format!("{open}{}{stop}", choice(1, "null")), 2, false);
        assert_ends(&format!("{open}{}{stop}", choice(1, "null")), 1, false);
        assert_ends(&format!("{stop}{}", choice(1, "\"length\"")), 2, true);
        assert_ends(
            &format!("{open}{}", choice(0, "null").replace("{}", "{\"finish_reason\":\"stop\"}")),
            1,
            false,
        );
        let long = format!("\"stop\",\"logprobs\":\"{}\"", "x".repeat(40_000));
        assert_ends(&format!("{open}{}", choice(0, &long)), 1, true);
        assert_ends(
            &format!("{open}{}", choice(0, &format!("null,\"logprobs\":\"{}\"", "x".repeat(40_000)))),
            1,
            false,
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut end = StreamEnd::default();
        for index in 0..10_000 {
            end.observe(choice(index, "\"stop\"").as_bytes());
        }
        assert!(end.begun.len() <= ANSWERS_MAX + 1 && !end.is_complete(10_000));
        end.observe(&vec![b'x'; 1 << 20]);
        assert!(end.text.len() <= NAME_BYTES_MAX + 1);
    }
}
