//! `POST /v1/chat/completions`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Ask, Delivery, EndOfTurn, FINGERPRINT, OpenAiUsage, Reply, Shape, Stop, StreamOptions, content,
    finish_words, write_data, write_done, write_json,
};
use crate::answer::{Answer, Finish};
use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::python_json;
use crate::tokens::{Token, Tokenizer};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    n: Option<u32>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    ignore_eos: Option<bool>,
    seed: Option<i64>,
    cache_salt: Option<String>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
}

/// One message of a conversation.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

/// Reads a request.
pub(crate) fn read(body: &[u8], tokenizer: Tokenizer) -> Result<Ask, ApiError> {
    let request: Request<'_> = serde_json::from_slice(body)?;
    let (prompt, begun_tokens) = match request.continue_final_message {
        Some(true) => continued_prompt(&request, tokenizer)?,
        _ => (render(&request.messages, request.tools, tokenizer)?.for_answer(), 0),
    };
    Ok(Ask {
        model: request.model.map(Cow::into_owned),
        prompts: vec![prompt],
        n: request.n.unwrap_or(1),
        begun_tokens,
        limit: request.max_completion_tokens.or(request.max_tokens),
        stops: Stop::strings(request.stop),
        end_of_turn: EndOfTurn::of(request.ignore_eos),
        seed: request.seed.unwrap_or(0) as u64,
        salt: request.cache_salt.unwrap_or_default(),
        delivery: Delivery::of(request.stream),
        shape: Box::new(ChatShape { options: request.stream_options.unwrap_or_default() }),
    })
}

/// Renders a conversation whose last message is the beginning of the answer, and counts that message's tokens.
fn continued_prompt(request: &Request<'_>, tokenizer: Tokenizer) -> Result<(Vec<Token>, u32), ApiError> {
    if request.add_generation_prompt.unwrap_or(true) {
        return Err(ApiError::bad_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        ));
    }
    let [before @ .., last] = &request.messages[..] else {
        return Err(ApiError::bad_request("messages must not be empty").about("messages"));
    };
    let mut prompt = match before.is_empty() {
        true => Prompt::new(tokenizer),
        false => render(before, request.tools, tokenizer)?,
    };
    prompt.open(&last.role);
    let opened = prompt.len();
    render_message(last, &mut prompt)?;
    let tokens = prompt.into_tokens();
    let begun = (tokens.len() - opened) as u32;
    Ok((tokens, begun))
}

/// Renders the conversation up to the assistant's turn. Tools are part of the system message, which is
/// created for them if absent.
pub(crate) fn render(
    messages: &[Message<'_>],
    tools: Option<&RawValue>,
    tokenizer: Tokenizer,
) -> Result<Prompt, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::bad_request("messages must not be empty").about("messages"));
    }
    let mut prompt = Prompt::new(tokenizer);
    let mut tools = written_tools(given(tools), tokenizer);
    if tools.is_some() && !matches!(messages[0].role.as_ref(), "system" | "developer") {
        prompt.open("system");
        prompt.text(&tools.take().unwrap_or_default());
        prompt.close();
    }
    for message in messages {
        prompt.open(&message.role);
        prompt.text(&tools.take().unwrap_or_default());
        render_message(message, &mut prompt)?;
        prompt.close();
    }
    Ok(prompt)
}

/// Raw JSON of the tools, if any.
pub(crate) fn given(tools: Option<&RawValue>) -> Option<&str> {
    tools.map(RawValue::get).filter(|raw| !matches!(*raw, "null" | "[]"))
}

/// Tools as in the request, or as vLLM passes them to a chat template.
fn written_tools<'a>(tools: Option<&'a str>, tokenizer: Tokenizer) -> Option<Cow<'a, str>> {
    match tokenizer {
        Tokenizer::Quads => tools.map(Cow::Borrowed),
        Tokenizer::Pairs => tools.map(|tools| Cow::Owned(python_json::tools(tools))),
    }
}

fn render_message(message: &Message<'_>, prompt: &mut Prompt) -> Result<(), ApiError> {
    if let Some(content) = message.content {
        content::render(content, prompt)?;
    }
    let calls = given(message.tool_calls).unwrap_or_default();
    match prompt.tokenizer() {
        Tokenizer::Quads => prompt.text(calls),
        Tokenizer::Pairs => prompt.text(&python_json::tool_calls(calls)),
    }
    Ok(())
}

struct ChatShape {
    options: StreamOptions,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    service_tier: Option<()>,
    system_fingerprint: &'static str,
    usage: OpenAiUsage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    message: Said<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
    stop_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChunkChoice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<OpenAiUsage>,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Option<&'a str>>,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: &'a str,
}

