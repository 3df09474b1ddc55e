//! `POST /v1/responses`: OpenAI's Responses API.
//!
//! Responses are not stored, so a `previous_response_id` is never found.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Ask, Delivery, EndOfTurn, Reply, Shape, Usage, content, write_event, write_json};
use crate::answer::Finish;
use crate::api::chat::given;
use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::tokens::Tokenizer;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(borrow)]
    instructions: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    previous_response_id: Option<String>,
    max_output_tokens: Option<u32>,
    stream: Option<bool>,
    ignore_eos: Option<bool>,
    cache_salt: Option<String>,
}

/// One item of the input: a message, a function call or a function result.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    /// Result of a function.
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

/// Reads a request.
pub(crate) fn read(body: &[u8], tokenizer: Tokenizer) -> Result<Ask, ApiError> {
    let request: Request<'_> = serde_json::from_slice(body)?;
    if let Some(previous) = &request.previous_response_id {
        return Err(ApiError::not_found(format!("Response with id '{previous}' not found.")));
    }
    Ok(Ask {
        prompts: vec![render(&request, tokenizer)?.for_answer()],
        model: request.model.as_deref().map(str::to_owned),
        n: 1,
        begun_tokens: 0,
        limit: request.max_output_tokens,
        stops: Vec::new(),
        end_of_turn: EndOfTurn::of(request.ignore_eos),
        seed: 0,
        delivery: Delivery::of(request.stream),
        shape: Box::new(ResponseShape::of(&request)),
        salt: request.cache_salt.unwrap_or_default(),
    })
}

fn render(request: &Request<'_>, tokenizer: Tokenizer) -> Result<Prompt, ApiError> {
    let mut prompt = Prompt::new(tokenizer);
    let tools = given(request.tools);
    if request.instructions.is_some() || tools.is_some() {
        prompt.open("system");
        prompt.text(tools.unwrap_or_default());
        prompt.text(request.instructions.as_deref().unwrap_or_default());
        prompt.close();
    }
    if request.input.get().starts_with('"') {
        prompt.open("user");
        content::render(request.input, &mut prompt)?;
        prompt.close();
        return Ok(prompt);
    }
    let items: Vec<&RawValue> = serde_json::from_str(request.input.get())?;
    items.into_iter().try_for_each(|item| render_item(item, &mut prompt))?;
    Ok(prompt)
}

fn render_item(raw: &RawValue, prompt: &mut Prompt) -> Result<(), ApiError> {
    let item: Item<'_> = serde_json::from_str(raw.get())?;
    match (item.kind.as_deref().unwrap_or("message"), &item) {
        ("message", Item { role: Some(role), content: Some(content), .. }) => {
            prompt.open(role);
            content::render(content, prompt)?;
        }
        ("function_call_output", Item { output: Some(output), .. }) => {
            prompt.open("tool");
            content::render(output, prompt)?;
        }
        _ => {
            prompt.open("assistant");
            prompt.text(raw.get());
        }
    }
    prompt.close();
    Ok(())
}

struct ResponseShape {
    sequence_number: u32,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    tools: Value,
}

#[derive(Serialize)]
struct TextDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u32,
    item_id: String,
    output_index: u32,
    content_index: u32,
    delta: &'a str,
    logprobs: [(); 0],
}

impl Shape for ResponseShape {
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(1_024);
        write_json(&self.ended(reply), &mut out);
        out
    }

    fn greet(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let response = self.response(reply, "in_progress", json!([]), Value::Null);
        self.event("response.created", json!({"response": response}), out);
        self.event("response.in_progress", json!({"response": response}), out);
    }

    fn open(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let item = item(reply, "in_progress", json!([]));
        self.event("response.output_item.added", json!({"output_index": 0, "item": item}), out);
        let part =
            json!({"item_id": item_id(reply), "output_index": 0, "content_index": 0, "part": part("")});
        self.event("response.content_part.added", part, out);
    }

    fn token(
        &mut self,
        reply: &Reply<'_>,
        _choice: usize,
        text: &str,
        _finish: Option<&Finish>,
        out: &mut Vec<u8>,
    ) {
        // The end-of-turn token has no text, so it gets no event.
        if text.is_empty() {
            return;
        }
        let kind = "response.output_text.delta";
        let delta = TextDelta {
            kind,
            sequence_number: self.next_number(),
            item_id: item_id(reply),
            output_index: 0,
            content_index: 0,
            delta: text,
            logprobs: [],
        };
        write_event(kind, &delta, out);
    }

    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let text = &reply.answers[0].text;
        let place = json!({"item_id": item_id(reply), "output_index": 0, "content_index": 0});
        self.event("response.output_text.done", with(&place, json!({"text": text, "logprobs": []})), out);
        self.event("response.content_part.done", with(&place, json!({"part": part(text)})), out);
        let item = item(reply, status(reply), json!([part(text)]));
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}), out);
        let last = match status(reply) {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        let response = self.ended(reply);
        self.event(last, json!({"response": response}), out);
    }
}

