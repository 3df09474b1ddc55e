//! Lets complete events of a stream pass and remembers what they said.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};
use warmroute_prompt::Api;

use super::delivered_text::{DeliveredText, EventKind};
use super::event_rewriter::EventRewriter;
use crate::event_splitter::{EventSplitter, data_of, is_named_error};

/// A longer event is no token's. The guard gives up, and the stream passes unread.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Guards one stream, over all workers that send it.
#[derive(Debug, Default)]
pub(crate) struct StreamGuard {
    splitter: EventSplitter,
    pub(crate) delivered: DeliveredText,
    /// Tokens of the prompt that the first worker had cached, as far as the router knows.
    pub(crate) cached_tokens: Option<u32>,
    /// `None` while the first worker sends.
    rewriter: Option<EventRewriter>,
    /// Whether the final event was seen.
    is_complete: bool,
}

/// What the client gets of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Guarded {
    pub(crate) bytes: Bytes,
    pub(crate) state: GuardedState,
}

/// What a chunk says about its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardedState {
    /// It sends events.
    Intact,
    /// It sent something that is no event, or gave up. What follows is not read.
    Broken,
}

impl StreamGuard {
    /// Takes a chunk of a worker's stream.
    pub(crate) fn pass(&mut self, chunk: &Bytes) -> Guarded {
        if self.delivered.obstacle.is_some() && self.rewriter.is_none() {
            return Guarded { bytes: chunk.clone(), state: GuardedState::Intact };
        }
        self.splitter.push(chunk);
        let mut bytes = BytesMut::new();
        while let Some(event) = self.splitter.next_event() {
            match self.take_event(&event) {
                Some(event) => bytes.extend_from_slice(&event),
                // A stream that cannot be continued shows the client what the worker sent.
                None if self.delivered.obstacle.is_some() => bytes.extend_from_slice(&event),
                None => return Guarded { bytes: bytes.freeze(), state: GuardedState::Broken },
            }
        }
        if self.splitter.partial_len() > EVENT_BYTES_MAX {
            self.delivered.obstacle = Some("the stream has an event that is too long");
        }
        match self.delivered.obstacle {
            Some(_) if self.rewriter.is_none() => self.pass_unread(bytes),
            _ => Guarded { bytes: bytes.freeze(), state: GuardedState::Intact },
        }
    }

    fn pass_unread(&mut self, mut bytes: BytesMut) -> Guarded {
        bytes.extend_from_slice(&self.splitter.take_rest());
        Guarded { bytes: bytes.freeze(), state: GuardedState::Intact }
    }

    /// The event for the client; `None` if the stream is broken here.
    fn take_event(&mut self, event: &Bytes) -> Option<Bytes> {
        let Ok(data) = data_of(event) else { return None };
        let Some(data) = data else { return Some(event.clone()) };
        if is_named_error(event) && !has_error(&data) {
            return None;
        }
        if data.trim_ascii() == b"[DONE]" {
            self.is_complete = true;
            return Some(event.clone());
        }
        match self.delivered.observe(&data)? {
            EventKind::GivenUp => None,
            EventKind::Answer => match &self.rewriter {
                Some(rewriter) => Some(rewriter.rewrite(&data).map_or_else(Bytes::new, Bytes::from)),
                None => Some(event.clone()),
            },
        }
    }

    /// Prepares for the events of the next worker, which counts the text so far as this many tokens.
    pub(crate) fn begin_next(&mut self, tokens: u32) {
        self.splitter.take_rest();
        self.delivered.tokens = tokens;
        self.delivered.begin_next();
        let (head, tokens) = (self.delivered.head.clone(), self.delivered.tokens);
        self.rewriter = Some(EventRewriter::new(head, tokens, self.cached_tokens));
    }

