//! OpenAI's Responses API as vLLM converts it.
//!
//! Reasoning, text and calls that follow each other are items of the request and one message of the chat: an item
//! joins the assistant's message before it unless that message has such a part already.

use super::chat_message::{Arguments, ChatContent, ChatMessage, Role, ToolCall, to_json};
use super::object::{fields, is_string, is_word, items, string, string_or_empty};
use super::tools::{self, Parameters, ToolDefinition};
use super::{ChatRequest, CustomTools, ResponsesRules};
use crate::align::unaligned::Unrendered;
use crate::body::PromptFields;

/// Joins a namespace and the name of a tool in it.
const NAMESPACE_END: &[u8] = b"__";

/// Converts a request.
pub(super) fn convert(prompt: &PromptFields<'_>, rules: ResponsesRules) -> Result<ChatRequest, Unrendered> {
    let mut messages = Vec::new();
    let instructions = string_or_empty(prompt.system.filter(|system| *system != b"null"))?;
    if !instructions.is_empty() {
        messages.push(ChatMessage::of_text(Role::System, instructions));
    }
    let input = prompt.turns.ok_or(Unrendered::Shape)?;
    let mut continues_last = false;
    match string(input) {
        Some(text) => messages.push(ChatMessage::of_text(Role::User, text)),
        None => {
            let items = items(input)?;
            continues_last = items.last().map_or(Ok(false), |last| is_unfinished(last))?;
            let mut said = Vec::new();
            for item in items {
                add_item(item, rules, &mut said)?;
            }
            messages.extend(said);
        }
    }
    let tools = prompt.tools.filter(|tools| *tools != b"null").map(items).transpose()?.unwrap_or_default();
    Ok(ChatRequest {
        messages: to_json(&messages),
        tools: if tools.is_empty() { None } else { Some(tools::to_json(&definitions(&tools, rules)?)?) },
        effort: effort(prompt)?,
        continues_last,
    })
}

/// Whether the engine continues this last item.
fn is_unfinished(item: &[u8]) -> Result<bool, Unrendered> {
    let [kind, status] = fields(item, ["type", "status"])?;
    let is_message = kind.is_none() || is_word(kind, "message") || is_word(kind, "reasoning");
    Ok(is_message && (is_word(status, "in_progress") || is_word(status, "incomplete")))
}

fn add_item<'a>(
    item: &'a [u8],
    rules: ResponsesRules,
    messages: &mut Vec<ChatMessage<'a>>,
) -> Result<(), Unrendered> {
    let [kind] = fields(item, ["type"])?;
    match kind.map_or(Some(&b"message"[..]), string).ok_or(Unrendered::Shape)? {
        b"message" => add_message(item, messages),
        b"reasoning" => add_reasoning(item, messages),
        b"function_call" => {
            add_call(function_call(item)?, messages);
            Ok(())
        }
        b"custom_tool_call" if rules.custom_tools == CustomTools::Functions => {
            add_call(custom_call(item)?, messages);
            Ok(())
        }
        b"custom_tool_call_output" if rules.custom_tools == CustomTools::Functions => {
            messages.push(call_output(item)?);
            Ok(())
        }
        b"function_call_output" => {
            messages.push(call_output(item)?);
            Ok(())
        }
        _ => Err(Unrendered::Shape),
    }
}

/// The assistant's message at the end, which items may join.
fn last_assistant<'m, 'a>(messages: &'m mut [ChatMessage<'a>]) -> Option<&'m mut ChatMessage<'a>> {
    messages.last_mut().filter(|message| message.is_assistant())
}

fn add_message<'a>(item: &'a [u8], messages: &mut Vec<ChatMessage<'a>>) -> Result<(), Unrendered> {
    let [role, content] = fields(item, ["role", "content"])?;
    let role = Role::Other(role.and_then(string).ok_or(Unrendered::Shape)?);
    let message = ChatMessage { role, content: content.map(ChatContent::Json), ..ChatMessage::default() };
    let text = if message.is_assistant() { first_text(content)? } else { None };
    match (text, last_assistant(messages)) {
        (Some(text), Some(last)) if last.content.is_none() => last.content = Some(ChatContent::text(text)),
        (Some(text), _) => messages.push(ChatMessage::of_text(Role::Assistant, text)),
        (None, _) => messages.push(message),
    }
    Ok(())
}

/// The only text of the assistant's message that the engine keeps: its first.
fn first_text(content: Option<&[u8]>) -> Result<Option<&[u8]>, Unrendered> {
    let Some(content) = content else { return Ok(None) };
    if is_string(content) {
        return string_or_empty(Some(content)).map(Some);
    }
    let Some(first) = items(content)?.into_iter().next() else { return Ok(None) };
    let [text] = fields(first, ["text"])?;
    text.map(|text| string_or_empty(Some(text))).transpose()
}