impl Shape for ChatShape {
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8> {
        let id = id_of(reply);
        let mut out = Vec::with_capacity(512);
        let completion = Completion {
            id: &id,
            object: "chat.completion",
            created: reply.head.created_s,
            model: &reply.head.model,
            choices: reply.answers.iter().enumerate().map(|(index, answer)| choice(index, answer)).collect(),
            service_tier: None,
            system_fingerprint: FINGERPRINT,
            usage: OpenAiUsage::detailed(reply.usage),
        };
        write_json(&completion, &mut out);
        out
    }

    fn open(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        for index in 0..reply.answers.len() {
            let delta = Delta { role: Some("assistant"), content: "" };
            self.chunk(reply, ChunkChoice::new(index, delta, None), out);
        }
    }

    fn token(
        &mut self,
        reply: &Reply<'_>,
        choice: usize,
        text: &str,
        finish: Option<&Finish>,
        out: &mut Vec<u8>,
    ) {
        let delta = Delta { role: None, content: text };
        self.chunk(reply, ChunkChoice::new(choice, delta, finish), out);
    }

    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        if self.options.include_usage {
            write_chunk(reply, &[], Some(OpenAiUsage::detailed(reply.usage)), out);
        }
        write_done(out);
    }
}

impl ChatShape {
    fn chunk(&self, reply: &Reply<'_>, choice: ChunkChoice<'_>, out: &mut Vec<u8>) {
        let usage = self.options.continuous_usage_stats.then(|| OpenAiUsage::plain(reply.usage));
        write_chunk(reply, &[choice], usage, out);
    }
}

impl<'a> ChunkChoice<'a> {
    fn new(index: usize, delta: Delta<'a>, finish: Option<&'a Finish>) -> ChunkChoice<'a> {
        let words = finish.map(finish_words);
        ChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: words.map(|(finish_reason, _)| finish_reason),
            stop_reason: words.map(|(_, stop_reason)| stop_reason),
        }
    }
}

fn choice(index: usize, answer: &Answer) -> Choice<'_> {
    let (finish_reason, stop_reason) = finish_words(&answer.finish);
    let message = Said { role: "assistant", content: &answer.text, refusal: None };
    Choice { index, message, logprobs: None, finish_reason, stop_reason }
}

fn write_chunk(
    reply: &Reply<'_>,
    choices: &[ChunkChoice<'_>],
    usage: Option<OpenAiUsage>,
    out: &mut Vec<u8>,
) {
    let chunk = Chunk {
        id: &id_of(reply),
        object: "chat.completion.chunk",
        created: reply.head.created_s,
        model: &reply.head.model,
        choices,
        usage,
        system_fingerprint: FINGERPRINT,
    };
    write_data(&chunk, out);
}

fn id_of(reply: &Reply<'_>) -> String {
    format!("chatcmpl-{}", reply.head.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens;

    fn text_of(body: &str) -> String {
        String::from_utf8(tokens::decode(&read(body.as_bytes(), Tokenizer::Quads).ok().unwrap().prompts[0]))
            .unwrap()
    }

    #[test]
    fn tools_are_rendered_into_the_system_part() {
        let with_system = r#"{"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hi"}],
            "tools":[{"type": "function"}]}"#;
        assert_eq!(text_of(with_system), r#"[{"type": "function"}]Be kind.hi"#);
        let without = r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type": "function"}]}"#;
        assert_eq!(text_of(without), r#"[{"type": "function"}]hi"#);
        assert_eq!(text_of(r#"{"messages":[{"role":"user","content":"hi"}],"tools":[]}"#), "hi");
    }

    #[test]
    fn tool_calls_of_an_assistant_are_part_of_the_prompt() {
        let body = r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
            {"role":"tool","tool_call_id":"1","content":"42"}]}"#;
        assert_eq!(text_of(body), r#"[{"id":"1"}]42"#);
    }

    #[test]
    fn the_newer_name_of_the_limit_wins() {
        let body =
            br#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":9,"max_completion_tokens":5}"#;
        assert_eq!(read(body, Tokenizer::Quads).ok().unwrap().limit, Some(5));
    }

    #[test]
    fn a_conversation_without_messages_is_refused() {
        assert_eq!(read(br#"{"messages":[]}"#, Tokenizer::Quads).err().unwrap().param, Some("messages"));
        let error = read(b"{\"messages\":[}", Tokenizer::Quads).err().unwrap();
        assert!(error.message.contains("line 1 column"), "{error}");
    }
}
