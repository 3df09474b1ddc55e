//! `POST /v1/completions`: plain text, or token ids, one prompt or several.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Ask, Delivery, EndOfTurn, FINGERPRINT, OpenAiUsage, Reply, Shape, Stop, StreamOptions, finish_words,
    write_data, write_done, write_json,
};
use crate::answer::Finish;
use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::tokenize::in_vocabulary;
use crate::tokens::{Token, Tokenizer};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    prompt: &'a RawValue,
    max_tokens: Option<u32>,
    n: Option<u32>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    ignore_eos: Option<bool>,
    seed: Option<i64>,
    cache_salt: Option<String>,
}

/// Reads a request.
pub(crate) fn read(body: &[u8], tokenizer: Tokenizer) -> Result<Ask, ApiError> {
    let request: Request<'_> = serde_json::from_slice(body)?;
    Ok(Ask {
        model: request.model.map(Cow::into_owned),
        prompts: prompts(request.prompt, tokenizer)?,
        n: request.n.unwrap_or(1),
        begun_tokens: 0,
        limit: request.max_tokens,
        stops: Stop::strings(request.stop),
        end_of_turn: EndOfTurn::of(request.ignore_eos),
        seed: request.seed.unwrap_or(0) as u64,
        salt: request.cache_salt.unwrap_or_default(),
        delivery: Delivery::of(request.stream),
        shape: Box::new(CompletionShape { options: request.stream_options.unwrap_or_default() }),
    })
}

/// Reads a string, token ids, or a list of either.
fn prompts(raw: &RawValue, tokenizer: Tokenizer) -> Result<Vec<Vec<Token>>, ApiError> {
    match raw.get().as_bytes() {
        [b'[', rest @ ..] => match rest.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'"' | b'[') => {
                let each: Vec<&RawValue> = serde_json::from_str(raw.get())?;
                each.into_iter().map(|raw| one_prompt(raw, tokenizer)).collect()
            }
            _ => Ok(vec![one_prompt(raw, tokenizer)?]),
        },
        _ => Ok(vec![one_prompt(raw, tokenizer)?]),
    }
}

fn one_prompt(raw: &RawValue, tokenizer: Tokenizer) -> Result<Vec<Token>, ApiError> {
    if raw.get().starts_with('"') {
        let text: String = serde_json::from_str(raw.get())?;
        return Ok(Prompt::of_text(&text, tokenizer));
    }
    let tokens: Vec<Token> = serde_json::from_str(raw.get())?;
    in_vocabulary(&tokens, tokenizer)?;
    match tokens.is_empty() {
        true => Err(ApiError::bad_request("prompt must not be empty").about("prompt")),
        false => Ok(tokens),
    }
}

struct CompletionShape {
    options: StreamOptions,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<OpenAiUsage>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a str>,
}

impl Shape for CompletionShape {
    fn whole(&self, reply: &Reply<'_>) -> Vec<u8> {
        let answers = reply.answers.iter().enumerate();
        let choices: Vec<_> =
            answers.map(|(index, answer)| Choice::new(index, &answer.text, Some(&answer.finish))).collect();
        let mut out = Vec::with_capacity(512);
        let usage = OpenAiUsage::detailed(reply.usage);
        write_json(&completion(reply, &id_of(reply), &choices, Some(usage)), &mut out);
        out
    }

    fn token(
        &mut self,
        reply: &Reply<'_>,
        choice: usize,
        text: &str,
        finish: Option<&Finish>,
        out: &mut Vec<u8>,
    ) {
        let usage = self.options.continuous_usage_stats.then(|| OpenAiUsage::plain(reply.usage));
        write_data(&completion(reply, &id_of(reply), &[Choice::new(choice, text, finish)], usage), out);
    }

    fn close(&mut self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        if self.options.include_usage {
            let usage = OpenAiUsage::detailed(reply.usage);
            write_data(&completion(reply, &id_of(reply), &[], Some(usage)), out);
        }
        write_done(out);
    }
}

impl<'a> Choice<'a> {
    fn new(index: usize, text: &'a str, finish: Option<&'a Finish>) -> Choice<'a> {
        let words = finish.map(finish_words);
        Choice {
            index,
            text,
            logprobs: None,
            finish_reason: words.map(|(finish_reason, _)| finish_reason),
            stop_reason: words.and_then(|(_, stop_reason)| stop_reason),
        }
    }
}

fn completion<'a>(
    reply: &'a Reply<'_>,
    id: &'a str,
    choices: &'a [Choice<'a>],
    usage: Option<OpenAiUsage>,
) -> Completion<'a> {
    Completion {
        id,
        object: "text_completion",
        created: reply.head.created_s,
        model: &reply.head.model,
        choices,
        system_fingerprint: FINGERPRINT,
        usage,
    }
}

fn id_of(reply: &Reply<'_>) -> String {
    format!("cmpl-{}", reply.head.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts_of(json: &str) -> Result<Vec<Vec<Token>>, ApiError> {
        prompts(serde_json::from_str(json).unwrap(), Tokenizer::Quads)
    }

    #[test]
    fn a_prompt_is_text_or_ids_alone_or_in_a_list() {
        let text = Prompt::of_text("hello", Tokenizer::Quads);
        assert_eq!(prompts_of(r#""hello""#).unwrap(), vec![text.clone()]);
        assert_eq!(prompts_of(r#"["hello", "hello"]"#).unwrap(), [text.clone(), text]);
        assert_eq!(prompts_of("[5, 6]").unwrap(), [[5, 6]]);
        assert_eq!(prompts_of("[ [5], [6] ]").unwrap(), [[5], [6]]);
    }

    #[test]
    fn invalid_prompts_are_refused() {
        for json in ["[]", "7", "{}", "[[]]", "[4294967295]", "[-1]", "[\"a\", 5.5]"] {
            assert!(prompts_of(json).is_err(), "{json}");
        }
    }
}
