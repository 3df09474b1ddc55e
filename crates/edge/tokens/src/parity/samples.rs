//! The prompts that are compared with an engine.

use serde::Deserialize;
use serde_json::{Value, json};
use warmroute_prompt::Api;

use crate::ModelText;

/// Most special tokens whose text is put into a prompt; the first few matter.
const SPECIALS_MAX: usize = 8;

/// One prompt to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What the sample tests.
    pub name: &'static str,
    /// Chat or completions.
    pub api: Api,
    /// The request, without a model's name.
    pub body: Value,
}

impl Sample {
    /// The request for the engine's `/tokenize`.
    pub fn question(&self, served_name: &str) -> String {
        let mut body = self.body.clone();
        body["model"] = json!(served_name);
        body.to_string()
    }
}

/// Requests that engines tokenize differently if they differ in white space, special tokens, templates or tools.
pub fn samples(text: &ModelText) -> Vec<Sample> {
    let specials = specials(text);
    let prompts = [
        ("plain text", "The quick brown fox jumps over the lazy dog.".to_owned()),
        ("leading and trailing spaces", "  two before, three after   ".to_owned()),
        ("white space", "a\n\nb\t\tc   d\r\ne \n f\u{a0}g".to_owned()),
        ("combining letters", "cafe\u{301} n\u{303}o \u{1112}\u{1161}\u{11ab} ﬁ Å ½".to_owned()),
        ("many scripts", "naïve 漢字 हिन्दी العربية 😀 👩‍👩‍👧 ▁ \u{200b}".to_owned()),
        ("the text of special tokens", format!("before{}after", specials.join(" x "))),
        ("code", "fn main() { println!(\"<a href='x'>&amp;</a>\"); } // 1234567890".to_owned()),
    ];
    let completions = prompts.into_iter().map(|(name, prompt)| completion(name, &prompt));
    completions.chain(chats(&specials)).collect()
}

fn completion(name: &'static str, prompt: &str) -> Sample {
    Sample { name, api: Api::Completions, body: json!({ "prompt": prompt }) }
}

fn chats(specials: &[String]) -> Vec<Sample> {
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": " Be brief.\n"});
    let chat = |name, body| Sample { name, api: Api::Chat, body };
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "abcdefghi",
        "function": {"name": "weather", "arguments": "{\"city\": \"Zürich <&>\", \"days\": 2.0}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"degrees\": 21}"});
    let tools = json!([{"type": "function", "function": {"name": "weather", "description": "The \"weather\" <&>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number", "default": 1.5}},
        "required": ["city"]}}}]);
    vec![
        chat(
            "a chat",
            json!({"messages": [user("Hi"), {"role": "assistant", "content": "Hello! "}, user(" Why? ")]}),
        ),
        chat("a chat with a system prompt", json!({"messages": [system, user("What is <a> & 'b'?\n")]})),
        chat(
            "a chat with lists of parts",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}]}),
        ),
        chat(
            "a chat with special tokens typed by the user",
            json!({"messages": [user(&specials.join(" and "))]}),
        ),
        chat("a chat with tools", json!({"messages": [user("Weather?")], "tools": tools})),
        chat("a chat with tool calls", json!({"messages": [user("Weather?"), call, result], "tools": tools})),
        chat(
            "a chat without a generation prompt",
            json!({"messages": [user("Hi"), {"role": "assistant", "content": "Yo"}], "add_generation_prompt": false}),
        ),
    ]
}

/// The text of the model's special tokens.
fn specials(text: &ModelText) -> Vec<String> {
    let file: AddedTokens = serde_json::from_slice(&text.tokenizer).unwrap_or_default();
    file.added_tokens.into_iter().filter_map(|token| token.content).take(SPECIALS_MAX).collect()
}

/// The part of tokenizer.json that lists special tokens. A tree of the whole file takes fifteen times its size, and the
/// allocator keeps that memory.
#[derive(Default, Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials_of(tokenizer: &str) -> Vec<String> {
        specials(&ModelText { tokenizer: tokenizer.as_bytes().to_vec(), ..ModelText::default() })
    }

    #[test]
    fn special_tokens_are_read_from_any_tokenizer_file() {
        let file = r#"{"version":"1.0","added_tokens":[{"id":0,"content":"<s>","special":true},{"id":1}],"model":{"vocab":{"a":0}}}"#;
        assert_eq!(specials_of(file), ["<s>"]);
        assert!(specials_of(r#"{"model":{}}"#).is_empty());
        assert!(specials_of("no JSON").is_empty());
    }
}
