//! Anthropic's Messages API as vLLM converts it.
//!
//! - System blocks are joined without a separator. A block with Claude Code's attribution line is
//!   dropped.
//! - A tool result becomes a message of its own before the user's message. Images of a result follow it as a user's
//!   message.
//! - Thinking becomes the message's reasoning; redacted thinking is dropped.
//! - Blocks that add or remove tools change the list of tools.

use super::chat_message::{Arguments, ChatContent, ChatMessage, ChatPart, Role, ToolCall, to_json};
use super::object::{fields, is_string, is_word, items, string, string_or_empty};
use super::tools::{self, Parameters, ToolDefinition};
use super::{ChatRequest, InlineSystem, MessagesRules, TemplateTraits, Thinking};
use crate::align::unaligned::Unrendered;
use crate::body::PromptFields;
use crate::json::RawStr;

/// Converts a request.
pub(super) fn convert(
    prompt: &PromptFields<'_>,
    rules: MessagesRules,
    traits: TemplateTraits,
) -> Result<ChatRequest, Unrendered> {
    let merges = match rules.inline_system {
        InlineSystem::Merged => true,
        InlineSystem::InPlace => false,
        InlineSystem::AsTemplateNeeds => traits.refuses_late_system,
    };
    let mut chat =
        Chat { system: leading_system(prompt.system)?, messages: Vec::new(), tool_changes: Vec::new() };
    for message in items(prompt.turns.ok_or(Unrendered::Shape)?)? {
        chat.add_message(message, merges)?;
    }
    let tools = chat.tools(prompt.tools.filter(|tools| *tools != b"null"))?;
    Ok(ChatRequest {
        messages: to_json(&chat.into_messages()),
        tools: tools.map(|tools| tools::to_json(&tools)).transpose()?,
        effort: effort(prompt, rules.thinking, traits)?,
        continues_last: false,
    })
}

/// Chat under construction.
struct Chat<'a> {
    /// Texts of the leading system prompt, with their escapes.
    system: Vec<&'a [u8]>,
    messages: Vec<ChatMessage<'a>>,
    /// Blocks that add or remove tools.
    tool_changes: Vec<&'a [u8]>,
}

/// Texts of the field `system`. A text outside of blocks keeps its attribution line here: the chat drops it.
fn leading_system(system: Option<&[u8]>) -> Result<Vec<&[u8]>, Unrendered> {
    match system.filter(|system| *system != b"null") {
        None => Ok(Vec::new()),
        Some(text) if is_string(text) => {
            Ok(Some(string_or_empty(Some(text))?).filter(|text| !text.is_empty()).into_iter().collect())
        }
        Some(blocks) => system_texts(blocks),
    }
}

/// Texts of system blocks.
fn system_texts(blocks: &[u8]) -> Result<Vec<&[u8]>, Unrendered> {
    let mut texts = Vec::new();
    for block in items(blocks)? {
        let [kind, text] = fields(block, ["type", "text"])?;
        if is_word(kind, "text") {
            let text = string_or_empty(text)?;
            texts.extend(Some(text).filter(|text| !text.is_empty() && !RawStr(text).has_attribution()));
        }
    }
    Ok(texts)
}

impl<'a> Chat<'a> {
    fn add_message(&mut self, message: &'a [u8], merges_system: bool) -> Result<(), Unrendered> {
        let [role, content] = fields(message, ["role", "content"])?;
        let content = content.ok_or(Unrendered::Shape)?;
        match role.and_then(string) {
            Some(b"system") => self.add_system(content, merges_system),
            Some(b"user") => self.add_turn(Role::User, content),
            Some(b"assistant") => self.add_turn(Role::Assistant, content),
            _ => Err(Unrendered::Shape),
        }
    }

    fn add_system(&mut self, content: &'a [u8], merges: bool) -> Result<(), Unrendered> {
        let texts = match string(content) {
            Some(text) => Some(text)
                .filter(|text| !text.is_empty() && !RawStr(text).has_attribution())
                .into_iter()
                .collect(),
            None => {
                self.note_tool_changes(content)?;
                system_texts(content)?
            }
        };
        if merges {
            self.system.extend(texts);
        } else if !texts.is_empty() {
            let content = Some(ChatContent::joined(texts));
            self.messages.push(ChatMessage { role: Role::System, content, ..ChatMessage::default() });
        }
        Ok(())
    }

