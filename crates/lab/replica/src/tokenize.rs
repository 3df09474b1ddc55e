//! `POST /tokenize` and `POST /detokenize`: exactly the tokens that a generation request would have.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::api::chat::{self, Message};
use crate::config::Config;
use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::tokens::{self, Token, Tokenizer};

#[derive(Deserialize)]
struct TokenizeRequest<'a> {
    #[serde(borrow)]
    prompt: Option<Cow<'a, str>>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
}

#[derive(Deserialize)]
struct DetokenizeRequest {
    tokens: Vec<Token>,
}

/// Text or messages to tokens.
pub(crate) fn tokenize(config: &Config, body: &[u8]) -> Result<Value, ApiError> {
    let request: TokenizeRequest<'_> = serde_json::from_slice(body)?;
    let tokens = match (&request.messages, &request.prompt) {
        (Some(messages), _) => {
            let prompt = chat::render(messages, request.tools, config.tokenizer)?;
            match request.add_generation_prompt.unwrap_or(true) {
                true => prompt.for_answer(),
                false => prompt.into_tokens(),
            }
        }
        (None, Some(text)) => {
            let specials = usize::from(!request.add_special_tokens.unwrap_or(true));
            Prompt::of_text(text, config.tokenizer).split_off(specials)
        }
        (None, None) => return Err(ApiError::bad_request("prompt or messages is required")),
    };
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": config.tokens_max(),
        "tokens": tokens.iter().map(|token| tokens::seen(*token)).collect::<Vec<_>>(),
        "token_strs": null,
    }))
}

/// Tokens to text.
pub(crate) fn detokenize(config: &Config, body: &[u8]) -> Result<Value, ApiError> {
    let request: DetokenizeRequest = serde_json::from_slice(body)?;
    in_vocabulary(&request.tokens, config.tokenizer)?;
    Ok(json!({"prompt": String::from_utf8_lossy(&tokens::decode(&request.tokens))}))
}

/// Refuses ids that stand for nothing.
pub(crate) fn in_vocabulary(tokens: &[Token], tokenizer: Tokenizer) -> Result<(), ApiError> {
    match tokens.iter().find(|token| **token >= tokenizer.vocabulary()) {
        Some(token) => Err(ApiError::bad_request(format!("Token id {token} is out of vocabulary"))),
        None => Ok(()),
    }
}