fn add_reasoning<'a>(item: &'a [u8], messages: &mut Vec<ChatMessage<'a>>) -> Result<(), Unrendered> {
    let [content, summary, encrypted] = fields(item, ["content", "summary", "encrypted_content"])?;
    if encrypted.is_some_and(|encrypted| string(encrypted) != Some(b"")) {
        return Err(Unrendered::Shape);
    }
    let text = match first_text(content)? {
        Some(text) => Some(text),
        None => first_text(summary)?,
    };
    let reasoning = Some(text.into_iter().collect());
    match last_assistant(messages) {
        Some(last) if last.reasoning.is_none() => last.reasoning = reasoning,
        _ => messages.push(ChatMessage { role: Role::Assistant, reasoning, ..ChatMessage::default() }),
    }
    Ok(())
}

fn add_call<'a>(call: ToolCall<'a>, messages: &mut Vec<ChatMessage<'a>>) {
    match last_assistant(messages) {
        Some(last) => last.tool_calls.push(call),
        None => messages.push(ChatMessage {
            role: Role::Assistant,
            tool_calls: vec![call],
            ..ChatMessage::default()
        }),
    }
}

fn function_call(item: &[u8]) -> Result<ToolCall<'_>, Unrendered> {
    let [id, name, namespace, arguments] = fields(item, ["call_id", "name", "namespace", "arguments"])?;
    let name = name.and_then(string).ok_or(Unrendered::Shape)?;
    let namespace = string_or_empty(namespace)?;
    Ok(ToolCall {
        id: id.ok_or(Unrendered::Shape)?,
        name: if namespace.is_empty() { vec![name] } else { vec![namespace, NAMESPACE_END, name] },
        arguments: Arguments::Json(arguments.ok_or(Unrendered::Shape)?),
    })
}

fn custom_call(item: &[u8]) -> Result<ToolCall<'_>, Unrendered> {
    let [id, name, input] = fields(item, ["call_id", "name", "input"])?;
    Ok(ToolCall {
        id: id.ok_or(Unrendered::Shape)?,
        name: vec![name.and_then(string).ok_or(Unrendered::Shape)?],
        arguments: Arguments::Input(string_or_empty(input)?),
    })
}

fn call_output(item: &[u8]) -> Result<ChatMessage<'_>, Unrendered> {
    let [id, output] = fields(item, ["call_id", "output"])?;
    Ok(ChatMessage {
        role: Role::Tool,
        content: output.map(ChatContent::Json),
        tool_call_id: id,
        ..ChatMessage::default()
    })
}

/// Functions that the model is shown. Tools of other types, such as web search, are not shown.
fn definitions<'a>(tools: &[&'a [u8]], rules: ResponsesRules) -> Result<Vec<ToolDefinition<'a>>, Unrendered> {
    let mut shown = Vec::new();
    for tool in tools {
        let [kind, name, members] = fields(tool, ["type", "name", "tools"])?;
        match kind.and_then(string).ok_or(Unrendered::Shape)? {
            b"function" => shown.push(function(tool, &[])?),
            b"namespace" => {
                let namespace = name.and_then(string).ok_or(Unrendered::Shape)?;
                for member in items(members.ok_or(Unrendered::Shape)?)? {
                    let [kind] = fields(member, ["type"])?;
                    if is_word(kind, "function") {
                        shown.push(function(member, &[namespace, NAMESPACE_END])?);
                    }
                }
            }
            b"custom" if rules.custom_tools == CustomTools::Functions => {
                shown.push(free_text(tool)?);
            }
            _ => {}
        }
    }
    Ok(shown)
}

fn function<'a>(tool: &'a [u8], before_name: &[&'a [u8]]) -> Result<ToolDefinition<'a>, Unrendered> {
    let names = ["name", "description", "parameters", "strict", "defer_loading"];
    let [name, description, parameters, strict, defer_loading] = fields(tool, names)?;
    let name = name.and_then(string).ok_or(Unrendered::Shape)?;
    Ok(ToolDefinition {
        name: before_name.iter().copied().chain([name]).collect(),
        description,
        parameters: Parameters::Json(parameters),
        strict,
        defer_loading,
    })
}

fn free_text(tool: &[u8]) -> Result<ToolDefinition<'_>, Unrendered> {
    let [name, description] = fields(tool, ["name", "description"])?;
    Ok(ToolDefinition {
        name: vec![name.and_then(string).ok_or(Unrendered::Shape)?],
        description,
        parameters: Parameters::FreeText,
        strict: None,
        defer_loading: None,
    })
}

/// Reasoning effort as JSON.
fn effort(prompt: &PromptFields<'_>) -> Result<Option<Vec<u8>>, Unrendered> {
    let Some(reasoning) = prompt.setting("reasoning") else { return Ok(None) };
    let [effort] = fields(reasoning, ["effort"])?;
    Ok(effort.map(<[u8]>::to_vec))
}
