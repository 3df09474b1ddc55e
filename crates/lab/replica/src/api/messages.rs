//! `POST /v1/messages`: Anthropic's API, as vLLM serves it.
//!
//! As in Anthropic's API and in vLLM, `input_tokens` excludes cached tokens, which are in
//! `cache_read_input_tokens`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

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
    messages: Vec<Turn<'a>>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    max_tokens: Option<u32>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    ignore_eos: Option<bool>,
    cache_salt: Option<String>,
}

#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// Reads a request.
pub(crate) fn read(body: &[u8], tokenizer: Tokenizer) -> Result<Ask, ApiError> {
    let request: Request<'_> = serde_json::from_slice(body)?;
    let Some(limit) = request.max_tokens else {
        return Err(ApiError::bad_request("max_tokens: Field required").about("max_tokens"));
    };
    Ok(Ask {
        prompts: vec![render(&request, tokenizer)?.for_answer()],
        model: request.model.map(Cow::into_owned),
        n: 1,
        begun_tokens: 0,
        limit: Some(limit),
        stops: request.stop_sequences.unwrap_or_default(),
        end_of_turn: match EndOfTurn::of(request.ignore_eos) {
            EndOfTurn::Heeded => EndOfTurn::BeforeLimit,
            other => other,
        },
        seed: 0,
        // vLLM's Messages API has the field since 0.27.
        salt: request.cache_salt.unwrap_or_default(),
        delivery: Delivery::of(request.stream),
        shape: Box::new(MessageShape),
    })
}

/// `POST /v1/messages/count_tokens`.
pub(crate) fn count_tokens(body: &[u8], tokenizer: Tokenizer) -> Result<serde_json::Value, ApiError> {
    let request: Request<'_> = serde_json::from_slice(body)?;
    Ok(json!({"input_tokens": render(&request, tokenizer)?.for_answer().len()}))
}

fn render(request: &Request<'_>, tokenizer: Tokenizer) -> Result<Prompt, ApiError> {
    if request.messages.is_empty() {
        return Err(ApiError::bad_request("messages: at least one message is required").about("messages"));
    }
    let mut prompt = Prompt::new(tokenizer);
    let tools = given(request.tools);
    if request.system.is_some() || tools.is_some() {
        prompt.open("system");
        prompt.text(tools.unwrap_or_default());
        request.system.map_or(Ok(()), |system| content::render(system, &mut prompt))?;
        prompt.close();
    }
    for turn in &request.messages {
        prompt.open(&turn.role);
        content::render(turn.content, &mut prompt)?;
        prompt.close();
    }
    Ok(prompt)
}

struct MessageShape;

#[derive(Serialize)]
struct Message<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    content: Vec<TextBlock<'a>>,
    model: &'a str,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: MessageUsage,
}

#[derive(Serialize)]
struct TextBlock<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct MessageUsage {
    input_tokens: u32,
    output_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_read_input_tokens: Option<u32>,
}

#[derive(Serialize)]
struct BlockDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
    delta: TextBlock<'a>,
}

impl Shape for MessageShape {
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8> {
        let answer = &reply.answers[0];
        let (stop_reason, stop_sequence) = stop_words(&answer.finish);
        let message = Message {
            content: vec![TextBlock { kind: "text", text: &answer.text }],
            stop_reason: Some(stop_reason),
            stop_sequence,
            ..Message::empty(reply)
        };
        let mut out = Vec::with_capacity(512);
        write_json(&message, &mut out);
        out
    }

    fn open(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        write_event(
            "message_start",
            &json!({"type": "message_start", "message": Message::empty(reply)}),
            out,
        );
        let block =
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
        write_event("content_block_start", &block, out);
        write_event("ping", &json!({"type": "ping"}), out);
    }

    fn token(
        &mut self,
        _reply: &Reply<'_>,
        _choice: usize,
        text: &str,
        _finish: Option<&Finish>,
        out: &mut Vec<u8>,
    ) {
        // The end-of-turn token has no text, so it gets no event.
        if !text.is_empty() {
            let delta = TextBlock { kind: "text_delta", text };
            write_event(
                "content_block_delta",
                &BlockDelta { kind: "content_block_delta", index: 0, delta },
                out,
            );
        }
    }

    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let (stop_reason, stop_sequence) = stop_words(&reply.answers[0].finish);
        write_event("content_block_stop", &json!({"type": "content_block_stop", "index": 0}), out);
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": MessageUsage::of(reply.usage),
        });
        write_event("message_delta", &delta, out);
        write_event("message_stop", &json!({"type": "message_stop"}), out);
    }
}

impl<'a> Message<'a> {
    fn empty(reply: &'a Reply<'_>) -> Message<'a> {
        Message {
            id: format!("msg_{}", reply.head.id),
            kind: "message",
            role: "assistant",
            content: Vec::new(),
            model: &reply.head.model,
            stop_reason: None,
            stop_sequence: None,
            usage: MessageUsage::of(reply.usage),
        }
    }
}

impl MessageUsage {
    fn of(usage: Usage) -> MessageUsage {
        MessageUsage {
            input_tokens: usage.prompt_tokens - usage.cached_tokens.unwrap_or(0).min(usage.prompt_tokens),
            output_tokens: usage.output_tokens,
            cache_read_input_tokens: usage.cached_tokens.filter(|cached| *cached > 0),
        }
    }
}

fn stop_words(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::EndOfTurn => ("end_turn", None),
        Finish::Length => ("max_tokens", None),
        Finish::StopString(stop) => ("stop_sequence", Some(stop)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::chat;

    #[test]
    fn the_same_conversation_has_the_same_tokens_as_in_the_chat_api() {
        let anthropic = br#"{"max_tokens":5,"system":[{"type":"text","text":"Be kind."}],
            "messages":[{"role":"user","content":"hi"}]}"#;
        let openai =
            br#"{"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hi"}]}"#;
        assert_eq!(
            read(anthropic, Tokenizer::Quads).ok().unwrap().prompts,
            chat::read(openai, Tokenizer::Quads).ok().unwrap().prompts
        );
    }

    #[test]
    fn a_request_without_a_limit_is_refused() {
        let error =
            read(br#"{"messages":[{"role":"user","content":"hi"}]}"#, Tokenizer::Quads).err().unwrap();
        assert_eq!(error.param, Some("max_tokens"));
    }
}
