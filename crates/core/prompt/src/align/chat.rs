//! Variables of a chat request for its template, as vLLM and transformers set them.
//!
//! ```text
//! body ─▶ Conversation, tools re-serialized, documents, chat_template_kwargs, special tokens ─▶ Template ─▶ text
//! ```
//!
//! A message to continue gets a mark at its end; the rendered text is cut there.

use minijinja::Value;

use super::conversation::{Conversation, FunctionKeys};
use super::conversion::TemplateTraits;
use super::template::Template;
use super::tree::Json;
use super::unaligned::{Unaligned, Unrendered};
use super::values::{flag, value_of};
use super::wrapping::content;
use crate::body::{PromptFields, TurnsKey};
use crate::json::Cursor;

/// Whether a prompt contains images or other media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// It does.
    Some,
    /// It does not.
    None,
}

/// Marks the end of a message to continue. transformers uses the same words; the space shows whether the
/// template trims.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Arguments of transformers' function that `chat_template_kwargs` could reach and that change more than the
/// template's variables.
const RESERVED: [&str; 13] = [
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
    "verbose",
];

/// Templates of a model, with the special tokens of its tokenizer.
#[derive(Debug)]
pub(crate) struct Chat {
    default: Template,
    /// Template for requests with tools, if the model has two.
    tool_use: Option<Template>,
    /// `bos_token` and the like.
    special_tokens: Vec<(Value, Value)>,
    /// What conversions to a chat must know.
    pub traits: TemplateTraits,
}

/// Reasoning efforts of Anthropic's API.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

impl Chat {
    /// Reads the template file, or else tokenizer_config.json; `None` if neither has a template.
    pub fn read(file: Option<&str>, config: &Json, token_map: &Json) -> Result<Option<Chat>, Unaligned> {
        let listed = config.get("chat_template");
        let named = |name: &str| {
            let entry = listed.items().iter().find(|entry| entry.get("name").text() == Some(name));
            entry.and_then(|entry| entry.get("template").text())
        };
        let Some(default) = file.or(listed.text()).or_else(|| named("default")) else { return Ok(None) };
        // A template file has one template; only a list has a second one.
        let tool_use = if file.is_some() { None } else { named("tool_use") };
        let (default, tool_use) = (Template::new(default)?, tool_use.map(Template::new).transpose()?);
        let refuses_late_system = default.refuses_late_system
            || tool_use.as_ref().is_some_and(|template| template.refuses_late_system);
        let traits = TemplateTraits { refuses_late_system, disabled_effort: "none" };
        let chat = Chat { default, tool_use, special_tokens: special_tokens(config, token_map), traits };
        let disabled_effort = chat.disabled_effort();
        Ok(Some(Chat { traits: TemplateTraits { disabled_effort, ..traits }, ..chat }))
    }

    /// The reasoning effort by which vLLM disables thinking: `none`, or `low` if the template refuses `none` or
    /// renders it as it renders another effort.
    fn disabled_effort(&self) -> &'static str {
        let rendered = |effort: &str| {
            let effort = format!("\"{effort}\"");
            let mut fields = PromptFields {
                turns: Some(br#"[{"role":"user","content":"Hi"}]"#),
                ..PromptFields::default()
            };
            fields.set("reasoning_effort", Some(effort.as_bytes()));
            let mut text = String::new();
            self.render(&fields, 0, &mut text).ok().map(|_| text)
        };
        match rendered("none") {
            Some(none) if EFFORTS.iter().all(|effort| rendered(effort).as_ref() != Some(&none)) => "none",
            _ => "low",
        }
    }

