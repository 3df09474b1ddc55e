//! Fuzz target: model files are read or refused with a reason, and prompts can be written with files that
//! were read.

use crate::{Alignment, Api, Body, ChatConversion, ModelFiles, Reading, Unaligned};

/// Separates tokenizer.json, tokenizer_config.json and the chat template in an input.
const BETWEEN: &[u8] = b"\n----\n";

const CHAT: &[u8] =
    br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"h\u00e9 <s>"}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}"#;

const MESSAGES: &[u8] =
    br#"{"model":"m","system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"<s>"},
    {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"h\u00e9"}]}],
    "tools":[{"name":"f","input_schema":{}}]}"#;

const RESPONSES: &[u8] = br#"{"model":"m","instructions":"s","input":[{"role":"user","content":"<s>"},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
    {"type":"function_call_output","call_id":"c","output":"h\u00e9"}],
    "tools":[{"type":"function","name":"f","parameters":{}}]}"#;

/// Runs the target on an input.
pub fn model(input: &[u8]) {
    let mut parts = Vec::with_capacity(3);
    let mut rest = input;
    while let Some(at) = memchr::memmem::find(rest, BETWEEN).filter(|_| parts.len() < 2) {
        parts.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    parts.push(rest);
    for reading in Reading::ALL {
        let files = ModelFiles {
            tokenizer: parts[0],
            tokenizer_config: parts.get(1).copied(),
            chat_template: parts.get(2).and_then(|template| std::str::from_utf8(template).ok()),
            reading,
            ..ModelFiles::default()
        };
        match Alignment::new(&files) {
            Ok(alignment) => {
                let alignment = alignment.with_conversion(ChatConversion::of_vllm("0.32.0"));
                prompts_are_written_or_refused(&alignment);
            }
            Err(why) => assert!(has_reason(&why)),
        }
    }
}

fn has_reason(why: &Unaligned) -> bool {
    !why.to_string().trim().is_empty()
}

/// Checks that a request always gives the same bytes, and that `reported_bytes` is within them.
fn prompts_are_written_or_refused(alignment: &Alignment) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let requests =
        [(Api::Chat, CHAT), (Api::Completions, CHAT), (Api::Messages, MESSAGES), (Api::Responses, RESPONSES)];
    for (api, body) in requests {
        let body = Body::read(body).expect("it is JSON");
        let written = alignment.write_prompt(&body, api, 1_794_702_240, &mut first);
        let again = alignment.write_prompt(&body, api, 1_794_702_240, &mut second);
        match (written, again) {
            (Ok(written), Ok(again)) => {
                assert_eq!((written, &first), (again, &second));
                assert!(written.reported_bytes <= first.len());
            }
            (written, again) => assert_eq!(written.is_err(), again.is_err()),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn models_are_read_or_refused_with_a_reason() {
        warmroute_fuzz::try_out("model", super::model);
    }
}
