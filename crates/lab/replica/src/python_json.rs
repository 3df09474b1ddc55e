//! JSON as Python prints it, as `tojson` in a real engine's chat template does.
//!
//! Covers only the chat template of `model.rs`: tools as vLLM's request model writes them (its fields in its
//! order, absent ones as null), and tool calls with their arguments as an object.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
    #[serde(borrow)]
    strict: Option<&'a RawValue>,
}

/// Prints the tools of a request; anything but a list of tools is printed unchanged.
pub(crate) fn tools(raw: &str) -> String {
    let Ok(tools) = serde_json::from_str::<Vec<Tool<'_>>>(raw) else { return printed(raw) };
    let each: Vec<String> = tools.iter().map(|tool| tool.function.printed()).collect();
    format!("[{}]", each.join(", "))
}

impl Function<'_> {
    fn printed(&self) -> String {
        let field =
            |value: Option<&RawValue>| value.map_or_else(|| "null".to_owned(), |raw| printed(raw.get()));
        let strict = self.strict.map(|strict| format!(", \"strict\": {}", printed(strict.get())));
        format!(
            "{{\"type\": \"function\", \"function\": {{\"name\": {}, \"description\": {}, \"parameters\": {}{}}}}}",
            printed(self.name.get()),
            field(self.description),
            field(self.parameters),
            strict.unwrap_or_default()
        )
    }
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Called<'a>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Called<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
}

/// Prints the tool calls of an assistant message: fields in the order of vLLM's request model, arguments as
/// an object.
pub(crate) fn tool_calls(raw: &str) -> String {
    if raw.is_empty() {
        return String::new();
    }
    let Ok(calls) = serde_json::from_str::<Vec<ToolCall<'_>>>(raw) else { return printed(raw) };
    let each: Vec<String> = calls.iter().map(ToolCall::printed).collect();
    format!("[{}]", each.join(", "))
}

impl ToolCall<'_> {
    fn printed(&self) -> String {
        let Called { arguments, name } = &self.function;
        let function =
            [("arguments", arguments.map(arguments_of)), ("name", name.map(|raw| printed(raw.get())))];
        let raw = |raw: Option<&RawValue>| raw.map(|raw| printed(raw.get()));
        object(&[("id", raw(self.id)), ("function", Some(object(&function))), ("type", raw(self.kind))])
    }
}

/// Parses arguments, which clients send as text.
fn arguments_of(raw: &RawValue) -> String {
    let text: String = serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
    printed(if text.trim().is_empty() { "{}" } else { &text })
}

/// An object of the fields that are present.
fn object(fields: &[(&str, Option<String>)]) -> String {
    let fields = fields.iter().filter_map(|(name, value)| Some(format!("\"{name}\": {}", value.as_ref()?)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
}

/// Prints JSON with Python's spacing and escapes, in its own order.
fn printed(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len() + raw.len() / 8);
    print(raw, &mut out);
    out
}

/// Copies token by token.
fn print(raw: &str, out: &mut String) {
    let mut rest = raw.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => string_end(rest),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        rest = after.trim_start();
        match first {
            ',' => out.push_str(", "),
            ':' => out.push_str(": "),
            '"' => {
                let text: String = serde_json::from_str(token).unwrap_or_default();
                out.push_str(&serde_json::Value::String(text).to_string());
            }
            _ => out.push_str(token),
        }
    }
}

/// End of the string that starts here.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spaced_and_escaped_as_in_python() {
        let raw = r#"{"b":[1,2.5,true ,null],"a" : "d\u00e9j\u00e0 \"vu\" \/ <&>","e":{ }}"#;
        assert_eq!(printed(raw), r#"{"b": [1, 2.5, true, null], "a": "déjà \"vu\" / <&>", "e": {}}"#);
    }

    #[test]
    fn tools_are_printed_as_vllm_passes_them_to_a_template() {
        let raw = r#"[{"function":{"parameters":{"type":"object"},"name":"f","extra":1},"type":"function"}]"#;
        let expected = r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}]"#;
        assert_eq!(tools(raw), expected);
    }

    #[test]
    fn calls_are_printed_as_vllm_passes_them_to_a_template() {
        let raw = r#"[{"type":"function","id":"1","function":{"name":"f","arguments":"{\"a\":[1,2]}"}}]"#;
        let expected =
            r#"[{"id": "1", "function": {"arguments": {"a": [1, 2]}, "name": "f"}, "type": "function"}]"#;
        assert_eq!(tool_calls(raw), expected);
        assert_eq!(tool_calls(""), "");
    }

    #[test]
    fn truncated_json_does_not_loop_forever() {
        for raw in ["\"abc", "{\"a\\", "[[[", "\\"] {
            printed(raw);
        }
    }
}