    /// Whether the final event was seen.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The incomplete event at the end of a stream that is not continued.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        self.splitter.take_rest()
    }

    /// The end of a stream of which only the end was lost.
    pub(crate) fn closing_events(
        &self,
        api: Api,
        finish_reason: Option<&'static str>,
        usage: Option<(u32, u32)>,
    ) -> Bytes {
        let finish = finish_reason.map(|reason| {
            let choice = match api {
                Api::Chat => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}),
                _ => json!({"index": 0, "text": "", "logprobs": null, "finish_reason": reason}),
            };
            self.event_with("choices", json!([choice]))
        });
        let usage = usage.map(|(prompt, output)| {
            let total = prompt.saturating_add(output);
            let usage = json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total});
            let mut event = self.event_with("choices", json!([]));
            event.insert("usage".to_owned(), usage);
            event
        });
        let events =
            finish.into_iter().chain(usage).map(|event| format!("data: {}\n\n", Value::Object(event)));
        Bytes::from(events.chain(["data: [DONE]\n\n".to_owned()]).collect::<String>())
    }

    /// An event of this stream with one more field.
    fn event_with(&self, field: &str, value: Value) -> Map<String, Value> {
        let mut event = Map::new();
        let head = &self.delivered.head;
        for (name, value) in [
            ("id", &head.id),
            ("object", &head.object),
            ("created", &head.created),
            ("model", &head.model),
            ("system_fingerprint", &head.system_fingerprint),
        ] {
            value.iter().for_each(|value| _ = event.insert(name.to_owned(), value.clone()));
        }
        event.insert(field.to_owned(), value);
        event
    }
}

/// Whether an event says what is wrong in the way of the API.
fn has_error(data: &[u8]) -> bool {
    let event: Option<Value> = serde_json::from_slice(data).ok();
    event.is_some_and(|event| event.get("error").is_some_and(|error| !error.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> String {
        format!("data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n")
    }

    fn passed(guard: &mut StreamGuard, chunk: &str) -> (String, GuardedState) {
        let Guarded { bytes, state } = guard.pass(&Bytes::copy_from_slice(chunk.as_bytes()));
        (String::from_utf8(bytes.to_vec()).unwrap(), state)
    }

    #[test]
    fn half_events_and_garbage_do_not_reach_the_client() {
        for end in [
            "data: {\"id\":\"a\",\"cho",
            "garbage\n\n",
            "data: {\"half\n\n",
            "data: {\"error\":{}}\n\n",
            "event: error\ndata: {\"message\":\"died\"}\n\n",
        ] {
            let mut guard = StreamGuard::default();
            let stream = format!("{}: ping\n\n{}{end}", token("a"), token("b"));
            let (text, _) = passed(&mut guard, &stream);
            assert_eq!(text, format!("{}: ping\n\n{}", token("a"), token("b")), "{end}");
            guard.begin_next(2);
            let (text, state) = passed(&mut guard, &token("c").replace("\"a\"", "\"z\""));
            assert_eq!(state, GuardedState::Intact);
            assert!(text.contains("\"a\"") && !text.contains("\"z\""), "{text}");
            assert_eq!((guard.delivered.text.as_str(), guard.delivered.tokens), ("abc", 3));
        }
    }

    #[test]
    fn a_stream_that_cannot_be_continued_passes_as_it_is() {
        let mut guard = StreamGuard::default();
        let call = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n";
        assert_eq!(passed(&mut guard, call).0, call);
        assert_eq!(passed(&mut guard, "garbage\n\ndata: {\"ha").0, "garbage\n\ndata: {\"ha");
        assert_eq!(passed(&mut guard, "lf\":1}\n\n").0, "lf\":1}\n\n");
    }

    #[test]
    fn a_lost_end_is_written() {
        let mut guard = StreamGuard::default();
        passed(&mut guard, &token("a"));
        let end = guard.closing_events(Api::Completions, Some("length"), None);
        let end = String::from_utf8(end.to_vec()).unwrap();
        assert!(end.contains("\"finish_reason\":\"length\"") && end.contains("\"id\":\"a\""), "{end}");
        assert!(end.ends_with("data: [DONE]\n\n"));
        assert_eq!(guard.closing_events(Api::Chat, None, None), &b"data: [DONE]\n\n"[..]);
        let end = guard.closing_events(Api::Chat, None, Some((9, 2)));
        let end = String::from_utf8(end.to_vec()).unwrap();
        assert!(end.contains("\"total_tokens\":11") && end.contains("\"choices\":[]"), "{end}");
    }
}