    fn note_tool_changes(&mut self, blocks: &'a [u8]) -> Result<(), Unrendered> {
        for block in items(blocks)? {
            let [kind] = fields(block, ["type"])?;
            if is_word(kind, "tool_addition") || is_word(kind, "tool_removal") {
                self.tool_changes.push(block);
            }
        }
        Ok(())
    }

    /// Adds a user's or the assistant's message.
    fn add_turn(&mut self, role: Role<'a>, content: &'a [u8]) -> Result<(), Unrendered> {
        if let Some(text) = string(content) {
            self.messages.push(ChatMessage::of_text(role, text));
            return Ok(());
        }
        let mut message = ChatMessage { role, ..ChatMessage::default() };
        let mut parts = Vec::new();
        for block in items(content)? {
            self.add_block(block, &mut message, &mut parts)?;
        }
        message.content = match &mut parts[..] {
            [] => None,
            [ChatPart::Text(texts)] => Some(ChatContent::joined(std::mem::take(texts))),
            _ => Some(ChatContent::Parts(parts)),
        };
        if message.is_assistant() || message.content.is_some() {
            self.messages.push(message);
        }
        Ok(())
    }

    /// Adds a block to its message, or the messages before it that a tool result becomes.
    fn add_block(
        &mut self,
        block: &'a [u8],
        message: &mut ChatMessage<'a>,
        parts: &mut Vec<ChatPart<'a>>,
    ) -> Result<(), Unrendered> {
        let [kind, text, source, thinking] = fields(block, ["type", "text", "source", "thinking"])?;
        match kind.and_then(string).ok_or(Unrendered::Shape)? {
            b"text" => {
                let text = string_or_empty(text)?;
                parts.extend((!text.is_empty()).then(|| ChatPart::Text(vec![text])));
            }
            b"image" => parts.extend(source.map(ChatPart::Image)),
            b"thinking" => {
                if thinking.is_some() {
                    message.reasoning.get_or_insert_default().push(string_or_empty(thinking)?);
                }
            }
            b"tool_use" => message.tool_calls.push(tool_call(block)?),
            b"tool_result" if message.is_assistant() => parts.push(own_tool_result(block)?),
            b"tool_result" => self.add_tool_result(block)?,
            b"redacted_thinking" | b"tool_reference" => {}
            _ => return Err(Unrendered::Shape),
        }
        Ok(())
    }

    fn add_tool_result(&mut self, block: &'a [u8]) -> Result<(), Unrendered> {
        let [id, content] = fields(block, ["tool_use_id", "content"])?;
        let id = Some(id.unwrap_or(b"\"\""));
        let mut result = ToolResult::default();
        match content {
            None => {}
            Some(text) if is_string(text) => result.texts.push(string_or_empty(Some(text))?),
            Some(list) => items(list)?.into_iter().try_for_each(|item| result.add(item))?,
        }
        let tool = |content| ChatMessage {
            role: Role::Tool,
            content: Some(content),
            tool_call_id: id,
            ..ChatMessage::default()
        };
        self.messages.push(tool(ChatContent::Texts { texts: result.texts, between: "\\n" }));
        if !result.images.is_empty() {
            let content = Some(ChatContent::Parts(result.images));
            self.messages.push(ChatMessage { content, ..ChatMessage::default() });
        }
        if !result.references.is_empty() {
            self.messages.push(tool(ChatContent::Parts(result.references)));
        }
        Ok(())
    }

    /// Tools after all changes; `None` if the request has none.
    fn tools(&self, listed: Option<&'a [u8]>) -> Result<Option<Vec<ToolDefinition<'a>>>, Unrendered> {
        let listed: Option<Vec<ToolDefinition<'a>>> =
            listed.map(|list| items(list)?.into_iter().map(tool_definition).collect()).transpose()?;
        if self.tool_changes.is_empty() {
            return Ok(listed);
        }
        let mut tools = CurrentTools::default();
        listed.unwrap_or_default().into_iter().for_each(|tool| tools.declare(tool));
        for change in &self.tool_changes {
            tools.change(change)?;
        }
        let kept = tools.0.into_iter().filter_map(|(tool, is_removed)| (!is_removed).then_some(tool));
        Ok(Some(kept.collect()))
    }

    /// All messages, the system prompt first.
    fn into_messages(mut self) -> Vec<ChatMessage<'a>> {
        if !self.system.is_empty() {
            let content = Some(ChatContent::joined(self.system));
            self.messages.insert(0, ChatMessage { role: Role::System, content, ..ChatMessage::default() });
        }
        self.messages
    }
}

/// Content of a tool result, by kind.
#[derive(Default)]
struct ToolResult<'a> {
    texts: Vec<&'a [u8]>,
    images: Vec<ChatPart<'a>>,
    references: Vec<ChatPart<'a>>,
}

