//! Message content of all three chat-like APIs: a string, or a list of parts.
//!
//! The part types of the OpenAI chat, OpenAI Responses and Anthropic APIs do not conflict, so one reader
//! serves all. A part of unknown type is added to the prompt as its JSON text: it only has to change the
//! prompt.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::prompt::Prompt;

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    /// OpenAI's images.
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
    /// Anthropic's images.
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    /// Content of an Anthropic tool result.
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Appends content to the open turn.
pub(crate) fn render(content: &RawValue, prompt: &mut Prompt) -> Result<(), ApiError> {
    match content.get().as_bytes().first() {
        Some(b'"') => {
            let Text(text) = serde_json::from_str(content.get())?;
            prompt.text(&text);
        }
        Some(b'[') => {
            let parts: Vec<&RawValue> = serde_json::from_str(content.get())?;
            parts.into_iter().try_for_each(|part| render_part(part, prompt))?;
        }
        Some(b'n') => {}
        _ => {
            return Err(ApiError::bad_request("content must be a string or a list of parts").about("content"));
        }
    }
    Ok(())
}

fn render_part(raw: &RawValue, prompt: &mut Prompt) -> Result<(), ApiError> {
    if raw.get().starts_with('"') {
        return render(raw, prompt);
    }
    let part: Part<'_> = serde_json::from_str(raw.get())?;
    match (part.kind.as_deref().unwrap_or("text"), &part) {
        ("text" | "input_text" | "output_text", Part { text: Some(text), .. }) => prompt.text(text),
        ("image_url" | "input_image", Part { image_url: Some(image), .. }) => prompt.image(image.get()),
        ("image", Part { source: Some(image), .. }) => prompt.image(image.get()),
        ("tool_result", Part { content: Some(content), .. }) => render(content, prompt)?,
        _ => prompt.text(raw.get()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{self, Token, Tokenizer};

    fn tokens_of(json: &str) -> Vec<Token> {
        let content: &RawValue = serde_json::from_str(json).unwrap();
        let mut prompt = Prompt::new(Tokenizer::Quads);
        render(content, &mut prompt).unwrap();
        prompt.into_tokens()
    }

    #[test]
    fn a_text_part_is_the_same_as_a_string() {
        let plain = tokens_of(r#""a \"quoted\" word""#);
        for kind in ["text", "input_text", "output_text"] {
            assert_eq!(tokens_of(&format!(r#"[{{"type":"{kind}","text":"a \"quoted\" word"}}]"#)), plain);
        }
        assert_eq!(tokens::decode(&plain), b"a \"quoted\" word");
    }

    #[test]
    fn an_image_has_few_tokens_however_large_its_data() {
        let data = "A".repeat(100_000);
        let openai =
            format!(r#"[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#);
        let anthropic = format!(r#"[{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}]"#);
        assert!(tokens_of(&openai).len() < 60);
        assert!(tokens_of(&anthropic).len() < 60);
    }

    #[test]
    fn tool_results_are_read_through_and_unknown_parts_kept() {
        assert_eq!(
            tokens_of(r#"[{"type":"tool_result","tool_use_id":"x","content":"42"}]"#),
            tokens_of(r#""42""#)
        );
        assert_ne!(tokens_of(r#"[{"type":"video","n":1}]"#), tokens_of(r#"[{"type":"video","n":2}]"#));
    }

    #[test]
    fn content_of_another_kind_is_refused() {
        let number: &RawValue = serde_json::from_str("7").unwrap();
        assert!(render(number, &mut Prompt::new(Tokenizer::Quads)).is_err());
        assert_eq!(tokens_of("null"), tokens_of(r#""""#));
    }
}
