//! Whether a response of the Responses API is still computed, by what the engine answers.

use crate::framing::Framing;
use crate::json_walk::{JsonWalk, Name, Value};
use crate::stream_end::StreamEnd;

/// Statuses of a response that is not computed any more.
const ENDED: [&[u8]; 5] = [b"completed", b"failed", b"incomplete", b"cancelled", b"canceled"];

/// Reads the state of a response as its bytes pass. What cannot be read counts as not ended.
#[derive(Debug)]
pub(crate) enum AnswerState {
    /// A response as a document.
    Document(Document),
    /// Its events.
    Events(StreamEnd),
}

/// A document with a status.
#[derive(Debug, Default)]
pub(crate) struct Document {
    walk: JsonWalk,
    has_status: bool,
    is_ended: bool,
}

impl AnswerState {
    pub(crate) fn new(framing: Framing) -> AnswerState {
        match framing {
            Framing::Document => AnswerState::Document(Document::default()),
            Framing::Events => AnswerState::Events(StreamEnd::default()),
        }
    }

    pub(crate) fn observe(&mut self, chunk: &[u8]) {
        match self {
            AnswerState::Document(document) => document.observe(chunk),
            AnswerState::Events(end) => end.observe(chunk),
        }
    }

    /// Adds events that differ from an earlier one in their text only.
    pub(crate) fn add_recognized(&mut self, events: u32) {
        if let AnswerState::Events(end) = self {
            end.add_recognized(events);
        }
    }

    /// Whether the response is known to have ended. `has_output`: it reports tokens of an answer.
    pub(crate) fn has_ended(&self, has_output: bool) -> bool {
        match self {
            AnswerState::Document(document) if document.has_status => document.is_ended,
            // An engine that knows no statuses knows no background either: it answers when it has computed.
            AnswerState::Document(document) => document.walk.is_whole() && has_output,
            AnswerState::Events(end) => end.has_final_event(),
        }
    }

    /// The events, if these are some.
    pub(crate) fn events(&self) -> Option<&StreamEnd> {
        match self {
            AnswerState::Document(_) => None,
            AnswerState::Events(end) => Some(end),
        }
    }
}

impl Document {
    fn observe(&mut self, chunk: &[u8]) {
        let Document { walk, has_status, is_ended } = self;
        walk.walk(chunk, |names, value| {
            if names == [Name::Status] {
                (*has_status, *is_ended) =
                    (true, matches!(value, Value::Text(text) if ENDED.contains(&text)));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_ended(framing: Framing, text: &str, has_output: bool) -> bool {
        let of = |size: usize| {
            let mut state = AnswerState::new(framing);
            text.as_bytes().chunks(size).for_each(|chunk| state.observe(chunk));
            state.has_ended(has_output)
        };
        let whole = of(text.len().max(1));
        assert!([1, 3, 50].iter().all(|size| of(*size) == whole), "{text}");
        whole
    }

    #[test]
    fn a_response_has_ended_if_its_own_status_says_so() {
        let tail = "x".repeat(20_000);
        for (text, expected) in [
            (r#"{"status":"completed"}"#.to_owned(), true),
            (r#"{"id":"a","status": "failed","error":{"status":"queued"}}"#.to_owned(), true),
            (r#"{"status":"incomplete","output":[{"status":"in_progress"}]}"#.to_owned(), true),
            (format!(r#"{{"status":"cancelled","instructions":"{tail}"}}"#), true),
            (r#"{"status":"queued"}"#.to_owned(), false),
            (format!(r#"{{"status":"in_progress","instructions":"{tail}","output":[{{"status":"completed"}}]}}"#), false),
            (r#"{"status":"queued","metadata":{"status":"completed"},"tools":[{"usage":{"prompt_tokens":9}}]}"#.to_owned(), false),
            (r#"{"status":"queued","instructions":"\",\"status\":\"completed\""}"#.to_owned(), false),
            (r#"{"status":null}"#.to_owned(), false),
            (r#"{"output":[{"status":"completed"}]"#.to_owned(), false),
            ("\u{1f}\u{8b}".to_owned(), false),
            (String::new(), false),
            (r#"{"object":"list","data":[]}"#.to_owned(), false),
        ] {
            assert_eq!(has_ended(Framing::Document, &text, false), expected, "{text:.200}");
            let has_status = text.contains("{\"status\"") || text.contains(",\"status\"");
            assert!(!has_status || has_ended(Framing::Document, &text, true) == expected, "{text:.200}");
        }
        assert!(has_ended(Framing::Document, r#"{"output":[]}"#, true), "no status, but an answer");
        let running = "event: response.created\ndata: {\"response\":{\"status\":\"completed\"}}\n\n";
        assert!(!has_ended(Framing::Events, running, true));
        assert!(has_ended(Framing::Events, "data: {\"type\":\"response.completed\"}\n\n", false));
    }
}
