//! Events of a worker that continues an answer, as if the first worker had sent them.

use serde_json::{Map, Value};

use super::delivered_text::EventHead;

/// Rewrites the events of one worker.
#[derive(Debug)]
pub(crate) struct EventRewriter {
    head: EventHead,
    /// Tokens of the answer that this worker got as part of its prompt.
    tokens_before: u32,
    /// Tokens of the prompt that the first worker had cached, if known. What later workers find is no saving for the
    /// client: the prompt was computed before.
    cached_tokens: Option<u32>,
}

impl EventRewriter {
    pub(crate) fn new(head: EventHead, tokens_before: u32, cached_tokens: Option<u32>) -> EventRewriter {
        EventRewriter { head, tokens_before, cached_tokens }
    }

    /// The event for the client; `None` if the client has seen its like: the role of the answer.
    pub(crate) fn rewrite(&self, data: &[u8]) -> Option<Vec<u8>> {
        let Ok(Value::Object(mut event)) = serde_json::from_slice(data) else {
            return Some([b"data: ", data, b"\n\n"].concat());
        };
        // The client has seen no event of an earlier worker: this one's stream is the first.
        if self.head.id.is_none() {
            return Some([b"data: ", data, b"\n\n"].concat());
        }
        if is_role_event(&mut event) {
            return None;
        }
        for (name, value) in [
            ("id", &self.head.id),
            ("created", &self.head.created),
            ("model", &self.head.model),
            ("system_fingerprint", &self.head.system_fingerprint),
        ] {
            match value {
                Some(value) => _ = event.insert(name.to_owned(), value.clone()),
                None => _ = event.remove(name),
            }
        }
        if let Some(Value::Object(usage)) = event.get_mut("usage") {
            self.add_up(usage);
        }
        Some(format!("data: {}\n\n", Value::Object(event)).into_bytes())
    }

    /// Counts the tokens before as output and not as prompt.
    fn add_up(&self, usage: &mut Map<String, Value>) {
        let number = |usage: &Map<String, Value>, name: &str| usage.get(name).and_then(Value::as_u64);
        let before = u64::from(self.tokens_before);
        let prompt = number(usage, "prompt_tokens").map(|tokens| tokens.saturating_sub(before));
        let output = number(usage, "completion_tokens").map(|tokens| tokens.saturating_add(before));
        let total = prompt.zip(output).map(|(prompt, output)| prompt.saturating_add(output));
        for (name, tokens) in
            [("prompt_tokens", prompt), ("completion_tokens", output), ("total_tokens", total)]
        {
            tokens.iter().for_each(|tokens| _ = usage.insert(name.to_owned(), (*tokens).into()));
        }
        let Some(cached) = self.cached_tokens else {
            usage.remove("prompt_tokens_details");
            return;
        };
        let details = usage.get_mut("prompt_tokens_details").and_then(Value::as_object_mut);
        if let (Some(details), Some(prompt)) = (details, prompt)
            && details.contains_key("cached_tokens")
        {
            details.insert("cached_tokens".to_owned(), u64::from(cached).min(prompt).into());
        }
    }
}

/// Removes the role from an event's answer. Returns whether nothing is left.
fn is_role_event(event: &mut Map<String, Value>) -> bool {
    let choices = event.get_mut("choices").and_then(Value::as_array_mut);
    let Some(choice) = choices.and_then(|choices| choices.first_mut()) else { return false };
    let is_finished = choice.get("finish_reason").is_some_and(|reason| !reason.is_null());
    let Some(delta) = choice.get_mut("delta").and_then(Value::as_object_mut) else { return false };
    let had_role = delta.remove("role").is_some();
    let is_empty = |value: &Value| value.is_null() || value.as_str().is_some_and(str::is_empty);
    had_role && !is_finished && delta.values().all(is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriter() -> EventRewriter {
        let head = EventHead {
            id: Some("c-1".into()),
            created: Some(7.into()),
            model: Some("m".into()),
            ..EventHead::default()
        };
        EventRewriter::new(head, 10, Some(4))
    }

    fn rewritten(data: &str) -> Option<Value> {
        let event = rewriter().rewrite(data.as_bytes())?;
        let text = String::from_utf8(event).unwrap();
        let data = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        Some(serde_json::from_str(data).unwrap_or_else(|_| data.into()))
    }

    #[test]
    fn events_keep_the_identity_of_the_stream_and_the_role_is_not_repeated() {
        let event = r#"{"id":"c-9","created":9,"model":"other","system_fingerprint":"x","choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
        let event = rewritten(event).unwrap();
        assert_eq!(
            (&event["id"], &event["created"], &event["model"]),
            (&"c-1".into(), &7.into(), &"m".into())
        );
        assert_eq!(event.get("system_fingerprint"), None);
        assert_eq!(rewritten(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#), None);
        let both = rewritten(r#"{"choices":[{"delta":{"role":"assistant","content":"hi"}}]}"#).unwrap();
        assert_eq!(both["choices"][0]["delta"], serde_json::json!({"content": "hi"}));
        assert_eq!(rewritten("[DONE]"), Some("[DONE]".into()));
    }

    #[test]
    fn a_worker_after_one_that_said_nothing_is_the_first() {
        let rewriter = EventRewriter::new(EventHead::default(), 0, None);
        let event = r#"{"id":"c-9","choices":[{"delta":{"role":"assistant","content":""}}]}"#;
        assert_eq!(rewriter.rewrite(event.as_bytes()).unwrap(), format!("data: {event}\n\n").as_bytes());
    }

    #[test]
    fn usage_is_added_up() {
        let event = r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5,"total_tokens":35,"prompt_tokens_details":{"cached_tokens":28}}}"#;
        let usage = &rewritten(event).unwrap()["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&20.into(), &15.into()));
        assert_eq!(usage["total_tokens"], 35);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4, "what the first worker had cached");
        let unknown = EventRewriter { cached_tokens: None, ..rewriter() }.rewrite(event.as_bytes()).unwrap();
        assert!(
            !String::from_utf8(unknown).unwrap().contains("cached_tokens"),
            "no number is better than a wrong one"
        );
        let absurd = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":18446744073709551615}}"#;
        assert_eq!(rewritten(absurd).unwrap()["usage"]["prompt_tokens"], 0);
    }
}