    /// Renders a chat into `text`, which is empty.
    pub fn render(
        &self,
        fields: &PromptFields<'_>,
        unix_s: u64,
        text: &mut String,
    ) -> Result<Media, Unrendered> {
        let variables = Variables::read(fields)?;
        let has_tools = variables.tools.as_ref().is_some_and(|tools| !tools.is_none());
        let template = self.tool_use.as_ref().filter(|_| has_tools).unwrap_or(&self.default);
        let messages = fields.turns.ok_or(Unrendered::Shape)?;
        let keys = match fields.turns_key {
            TurnsKey::Input => FunctionKeys::NameFirst,
            _ => FunctionKeys::ArgumentsFirst,
        };
        let mut conversation = Conversation::read(messages, template.format, keys)?;
        if !template.knows_developer {
            conversation.without_developers();
        }
        let continued = match variables.ending {
            Ending::Continue => Some(mark_end(&mut conversation, template)?),
            _ => None,
        };
        let media = if conversation.has_media { Media::Some } else { Media::None };
        template.render(self.all(variables, conversation), unix_s, text)?;
        if let Some(last) = continued {
            cut_at_tag(text, &last)?;
        }
        Ok(media)
    }

    /// All variables of the template. Later ones win.
    fn all(&self, variables: Variables, conversation: Conversation) -> Vec<(Value, Value)> {
        let mut all = self.special_tokens.clone();
        all.extend(variables.own);
        all.push((Value::from("messages"), conversation.into_value()));
        all.push((Value::from("tools"), variables.tools.unwrap_or(Value::from(()))));
        all.push((Value::from("documents"), variables.documents.unwrap_or(Value::from(()))));
        all.push((Value::from("add_generation_prompt"), Value::from(variables.ending == Ending::Generate)));
        all
    }
}

/// Ending of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// With the generation prompt.
    Generate,
    /// Inside the last message.
    Continue,
    /// After the last message.
    Plain,
}

impl Ending {
    fn read(fields: &PromptFields<'_>) -> Result<Ending, Unrendered> {
        let continues = flag(fields, "continue_final_message")?.unwrap_or(false);
        match (continues, flag(fields, "add_generation_prompt")?.unwrap_or(true)) {
            (true, false) => Ok(Ending::Continue),
            // The default is to generate, and then no message can be continued.
            (true, true) => Err(Unrendered::Shape),
            (false, false) => Ok(Ending::Plain),
            (false, true) => Ok(Ending::Generate),
        }
    }
}

/// Variables that the request sets.
struct Variables {
    tools: Option<Value>,
    documents: Option<Value>,
    own: Vec<(Value, Value)>,
    ending: Ending,
}

impl Variables {
    fn read(fields: &PromptFields<'_>) -> Result<Variables, Unrendered> {
        if fields.setting("chat_template").is_some() {
            return Err(Unrendered::OwnTemplate);
        }
        let mut variables = Variables {
            tools: fields.tools.filter(|tools| *tools != b"null").map(tools).transpose()?,
            documents: fields.setting("documents").map(value_of).transpose()?,
            own: Vec::new(),
            ending: Ending::read(fields)?,
        };
        if let Some(kwargs) = fields.setting("chat_template_kwargs") {
            variables.own(kwargs)?;
        }
        variables.effort(fields.setting("reasoning_effort"))?;
        Ok(variables)
    }

    /// Reads `chat_template_kwargs`; null and "auto" count as not set.
    fn own(&mut self, kwargs: &[u8]) -> Result<(), Unrendered> {
        let kwargs = value_of(kwargs)?;
        for key in kwargs.try_iter().map_err(|_| Unrendered::Shape)? {
            let value = kwargs.get_item(&key).map_err(|_| Unrendered::Shape)?;
            let is_unset = value.is_none() || value.as_str() == Some("auto");
            match key.as_str() {
                Some(name) if RESERVED.contains(&name) => {
                    return Err(Unrendered::Setting("chat_template_kwargs beyond the template's own"));
                }
                _ if is_unset => {}
                Some("tools") => self.tools = Some(value),
                Some("documents") => self.documents = self.documents.take().or(Some(value)),
                // The request's own fields always have a value, and win.
                Some("add_generation_prompt" | "continue_final_message") => {}
                _ => self.own.push((key, value)),
            }
        }
        Ok(())
    }