impl<'a> ToolResult<'a> {
    fn add(&mut self, item: &'a [u8]) -> Result<(), Unrendered> {
        let [kind, text, source, tool_name, name] =
            fields(item, ["type", "text", "source", "tool_name", "name"])?;
        match kind.and_then(string) {
            Some(b"text") => self.texts.push(string_or_empty(text)?),
            Some(b"image") => self.images.push(ChatPart::Image(source.unwrap_or(b"{}"))),
            Some(b"tool_reference") => {
                let name = string_or_empty(tool_name.or(name))?;
                self.references
                    .extend(Some(name).filter(|name| !name.is_empty()).map(ChatPart::ToolReference));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Tool result in a message of the assistant itself, which becomes text.
fn own_tool_result(block: &[u8]) -> Result<ChatPart<'_>, Unrendered> {
    let [content] = fields(block, ["content"])?;
    // Of a list the engine prints Python's notation.
    let text = content
        .map_or(Some(&b""[..]), string)
        .ok_or(Unrendered::Setting("blocks in a tool result of the assistant"))?;
    Ok(ChatPart::Text(vec![b"Tool result: ", text]))
}

fn tool_call(block: &[u8]) -> Result<ToolCall<'_>, Unrendered> {
    let [id, name, input] = fields(block, ["id", "name", "input"])?;
    // vLLM invents an id from the time if there is none.
    let id = id.filter(|id| string(id).is_some_and(|id| !id.is_empty())).ok_or(Unrendered::Shape)?;
    Ok(ToolCall {
        id,
        name: vec![string_or_empty(name)?],
        arguments: Arguments::Json(input.unwrap_or(b"{}")),
    })
}

fn tool_definition(tool: &[u8]) -> Result<ToolDefinition<'_>, Unrendered> {
    let names = ["name", "description", "input_schema", "strict", "defer_loading"];
    let [name, description, schema, strict, defer_loading] = fields(tool, names)?;
    Ok(ToolDefinition {
        name: vec![name.and_then(string).ok_or(Unrendered::Shape)?],
        description,
        parameters: Parameters::Typed(schema.ok_or(Unrendered::Shape)?),
        strict,
        defer_loading,
    })
}

/// Tools in their order, and whether each is removed.
#[derive(Default)]
struct CurrentTools<'a>(Vec<(ToolDefinition<'a>, bool)>);

impl<'a> CurrentTools<'a> {
    /// Declares a tool, in the place of an earlier one of its name.
    fn declare(&mut self, tool: ToolDefinition<'a>) {
        match self.find(&tool.name) {
            Some(known) => *known = (tool, false),
            None => self.0.push((tool, false)),
        }
    }

    fn find(&mut self, name: &[&[u8]]) -> Option<&mut (ToolDefinition<'a>, bool)> {
        self.0.iter_mut().find(|(tool, _)| tool.name == name)
    }

    /// Applies a block that adds or removes a tool.
    fn change(&mut self, block: &'a [u8]) -> Result<(), Unrendered> {
        let [kind, tool] = fields(block, ["type", "tool"])?;
        let adds = is_word(kind, "tool_addition");
        let [change, name, definition] =
            fields(tool.ok_or(Unrendered::Shape)?, ["type", "name", "definition"])?;
        if is_word(change, "tool_definition") && adds {
            self.declare(tool_definition(definition.ok_or(Unrendered::Shape)?)?);
            return Ok(());
        }
        let name = name.and_then(string).ok_or(Unrendered::Shape)?;
        let (tool, is_removed) = self.find(&[name]).ok_or(Unrendered::Shape)?;
        *is_removed = !adds;
        if adds {
            tool.defer_loading = None;
        }
        Ok(())
    }
}

/// Reasoning effort as JSON.
fn effort(
    prompt: &PromptFields<'_>,
    thinking: Thinking,
    traits: TemplateTraits,
) -> Result<Option<Vec<u8>>, Unrendered> {
    if let (Thinking::SetsEffort, Some(config)) = (thinking, prompt.setting("thinking")) {
        let [kind] = fields(config, ["type"])?;
        if is_word(kind, "disabled") {
            return Ok(Some(format!("\"{}\"", traits.disabled_effort).into_bytes()));
        }
    }
    let Some(config) = prompt.setting("output_config") else { return Ok(None) };
    let [effort] = fields(config, ["effort"])?;
    Ok(effort.map(<[u8]>::to_vec))
}
