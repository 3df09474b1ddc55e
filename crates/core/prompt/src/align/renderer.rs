//! Prompt of a request as text or token ids, as the engine tokenizes it.
//!
//! Rendering needs the model's template but not its tokenizer. It serves matching in bytes, and token chains
//! for models whose bytes cannot be followed.

use super::chat::{Chat, Media};
use super::conversion::ChatConversion;
use super::tree::Json;
use super::unaligned::{Unaligned, Unrendered};
use super::values::{flag, text_of};
use super::{ChatFormat, ModelFiles};
use crate::body::{PromptFields, TurnsKey};
use crate::json::{Cursor, Kind};
use crate::{Api, Attribution, Body};

/// Renders prompts.
#[derive(Debug)]
pub struct Renderer {
    /// Absent for a model without a template, and where the engine does not use it.
    chat: Option<Chat>,
    chats: ChatFormat,
    conversion: ChatConversion,
}

/// A rendered prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendered {
    /// Text, in the caller's buffer.
    Text {
        /// Tokens that the tokenizer adds.
        around: Around,
        /// Whether the text contains media.
        media: Media,
    },
    /// Token ids sent by the client.
    Ids(Vec<u32>),
}

/// Tokens added around a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// None: the chat template writes them.
    Nothing,
    /// The special tokens that a tokenizer adds to a plain prompt.
    SpecialTokens,
}

impl Renderer {
    /// Reads a model's files. A model without a template can still render completions.
    pub fn new(files: &ModelFiles<'_>) -> Result<Renderer, Unaligned> {
        let config = Json::of("tokenizer_config.json", files.tokenizer_config)?;
        let token_map = Json::of("special_tokens_map.json", files.special_tokens_map)?;
        let chat = match files.chats {
            ChatFormat::Template => Chat::read(files.chat_template, &config, &token_map)?,
            ChatFormat::Harmony => None,
        };
        Ok(Renderer { chat, chats: files.chats, conversion: ChatConversion::default() })
    }

    /// The same for an engine that converts requests of other APIs to chats by these rules.
    pub fn with_conversion(self, conversion: ChatConversion) -> Renderer {
        Renderer { conversion, ..self }
    }

    /// The rules by which the engine converts requests of other APIs.
    pub fn conversion(&self) -> ChatConversion {
        self.conversion
    }

    /// What the engine does with Claude Code's attribution line. All engines whose rules are known drop it, and so do
    /// those that write chats without a template; SGLang, whose rules are not known, keeps it.
    pub fn attribution(&self) -> Attribution {
        match self.has_template() && self.conversion.messages.is_none() {
            true => Attribution::Kept,
            false => Attribution::Dropped,
        }
    }

    /// Whether the model has a chat template that the engine uses.
    pub fn has_template(&self) -> bool {
        self.chat.is_some()
    }

    fn template(&self) -> Result<&Chat, Unrendered> {
        self.chat.as_ref().ok_or(match self.chats {
            ChatFormat::Template => Unrendered::NoTemplate,
            ChatFormat::Harmony => Unrendered::Harmony,
        })
    }

    /// Renders a request's prompt. Text is written to `text`, which is overwritten. `unix_s` is the time for
    /// templates that print the date.
    pub fn render(
        &self,
        body: &Body<'_>,
        api: Api,
        unix_s: u64,
        text: &mut String,
    ) -> Result<Rendered, Unrendered> {
        text.clear();
        let fields = &body.prompt;
        if matches!(
            (api, fields.turns_key),
            (Api::Messages, TurnsKey::Messages) | (Api::Responses, TurnsKey::Input)
        ) {
            return self.converted(body, api, unix_s, text);
        }
        for name in ["prompt_embeds", "truncate_prompt_tokens"] {
            if fields.setting(name).is_some() {
                return Err(Unrendered::Setting(name));
            }
        }
        match (api, fields.turns_key) {
            (Api::Chat, TurnsKey::Messages) => self.chat(fields, unix_s, text),
            (Api::Completions, TurnsKey::Prompt) => completion(fields, text),
            // What the engine makes of media beside the text is not known.
            (Api::Generate, _) if fields.media.iter().any(Option::is_some) => Err(Unrendered::Shape),
            (Api::Generate, TurnsKey::Text | TurnsKey::InputIds) => completion(fields, text),
            (Api::Other, _) => Err(Unrendered::Api),
            _ => Err(Unrendered::Shape),
        }
    }