    /// A reasoning effort enables thinking, unless the client sets it.
    fn effort(&mut self, effort: Option<&[u8]>) -> Result<(), Unrendered> {
        let Some(effort) = effort.map(value_of).transpose()? else { return Ok(()) };
        let says_thinking = self.own.iter().any(|(key, _)| key.as_str() == Some("enable_thinking"));
        if !says_thinking {
            self.own.push((Value::from("enable_thinking"), Value::from(effort.as_str() != Some("none"))));
        }
        self.own.push((Value::from("reasoning_effort"), effort));
        Ok(())
    }
}

/// Tools as vLLM serializes them: known fields in a fixed order, absent ones null, unknown ones dropped.
fn tools(json: &[u8]) -> Result<Value, Unrendered> {
    let mut tools = Vec::new();
    let mut failed = false;
    let walked = Cursor::new(json).array(|item| {
        match value_of(item.value()?).ok().and_then(|item| tool(&item)) {
            Some(tool) => tools.push(tool),
            None => failed = true,
        }
        Ok(())
    });
    if failed || walked.is_err() { Err(Unrendered::Shape) } else { Ok(Value::from(tools)) }
}

fn tool(item: &Value) -> Option<Value> {
    let given = |map: &Value, name: &str| {
        map.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none())
    };
    let function = given(item, "function")?;
    let defers = given(item, "defer_loading");
    let mut fields = vec![
        ("name", given(&function, "name")?),
        ("description", given(&function, "description").unwrap_or(Value::from(()))),
        ("parameters", given(&function, "parameters").unwrap_or(Value::from(()))),
    ];
    fields.extend(given(&function, "strict").map(|strict| ("strict", strict)));
    fields
        .extend(given(&function, "defer_loading").or(defers.clone()).map(|defers| ("defer_loading", defers)));
    let kind = given(item, "type").unwrap_or(Value::from("function"));
    let mut tool = vec![("type", kind), ("function", Value::from_pairs(fields))];
    tool.extend(defers.map(|defers| ("defer_loading", defers)));
    Some(Value::from_pairs(tool))
}

fn mark_end(conversation: &mut Conversation, template: &Template) -> Result<Value, Unrendered> {
    if !template.mentions_content {
        return Err(Unrendered::NothingToContinue);
    }
    conversation.mark_last(TAG).ok_or(Unrendered::NothingToContinue)
}

/// Cuts a rendered chat at the mark, as transformers does: the space after it shows whether the template
/// trimmed.
fn cut_at_tag(text: &mut String, last: &Value) -> Result<(), Unrendered> {
    let last = last.as_str().unwrap_or_default().trim();
    let at = text.rfind(TAG.trim()).filter(|_| text.contains(last)).ok_or(Unrendered::NothingToContinue)?;
    let is_trimmed = !text[at..].starts_with(TAG);
    text.truncate(at);
    if is_trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(())
}

/// Variables for every template of this tokenizer. tokenizer_config.json wins over special_tokens_map.json.
fn special_tokens(config: &Json, token_map: &Json) -> Vec<(Value, Value)> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let named = NAMES.iter().filter_map(|name| {
        let token = content(config.get(name)).or(content(token_map.get(name)))?;
        Some((Value::from(*name), Value::from(token)))
    });
    let extra = config.get("extra_special_tokens").fields().iter();
    let extra = extra.filter_map(|(name, token)| Some((Value::from(name), Value::from(content(token)?))));
    let more: Vec<Value> =
        config.get("additional_special_tokens").items().iter().filter_map(content).map(Value::from).collect();
    let more = (!more.is_empty()).then(|| (Value::from("additional_special_tokens"), Value::from(more)));
    named.chain(extra).chain(more).collect()
}
