//! Messages of a chat as vLLM passes them to a template.
//!
//! vLLM rebuilds each message: contents become text or lists of parts as the template expects, tool calls get
//! parsed arguments and a fixed order of keys, and unknown fields are dropped. Follows vLLM 0.32.0, and is
//! compared with the results of its code.

use minijinja::Value;

use super::part::{Part, TextKind};
use super::template::ContentFormat;
use super::unaligned::Unrendered;
use super::values::value_of;
use crate::attribution::has_attribution;
use crate::json::{BadJson, Cursor, Kind};

/// Messages of a chat.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// Whether a message contains an image or other media.
    pub has_media: bool,
}

#[derive(Debug)]
struct Message {
    role: Value,
    content: Content,
    /// Other fields, in vLLM's order.
    others: Vec<(&'static str, Value)>,
}

/// Order of the keys of a called function, which templates that print whole calls show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionKeys {
    /// vLLM's data type for chats sorts the keys.
    ArgumentsFirst,
    /// vLLM writes the calls of Responses requests itself.
    NameFirst,
}

#[derive(Debug)]
enum Content {
    Text(Value),
    Parts(Vec<Part>),
}

impl Conversation {
    /// Reads `messages`.
    pub fn read(
        messages: &[u8],
        format: ContentFormat,
        keys: FunctionKeys,
    ) -> Result<Conversation, Unrendered> {
        let mut conversation = Conversation { messages: Vec::new(), has_media: false };
        let (mut failed, mut scratch) = (None, Vec::new());
        let walked = Cursor::new(messages).array(|message| {
            match Fields::read(message, &mut scratch)?.message(format, keys) {
                Ok((message, has_media)) => {
                    conversation.messages.push(message);
                    conversation.has_media |= has_media;
                }
                Err(problem) => failed = failed.or(Some(problem)),
            }
            Ok(())
        });
        match failed {
            Some(problem) => Err(problem),
            None if walked.is_err() || conversation.messages.is_empty() => Err(Unrendered::Shape),
            None => Ok(conversation),
        }
    }

    /// Turns developer messages into system messages, joined into one at the front, for templates without
    /// that role.
    pub fn without_developers(&mut self) {
        if !self.messages.iter().any(|message| message.role.as_str() == Some("developer")) {
            return;
        }
        for message in &mut self.messages {
            if message.role.as_str() == Some("developer") {
                message.role = Value::from("system");
                message.others.retain(|(name, _)| *name != "tools");
            }
        }
        let is_system = |message: &Message| message.role.as_str() == Some("system");
        if self.messages.iter().skip(1).any(is_system) {
            let (system, mut rest): (Vec<_>, Vec<_>) = self.messages.drain(..).partition(is_system);
            let texts: Vec<String> = system
                .into_iter()
                .map(|message| message.content.joined())
                .filter(|text| !text.is_empty())
                .collect();
            let content = Content::Text(Value::from(texts.join("\n\n")));
            rest.insert(0, Message { role: Value::from("system"), content, others: Vec::new() });
            self.messages = rest;
        }
    }

    /// Appends a mark to the last message's text. Returns the text before.
    pub fn mark_last(&mut self, mark: &str) -> Option<Value> {
        let text = match &mut self.messages.last_mut()?.content {
            Content::Text(text) => text,
            Content::Parts(parts) => parts.iter_mut().rev().find_map(|part| match part {
                Part::Text { text, .. } => Some(text),
                _ => None,
            })?,
        };
        let before = text.clone();
        *text = Value::from(format!("{}{mark}", before.as_str()?));
        Some(before)
    }

    /// List for the template.
    pub fn into_value(self) -> Value {
        self.messages.into_iter().map(Message::into_value).collect::<Vec<Value>>().into()
    }
}

impl Message {
    fn into_value(self) -> Value {
        let content = match self.content {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                let mut values = Vec::with_capacity(parts.len());
                parts.into_iter().for_each(|part| part.push_values(&mut values));
                Value::from(values)
            }
        };
        let first = [("role", self.role), ("content", content)];
        Value::from_pairs(first.into_iter().chain(self.others))
    }
}

impl Content {
    /// Joins all texts.
    fn joined(self) -> String {
        match self {
            Content::Text(text) => text.as_str().unwrap_or_default().to_owned(),
            Content::Parts(parts) => lines(&parts),
        }
    }
}

/// Texts of all text parts, empty ones too, joined by line breaks.
fn lines(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => text.as_str(),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Texts joined by line breaks, after the media marks: that is where vLLM puts its placeholders.
fn joined(parts: &[Part]) -> Value {
    let texts = || {
        parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } | Part::ToolReference(text) => {
                text.as_str().filter(|text| !text.is_empty())
            }
            Part::Media { .. } => None,
        })
    };
    let marks = parts.iter().filter_map(|part| match part {
        Part::Media { mark, .. } => Some(&**mark),
        _ => None,
    });
    Value::from(marks.chain(texts()).collect::<Vec<_>>().join("\n"))
}

