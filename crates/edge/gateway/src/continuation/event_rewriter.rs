//! Events of a worker that continues an answer, as if the first worker had sent them.

use super::delivered_text::EventHead;
use super::ordered_object::OrderedObject;

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
        let Some(mut event) = OrderedObject::read(data) else {
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
                Some(value) => event.set(name, value),
                None => _ = event.remove(name),
            }
        }
        if let Some(mut usage) = event.parse::<OrderedObject>("usage") {
            self.add_up(&mut usage);
            event.set("usage", &usage);
        }
        Some(format!("data: {}\n\n", event.to_json()).into_bytes())
    }

    /// Counts the tokens before as output and not as prompt.
    fn add_up(&self, usage: &mut OrderedObject) {
        let before = u64::from(self.tokens_before);
        let prompt = usage.parse("prompt_tokens").map(|tokens: u64| tokens.saturating_sub(before));
        let output = usage.parse("completion_tokens").map(|tokens: u64| tokens.saturating_add(before));
        let total = prompt.zip(output).map(|(prompt, output)| prompt.saturating_add(output));
        for (name, tokens) in
            [("prompt_tokens", prompt), ("completion_tokens", output), ("total_tokens", total)]
        {
            tokens.iter().for_each(|tokens| usage.set(name, tokens));
        }
        let Some(cached) = self.cached_tokens else {
            usage.remove("prompt_tokens_details");
            return;
        };
        let details = usage.parse::<OrderedObject>("prompt_tokens_details");
        if let (Some(mut details), Some(prompt)) = (details, prompt)
            && details.get("cached_tokens").is_some()
        {
            details.set("cached_tokens", &u64::from(cached).min(prompt));
            usage.set("prompt_tokens_details", &details);
        }
    }
}

/// Removes the role from an event's answer. Returns whether nothing is left.
fn is_role_event(event: &mut OrderedObject) -> bool {
    let Some(mut choices) = event.parse::<Vec<OrderedObject>>("choices") else { return false };
    let Some(choice) = choices.first_mut() else { return false };
    let is_finished = choice.get("finish_reason").is_some_and(|reason| reason != b"null");
    let Some(mut delta) = choice.parse::<OrderedObject>("delta") else { return false };
    if !delta.remove("role") {
        return false;
    }
    let is_role_only = !is_finished && delta.values().all(|value| value == b"null" || value == b"\"\"");
    choice.set("delta", &delta);
    event.set("choices", &choices);
    is_role_only
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