impl ResponseShape {
    fn of(request: &Request<'_>) -> ResponseShape {
        let tools = given(request.tools).and_then(|raw| serde_json::from_str(raw).ok());
        ResponseShape {
            sequence_number: 0,
            instructions: request.instructions.as_deref().map(str::to_owned),
            max_output_tokens: request.max_output_tokens,
            tools: tools.unwrap_or_else(|| json!([])),
        }
    }

    fn next_number(&mut self) -> u32 {
        let number = self.sequence_number;
        self.sequence_number += 1;
        number
    }

    fn event(&mut self, kind: &str, fields: Value, out: &mut Vec<u8>) {
        let number = json!({"type": kind, "sequence_number": self.next_number()});
        write_event(kind, &with(&number, fields), out);
    }

    /// The completed response.
    fn ended(&self, reply: &Reply<'_>) -> Value {
        let item = item(reply, status(reply), json!([part(&reply.answers[0].text)]));
        self.response(reply, status(reply), json!([item]), usage(reply.usage))
    }

    fn response(&self, reply: &Reply<'_>, status: &str, output: Value, usage: Value) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": format!("resp_{}", reply.head.id),
            "object": "response",
            "created_at": reply.head.created_s,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": {},
            "model": reply.head.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "service_tier": "auto",
            "store": false,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": self.tools,
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": usage,
            "user": null,
        })
    }
}

fn status(reply: &Reply<'_>) -> &'static str {
    match reply.answers[0].finish {
        Finish::Length => "incomplete",
        Finish::EndOfTurn | Finish::StopString(_) => "completed",
    }
}

fn item_id(reply: &Reply<'_>) -> String {
    format!("msg_{}", reply.head.id)
}

fn item(reply: &Reply<'_>, status: &str, content: Value) -> Value {
    json!({"id": item_id(reply), "type": "message", "role": "assistant", "status": status, "content": content})
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Usage with details even at zero, because this API's schema requires them.
fn usage(usage: Usage) -> Value {
    let counts = json!({
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    });
    match usage.cached_tokens {
        Some(cached) => with(&counts, json!({"input_tokens_details": {"cached_tokens": cached}})),
        None => counts,
    }
}

/// Merges the fields of both objects.
fn with(object: &Value, more: Value) -> Value {
    let mut all = object.as_object().cloned().unwrap_or_default();
    if let Value::Object(more) = more {
        all.extend(more);
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::chat;

    fn prompt(body: &str) -> Vec<u32> {
        read(body.as_bytes(), Tokenizer::Quads).ok().unwrap().prompts.remove(0)
    }

    #[test]
    fn the_same_conversation_has_the_same_tokens_as_in_the_chat_api() {
        let responses = r#"{"instructions":"Be kind.","input":[{"role":"user","content":"hi"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"hello"}]},
            {"role":"user","content":[{"type":"input_text","text":"more"}]}]}"#;
        let openai = br#"{"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hi"},
            {"role":"assistant","content":"hello"},{"role":"user","content":"more"}]}"#;
        assert_eq!(prompt(responses), chat::read(openai, Tokenizer::Quads).ok().unwrap().prompts[0]);
        assert_eq!(prompt(r#"{"input":"hi"}"#), prompt(r#"{"input":[{"role":"user","content":"hi"}]}"#));
    }

    #[test]
    fn tool_results_are_part_of_the_prompt() {
        let with = |output: &str| {
            prompt(&format!(
                r#"{{"input":[{{"type":"function_call_output","call_id":"1","output":"{output}"}}]}}"#
            ))
        };
        assert_ne!(with("42"), with("43"));
    }

    #[test]
    fn a_previous_response_is_not_found() {
        let error =
            read(br#"{"input":"hi","previous_response_id":"resp_1"}"#, Tokenizer::Quads).err().unwrap();
        assert_eq!(error.status, 404);
    }
}
