//! Model folder of [`Tokenizer::Pairs`](crate::Tokenizer::Pairs), from which a router or a Hugging Face tool
//! gets the same tokens as this engine.
//!
//! The tokenizer is a byte-level BPE that merges every two adjacent bytes and nothing else: text between
//! special tokens is cut into pairs from its start. The chat template does in Jinja what `api/chat.rs` does
//! in Rust; a test compares them.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::tokens::{self, ROLES, Token};

/// Special tokens, by id.
const SPECIALS: [&str; 9] = [
    "<|bos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|developer|>",
    "<|role|>",
    "<|image|>",
];

/// Ids below this have no bytes.
const SPECIAL_IDS: Token = 256;

/// `chat::render` in Jinja. Tools belong to the first system or developer message, which is created if
/// absent.
const CHAT_TEMPLATE: &str = "\
{%- set ns = namespace(tools='') -%}
{%- if tools -%}{%- set ns.tools = tools | tojson -%}{%- endif -%}
{{- bos_token -}}
{%- if ns.tools and messages[0]['role'] not in ['system', 'developer'] -%}
{{- '<|system|>' + ns.tools + '<|end|>' -}}{%- set ns.tools = '' -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] in ['system', 'user', 'assistant', 'tool', 'developer'] -%}
{{- '<|' + message['role'] + '|>' -}}
{%- else -%}
{{- '<|role|>' + message['role'] -}}
{%- endif -%}
{{- ns.tools -}}{%- set ns.tools = '' -%}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- elif message['content'] -%}
{%- for part in message['content'] -%}
{%- if part['type'] in ['text', 'input_text', 'output_text'] -%}{{- part['text'] -}}{%- else -%}{{- '<|image|>' -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- if message['tool_calls'] -%}{{- message['tool_calls'] | tojson -}}{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
";

/// Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and config.json into this folder, and
/// creates it if needed.
pub fn write_model(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text);
    write("tokenizer.json", tokenizer())?;
    write("tokenizer_config.json", format!("{:#}\n", tokenizer_config()))?;
    write("chat_template.jinja", CHAT_TEMPLATE.to_owned())?;
    write(
        "config.json",
        format!("{:#}\n", json!({"model_type": "warmroute-simulated", "vocab_size": 512 + 65_536})),
    )
}

/// First special token in a text: position, id and length.
pub(crate) fn first_special(text: &str) -> Option<(usize, Token, usize)> {
    let mut from = 0;
    while let Some(found) = text[from..].find("<|") {
        let at = from + found;
        let which = SPECIALS.iter().position(|special| text[at..].starts_with(special));
        if let Some(id) = which {
            return Some((at, id as Token, SPECIALS[id].len()));
        }
        from = at + 2;
    }
    None
}

fn tokenizer_config() -> serde_json::Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[tokens::BOS as usize],
        "eos_token": SPECIALS[tokens::END_OF_TURN as usize],
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// Writes the JSON directly: as a tree of values the 131,584 entries would take ten times the memory.
fn tokenizer() -> String {
    debug_assert_eq!(SPECIALS[2..7], ROLES.map(|role| format!("<|{role}|>")));
    let mut out = String::with_capacity(6 << 20);
    let added: Vec<_> = SPECIALS.iter().enumerate().map(|(id, special)| added_token(id, special)).collect();
    let bos = SPECIALS[0];
    let head = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            {"type": "Split", "pattern": {"Regex": "..?"}, "behavior": "Isolated", "invert": false},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [0], "tokens": [bos]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    })
    .to_string();
    out.push_str(&head[..head.len() - 1]);
    out.push_str(r#","model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{"#);
    write_vocabulary(&mut out);
    out.push_str("},\"merges\":[");
    write_merges(&mut out);
    out.push_str("]}}\n");
    out
}

fn added_token(id: usize, content: &str) -> serde_json::Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

fn write_vocabulary(out: &mut String) {
    let mut entry = |token: &str, id: u32| {
        let comma = if id == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(out, "{comma}{}:{id}", quoted(token));
    };
    for id in 0..SPECIAL_IDS {
        match SPECIALS.get(id as usize) {
            Some(special) => entry(special, id),
            // Fill gaps, because tools expect contiguous ids.
            None => entry(&format!("<|unused-{id}|>"), id),
        }
    }
    let alphabet = alphabet();
    for (byte, character) in alphabet.iter().enumerate() {
        entry(&character.to_string(), SPECIAL_IDS + byte as u32);
    }
    for (first, a) in alphabet.iter().enumerate() {
        for (second, b) in alphabet.iter().enumerate() {
            entry(&format!("{a}{b}"), 2 * SPECIAL_IDS + (first << 8 | second) as u32);
        }
    }
}

fn write_merges(out: &mut String) {
    let alphabet = alphabet();
    for a in &alphabet {
        for b in &alphabet {
            if !out.ends_with('[') {
                out.push(',');
            }
            let _ = write!(out, "[{},{}]", quoted(&a.to_string()), quoted(&b.to_string()));
        }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// GPT-2's alphabet: a printable character per byte. Printable bytes stand for themselves, the others map to
/// 256 and up.
fn alphabet() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| {
        let is_printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_printable { byte as u32 } else { next };
        next += u32::from(!is_printable);
        char::from_u32(code).expect("codes up to 323 are characters")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_file_lists_every_id_once_and_every_pair_can_merge() {
        let file: Value = serde_json::from_str(&tokenizer()).unwrap();
        let vocabulary = file["model"]["vocab"].as_object().unwrap();
        assert_eq!(vocabulary.len(), 512 + 65_536);
        let mut ids: Vec<u64> = vocabulary.values().map(|id| id.as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert!(ids.iter().enumerate().all(|(at, id)| at as u64 == *id));
        assert_eq!(vocabulary["Ġa"], 512 + (0x20 << 8 | 0x61));
        assert_eq!(file["model"]["merges"].as_array().unwrap().len(), 65_536);
        assert_eq!(file["added_tokens"][1], added_token(1, "<|end|>"));
    }

    #[test]
    fn special_tokens_are_found_where_they_are_written_whole() {
        assert_eq!(first_special("a<|b<|user|>"), Some((4, 3, 8)));
        assert_eq!(first_special("<|userless|> <|"), None);
    }
}
