//! What a client has received of a stream: the text, its tokens, and what every event repeats.

use serde::Deserialize;
use serde_json::Value;

/// A longer answer is not kept.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The text of an answer so far.
#[derive(Debug, Default)]
pub(crate) struct DeliveredText {
    pub(crate) text: String,
    /// Output tokens, as the engine counts them or one for each event.
    pub(crate) tokens: u32,
    /// Events with text. Each has a token at least.
    pub(crate) text_events: u32,
    /// Tokens that workers before the current one delivered.
    pub(super) tokens_before: u32,
    /// Fields that every event repeats.
    pub(crate) head: EventHead,
    /// Whether the answer has ended.
    pub(crate) is_finished: bool,
    /// Prompt and output tokens, if the engine counted them when the answer had ended.
    pub(crate) usage: Option<(u32, u32)>,
    /// Whether the client has the event with the usage.
    pub(crate) has_usage_event: bool,
    /// Why the answer cannot be continued.
    pub(crate) obstacle: Option<&'static str>,
}

/// What every event of a stream repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct EventHead {
    pub(crate) id: Option<Value>,
    pub(crate) object: Option<Value>,
    pub(crate) created: Option<Value>,
    pub(crate) model: Option<Value>,
    pub(crate) system_fingerprint: Option<Value>,
}

/// What an event says about its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A part of the answer, or its usage.
    Answer,
    /// The engine gave the answer up. The client need not see that if another worker continues it.
    GivenUp,
}

#[derive(Deserialize)]
struct Event {
    #[serde(flatten)]
    head: EventHead,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    delta: Option<Delta>,
    text: Option<String>,
    finish_reason: Option<String>,
    token_ids: Option<Vec<u32>>,
    logprobs: Option<Value>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<String>,
    content: Option<String>,
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
}

impl DeliveredText {
    /// Reads the data of an event. `None` if it is no JSON.
    pub(crate) fn observe(&mut self, data: &[u8]) -> Option<EventKind> {
        let value: Value = serde_json::from_slice(data).ok()?;
        let Ok(event) = serde_json::from_value::<Event>(value) else {
            self.obstacle = Some("the stream has events of an unknown form");
            return Some(EventKind::Answer);
        };
        let is_given_up = event.error.as_ref().is_some_and(is_engines_fault)
            || event.choices.iter().any(|choice| choice.finish_reason.as_deref() == Some("abort"));
        if is_given_up {
            return Some(EventKind::GivenUp);
        }
        if event.error.is_some() {
            self.obstacle = Some("the engine refused the request");
        }
        if self.head.id.is_none() {
            self.head = event.head;
        }
        event.choices.iter().for_each(|choice| self.take(choice));
        if let Some(usage) = &event.usage {
            self.take_usage(usage);
            self.has_usage_event |= event.choices.is_empty();
        }
        Some(EventKind::Answer)
    }

    /// Notes that the next events come from another worker, which counts its own tokens only.
    pub(crate) fn begin_next(&mut self) {
        self.tokens_before = self.tokens;
    }

    fn take_usage(&mut self, usage: &Usage) {
        let Some(output) = usage.completion_tokens else { return };
        self.tokens = self.tokens_before.saturating_add(output);
        let prompt = usage.prompt_tokens.map(|tokens| tokens.saturating_sub(self.tokens_before));
        self.usage = prompt.filter(|_| self.is_finished).map(|prompt| (prompt, self.tokens));
    }

    fn take(&mut self, choice: &Choice) {
        self.obstacle = self.obstacle.or(obstacle_in(choice));
        let delta = choice.delta.as_ref();
        let said = choice.text.as_deref().or_else(|| delta.and_then(|delta| delta.content.as_deref()));
        let said = said.unwrap_or_default();
        let is_role_event = delta.is_some_and(|delta| delta.role.is_some()) && said.is_empty();
        self.tokens += match &choice.token_ids {
            Some(ids) => ids.len() as u32,
            None => u32::from(!is_role_event),
        };
        self.text_events = self.text_events.saturating_add(u32::from(!said.is_empty()));
        self.text.push_str(said);
        self.is_finished |= choice.finish_reason.is_some();
        if self.text.len() > TEXT_BYTES_MAX {
            self.text = String::new();
            self.obstacle = Some("the answer is too long");
        }
    }
}

/// Why an answer with this part cannot be continued.
fn obstacle_in(choice: &Choice) -> Option<&'static str> {
    if choice.index > 0 {
        return Some("the stream has several answers");
    }
    if choice.logprobs.as_ref().is_some_and(|logprobs| !logprobs.is_null()) {
        return Some("the answer has log probabilities");
    }
    let others = choice.delta.as_ref().map(|delta| &delta.others)?;
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    let beside = others.values().any(|value| !is_empty(value));
    beside.then_some("the answer has parts beside its text, such as tool calls or reasoning")
}

/// Whether an error is the engine's and not the client's.
fn is_engines_fault(error: &Value) -> bool {
    let code = error.get("code").and_then(Value::as_u64);
    !error.is_null() && !code.is_some_and(|code| (400..500).contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(events: &[&str]) -> DeliveredText {
        let mut delivered = DeliveredText::default();
        for event in events {
            assert_eq!(delivered.observe(event.as_bytes()), Some(EventKind::Answer), "{event}");
        }
        delivered
    }

    const GREETING: &str = r#"{"id":"c-1","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;

    #[test]
    fn text_and_tokens_of_a_chat_are_collected() {
        let said = |text: &str| {
            format!(r#"{{"id":"c-1","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#)
        };
        let seen = delivered(&[GREETING, &said("Hel"), &said(""), &said("lo")]);
        assert_eq!((seen.text.as_str(), seen.tokens, seen.is_finished), ("Hello", 3, false));
        assert_eq!(seen.text_events, 2);
        assert_eq!(seen.head.created, Some(7.into()));
        assert_eq!(seen.obstacle, None);
    }

    #[test]
    fn tokens_are_counted_as_the_engine_counts_them() {
        let ids = r#"{"choices":[{"index":0,"text":"ab","token_ids":[1,2,3]}]}"#;
        assert_eq!(delivered(&[ids]).tokens, 3);
        let usage =
            r#"{"choices":[{"index":0,"text":"ab"}],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
        let mut seen = delivered(&[usage]);
        assert_eq!(seen.tokens, 5);
        seen.begin_next();
        seen.observe(usage.as_bytes());
        assert_eq!((seen.tokens, seen.text.as_str()), (10, "abab"));
    }

    #[test]
    fn what_a_request_cannot_repeat_is_an_obstacle() {
        for event in [
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"index":0,"text":"x","logprobs":{"tokens":[]}}]}"#,
            r#"{"choices":"none"}"#,
            r#"{"error":{"code":400,"message":"bad"}}"#,
        ] {
            assert!(delivered(&[event]).obstacle.is_some(), "{event}");
        }
        let harmless = r#"{"choices":[{"index":0,"delta":{"content":"x","tool_calls":[],"refusal":null}}]}"#;
        assert_eq!(delivered(&[harmless]).obstacle, None);
    }

    #[test]
    fn an_engine_that_gives_up_is_not_the_end_of_the_answer() {
        let mut seen = DeliveredText::default();
        for event in [
            r#"{"error":{"message":"EngineCore encountered an issue","code":500}}"#,
            r#"{"error":{"message":"dead"}}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#,
        ] {
            assert_eq!(seen.observe(event.as_bytes()), Some(EventKind::GivenUp), "{event}");
        }
        assert!(!seen.is_finished);
        assert_eq!(seen.observe(b"{\"choices\":[{\"ind"), None);
    }
}