    /// Renders a request of an API that the engine converts to a chat.
    fn converted(
        &self,
        body: &Body<'_>,
        api: Api,
        unix_s: u64,
        text: &mut String,
    ) -> Result<Rendered, Unrendered> {
        let chat = self.template()?;
        let request = self.conversion.convert(body, api, chat.traits)?;
        let media = chat.render(&request.fields(&body.prompt), unix_s, text)?;
        // vLLM tokenizes the chat of a Responses request as it does a plain prompt: where the template writes a first
        // token, the prompt has two.
        let around = if api == Api::Responses { Around::SpecialTokens } else { Around::Nothing };
        Ok(Rendered::Text { around, media })
    }

    fn chat(
        &self,
        fields: &PromptFields<'_>,
        unix_s: u64,
        text: &mut String,
    ) -> Result<Rendered, Unrendered> {
        let media = self.template()?.render(fields, unix_s, text)?;
        let wants_more = flag(fields, "add_special_tokens")?.unwrap_or(false);
        Ok(Rendered::Text { around: if wants_more { Around::SpecialTokens } else { Around::Nothing }, media })
    }
}

fn completion(fields: &PromptFields<'_>, text: &mut String) -> Result<Rendered, Unrendered> {
    let mut prompt = Cursor::new(only_prompt(fields.turns.ok_or(Unrendered::Shape)?)?);
    match prompt.kind() {
        Kind::String => {
            text.push_str(&text_of(prompt.string().map_err(|_| Unrendered::Shape)?)?);
            let wants_them = flag(fields, "add_special_tokens")?.unwrap_or(true);
            let around = if wants_them { Around::SpecialTokens } else { Around::Nothing };
            Ok(Rendered::Text { around, media: Media::None })
        }
        Kind::Array => ids(&mut prompt).map(Rendered::Ids),
        _ => Err(Unrendered::Shape),
    }
}

/// The only item of a list of prompts, or the prompt itself. Some clients send every prompt in a list.
fn only_prompt(prompt: &[u8]) -> Result<&[u8], Unrendered> {
    let (mut first, mut count) = (None, 0);
    if Cursor::new(prompt).kind() == Kind::Array {
        let walked = Cursor::new(prompt).array(|item| {
            let is_prompt = matches!(item.kind(), Kind::String | Kind::Array);
            let item = item.value()?;
            (first, count) = (first.or(is_prompt.then_some(item)), count + 1);
            Ok(())
        });
        walked.map_err(|_| Unrendered::Shape)?;
    }
    Ok(first.filter(|_| count == 1).unwrap_or(prompt))
}

fn ids(prompt: &mut Cursor<'_>) -> Result<Vec<u32>, Unrendered> {
    let mut ids = Vec::new();
    let mut failed = None;
    let walked = prompt.array(|item| {
        let kind = item.kind();
        let id = str::from_utf8(item.value()?).ok().and_then(|id| id.parse().ok());
        match (kind, id) {
            (Kind::Other, Some(id)) => ids.push(id),
            (Kind::Other | Kind::Object, _) => failed = Some(Unrendered::Shape),
            (Kind::String | Kind::Array, _) => failed = Some(Unrendered::SeveralPrompts),
        }
        Ok(())
    });
    match (walked, failed) {
        (Ok(()), None) if ids.is_empty() => Err(Unrendered::Shape),
        (Ok(()), None) => Ok(ids),
        (_, problem) => Err(problem.unwrap_or(Unrendered::Shape)),
    }
}