/// Fields of a message in the body.
#[derive(Default)]
struct Fields<'a> {
    role: Option<Value>,
    content: Given<'a>,
    tool_calls: Option<&'a [u8]>,
    reasoning: Option<&'a [u8]>,
    reasoning_content: Option<&'a [u8]>,
    tool_call_id: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    task: Option<&'a [u8]>,
    tools: Option<&'a [u8]>,
}

/// Raw content. Text, which may be long, is unescaped in one pass.
#[derive(Default)]
enum Given<'a> {
    #[default]
    Nothing,
    Text(Value),
    /// A string with a lone surrogate.
    NotUnicode,
    Other(&'a [u8]),
}

impl<'a> Given<'a> {
    fn read(value: &mut Cursor<'a>, scratch: &mut Vec<u8>) -> Result<Given<'a>, BadJson> {
        match value.kind() {
            Kind::String => {
                scratch.clear();
                value.string_into(|piece| scratch.extend_from_slice(piece))?;
                let text = simdutf8::basic::from_utf8(scratch);
                Ok(text.map_or(Given::NotUnicode, |text| Given::Text(Value::from(text))))
            }
            _ => match value.value()? {
                b"null" => Ok(Given::Nothing),
                other => Ok(Given::Other(other)),
            },
        }
    }
}

impl<'a> Fields<'a> {
    /// Reads the message at the cursor.
    fn read(message: &mut Cursor<'a>, scratch: &mut Vec<u8>) -> Result<Fields<'a>, BadJson> {
        let mut fields = Fields::default();
        message.object(|key, value| {
            let key = key.unescaped();
            if &*key == b"content" {
                fields.content = Given::read(value, scratch)?;
                return Ok(());
            }
            let value = Some(value.value()?);
            match &*key {
                b"role" => fields.role = value.and_then(|role| value_of(role).ok()),
                b"tool_calls" => fields.tool_calls = value,
                b"reasoning" => fields.reasoning = value,
                b"reasoning_content" => fields.reasoning_content = value,
                b"tool_call_id" => fields.tool_call_id = value,
                b"name" => fields.name = value,
                b"task" => fields.task = value,
                b"tools" => fields.tools = value,
                _ => {}
            }
            Ok(())
        })?;
        Ok(fields)
    }

    /// Builds the message. Also returns whether it contains media.
    fn message(mut self, format: ContentFormat, keys: FunctionKeys) -> Result<(Message, bool), Unrendered> {
        let role = self.role.clone().filter(|role| role.as_str().is_some()).ok_or(Unrendered::Shape)?;
        let mut parts = parts_of(std::mem::take(&mut self.content))?;
        if role.as_str() == Some("system") {
            strip_billing(&mut parts);
        }
        let has_media = parts.iter().any(|part| matches!(part, Part::Media { .. }));
        let mut content = content_of(parts, format);
        let mut others = Vec::new();
        match role.as_str() {
            Some("assistant") => self.assistant(keys, &mut others)?,
            Some("tool") => {
                push(&mut others, "tool_call_id", self.tool_call_id)?;
                content = tool_content(content);
            }
            _ => {}
        }
        push(&mut others, "name", self.name.filter(is_string))?;
        push(&mut others, "task", self.task.filter(is_string))?;
        if role.as_str() == Some("developer") {
            others.push(("tools", self.tools.map_or(Ok(Value::from(())), value_of)?));
        }
        Ok((Message { role, content, others }, has_media))
    }

    fn assistant(
        &self,
        keys: FunctionKeys,
        others: &mut Vec<(&'static str, Value)>,
    ) -> Result<(), Unrendered> {
        if let Some(calls) = self.tool_calls.filter(is_given) {
            let calls = tool_calls(calls, keys)?;
            if !calls.is_empty() {
                others.push(("tool_calls", Value::from(calls)));
            }
        }
        if let Some(reasoning) = self.reasoning.filter(is_given).or(self.reasoning_content.filter(is_given)) {
            let reasoning = value_of(reasoning)?;
            others.push(("reasoning", reasoning.clone()));
            others.push(("reasoning_content", reasoning.clone()));
            // transformers adds this name, for templates that read it.
            others.push(("thinking", reasoning));
        }
        Ok(())
    }
}

fn is_given(value: &&[u8]) -> bool {
    *value != b"null"
}

fn is_string(value: &&[u8]) -> bool {
    value.first() == Some(&b'"')
}

fn push(
    others: &mut Vec<(&'static str, Value)>,
    name: &'static str,
    value: Option<&[u8]>,
) -> Result<(), Unrendered> {
    if let Some(value) = value {
        others.push((name, value_of(value)?));
    }
    Ok(())
}

/// Content in the template's format.
fn content_of(mut parts: Vec<Part>, format: ContentFormat) -> Content {
    match (format, &mut parts[..]) {
        (ContentFormat::Parts, _) => Content::Parts(parts),
        // A single text, which may be long, needs no joining.
        (ContentFormat::Text, [Part::Text { text, .. }]) => Content::Text(std::mem::take(text)),
        (ContentFormat::Text, parts) => Content::Text(joined(parts)),
    }
}

fn parts_of(content: Given<'_>) -> Result<Vec<Part>, Unrendered> {
    match content {
        Given::Nothing => Ok(Vec::new()),
        Given::Text(text) => Ok(vec![Part::text(text)]),
        Given::NotUnicode => Err(Unrendered::Shape),
        Given::Other(list) => {
            let mut parts = Vec::new();
            let walked = Cursor::new(list).array(|part| {
                parts.push(Part::read(part.value()?));
                Ok(())
            });
            walked.map_err(|_| Unrendered::Shape)?;
            parts.into_iter().filter_map(Result::transpose).collect()
        }
    }
}

/// Removes Claude Code's attribution line, as vLLM does.
fn strip_billing(parts: &mut Vec<Part>) {
    parts.retain_mut(|part| {
        let Part::Text { text, kind: TextKind::Plain, .. } = part else { return true };
        let Some(line) = text.as_str().filter(|text| has_attribution(text.as_bytes())) else {
            return true;
        };
        let rest = line.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
        let is_kept = !rest.is_empty();
        *text = Value::from(rest);
        is_kept
    });
}

/// Content of a tool result: text, unless it has parts that are not text.
fn tool_content(content: Content) -> Content {
    match content {
        Content::Parts(parts) if parts.iter().all(|part| matches!(part, Part::Text { .. })) => {
            Content::Text(Value::from(lines(&parts)))
        }
        other => other,
    }
}

/// Tool calls with the keys that vLLM knows in its order, then others, and arguments as a map.
fn tool_calls(calls: &[u8], keys: FunctionKeys) -> Result<Vec<Value>, Unrendered> {
    let calls = value_of(calls)?;
    let calls = calls.try_iter().map_err(|_| Unrendered::Shape)?;
    calls
        .map(|call| {
            let kind = call.get_attr("type").unwrap_or_default();
            if !kind.is_undefined() && kind.as_str() != Some("function") {
                return Err(Unrendered::Shape);
            }
            let function = call.get_attr("function").map_err(|_| Unrendered::Shape)?;
            let arguments = arguments_of(&function.get_attr("arguments").unwrap_or_default());
            let order = match keys {
                FunctionKeys::ArgumentsFirst => ["arguments", "name"],
                FunctionKeys::NameFirst => ["name", "arguments"],
            };
            let function = reordered(&function, &order, &[("arguments", arguments)])?;
            reordered(&call, &["id", "function", "type"], &[("function", function)])
        })
        .collect()
}

/// Parses arguments, which are sent as a JSON string. Text that is no JSON object becomes an empty map: the
/// call is in the past, and an error would fail every later turn.
fn arguments_of(arguments: &Value) -> Value {
    let parsed = match arguments.as_str() {
        Some(text) => parse(text),
        None => Some(arguments.clone()),
    };
    let is_map = |value: &Value| value.kind() == minijinja::value::ValueKind::Map;
    parsed.filter(is_map).unwrap_or_else(|| Value::from_pairs::<_, Value, Value>([]))
}

fn parse(text: &str) -> Option<Value> {
    let mut cursor = Cursor::new(text.as_bytes());
    let value = cursor.value().ok()?;
    cursor.end().ok()?;
    value_of(value).ok()
}

/// A map with some keys first, in this order, and some values replaced.
fn reordered(map: &Value, first: &[&str], replaced: &[(&str, Value)]) -> Result<Value, Unrendered> {
    let keys: Vec<Value> = map.try_iter().map_err(|_| Unrendered::Shape)?.collect();
    let is_first = |key: &Value| key.as_str().is_some_and(|key| first.contains(&key));
    let known = first.iter().map(|key| Value::from(*key)).filter(|key| {
        let is_replaced = replaced.iter().any(|(name, _)| key.as_str() == Some(name));
        is_replaced || keys.contains(key)
    });
    let others = keys.iter().filter(|key| !is_first(key)).cloned();
    let value = |key: &Value| {
        let replaced = replaced.iter().find(|(name, _)| key.as_str() == Some(name));
        replaced.map_or_else(|| map.get_item(key).unwrap_or_default(), |(_, value)| value.clone())
    };
    let pairs: Vec<(Value, Value)> = known.chain(others).map(|key| (key.clone(), value(&key))).collect();
    Ok(Value::from_pairs(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: &str, format: ContentFormat) -> String {
        Conversation::read(messages.as_bytes(), format, FunctionKeys::ArgumentsFirst)
            .unwrap()
            .into_value()
            .to_string()
    }

    /// The messages and both results come from vLLM 0.32.0's own functions.
    #[test]
    fn messages_are_rebuilt_as_vllm_rebuilds_them() {
        let messages = r#"[{"role":"system","content":"S"},
            {"content":[{"text":"hi","type":"text","cache_control":{"type":"ephemeral"}},"plain"],"role":"user","name":"bob","x":1},
            {"role":"assistant","content":null,"reasoning_content":"rc","tool_calls":[{"type":"function",
             "function":{"name":"f","arguments":"{\"b\": 1, \"a\": [1.0]}","x":1},"id":"c1","index":0}]},
            {"role":"tool","tool_call_id":"c1","name":"f","content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}]},
            {"role":"developer","content":"D","tools":[]}]"#;
        let calls = "'tool_calls': [{'id': 'c1', 'function': {'arguments': {'b': 1, 'a': [1.0]}, 'name': 'f', 'x': 1}, 'type': 'function', 'index': 0}], 'reasoning': 'rc', 'reasoning_content': 'rc', 'thinking': 'rc'";
        let tool = "{'role': 'tool', 'content': 'r1\\nr2', 'tool_call_id': 'c1', 'name': 'f'}";
        assert_eq!(
            read(messages, ContentFormat::Text),
            format!(
                "[{{'role': 'system', 'content': 'S'}}, {{'role': 'user', 'content': 'hi\\nplain', 'name': 'bob'}}, {{'role': 'assistant', 'content': '', {calls}}}, {tool}, {{'role': 'developer', 'content': 'D', 'tools': []}}]"
            )
        );
        assert_eq!(
            read(messages, ContentFormat::Parts),
            format!(
                "[{{'role': 'system', 'content': [{{'type': 'text', 'text': 'S'}}]}}, {{'role': 'user', 'content': [{{'type': 'text', 'text': 'hi', 'cache_control': {{'type': 'ephemeral'}}}}, {{'type': 'text', 'text': 'plain'}}], 'name': 'bob'}}, {{'role': 'assistant', 'content': [], {calls}}}, {tool}, {{'role': 'developer', 'content': [{{'type': 'text', 'text': 'D'}}], 'tools': []}}]"
            )
        );
    }

    #[test]
    fn developers_join_the_system_prompt_where_the_template_does_not_know_them() {
        let messages = r#"[{"role":"system","content":"A"},{"role":"user","content":"U"},{"role":"developer","content":[{"type":"text","text":"B"}]}]"#;
        let read = Conversation::read(messages.as_bytes(), ContentFormat::Text, FunctionKeys::ArgumentsFirst);
        let mut conversation = read.unwrap();
        conversation.without_developers();
        let truth = "[{'role': 'system', 'content': 'A\\n\\nB'}, {'role': 'user', 'content': 'U'}]";
        assert_eq!(conversation.into_value().to_string(), truth);
    }

    #[test]
    fn odd_arguments_become_an_empty_map() {
        for arguments in [r#""not json""#, r#""[1]""#, r#""""#, "null", r#""42""#] {
            let messages = format!(
                r#"[{{"role":"assistant","tool_calls":[{{"id":"1","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
            );
            assert!(read(&messages, ContentFormat::Text).contains("'arguments': {}"), "{arguments}");
        }
    }

    #[test]
    fn messages_that_the_engine_refuses_are_refused() {
        for messages in [
            "[]",
            "{}",
            "\"a\"",
            "[1]",
            r#"[{"content":"no role"}]"#,
            r#"[{"role":"user","content":5}]"#,
            r#"[{"role":"user","content":[{"type":"hologram"}]}]"#,
            r#"[{"role":"user","content":"\ud800"}]"#,
            r#"[{"role":"assistant","tool_calls":[{"type":"custom"}]}]"#,
        ] {
            let read = Conversation::read(messages.as_bytes(), ContentFormat::Text, FunctionKeys::NameFirst);
            assert!(read.is_err(), "{messages}");
        }
    }

    #[test]
    fn the_billing_line_is_dropped_from_system_prompts_only() {
        let messages = r#"[{"role":"system","content":"x-anthropic-billing-header: 1\nBe brief."},{"role":"user","content":"x-anthropic-billing-header: 1"}]"#;
        let text = read(messages, ContentFormat::Text);
        assert_eq!(
            text,
            "[{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'x-anthropic-billing-header: 1'}]"
        );
    }
}
