//! Prompts and cached blocks in the same bytes: precise matching without tokenizing.
//!
//! ```text
//! body ─▶ chat template ─▶ text ─▶ Normalizer ─▶ bytes ┐
//!                                                      ├─ compared by the index, span by span
//! token ids of a block ──────────▶ Vocabulary ─▶ bytes ┘
//! ```
//!
//! A tokenizer splits text and does not change it, apart from its normalizer. The bytes of a block's tokens
//! are therefore the bytes of the prompt. A prompt rendered as the engine renders it can be looked up without
//! knowing where tokens end. A model or request that cannot be followed exactly is refused with a reason.

mod added;
mod alphabet;
mod chat;
mod conversation;
mod conversion;
mod media;
mod normalizer;
mod part;
mod pipeline;
mod renderer;
mod template;
mod tokenizer;
mod tree;
mod unaligned;
mod unicode;
mod values;
mod vocabulary;
mod wrapping;

pub use chat::Media;
pub use conversion::{
    ChatConversion, CustomTools, InlineSystem, MessagesRules, ResponsesRules, SaltEffect, Thinking,
};
pub use media::{MediaPrompt, MediumFacts, RenderedMedium, medium_mark, write_media};
pub use renderer::{Around, Rendered, Renderer};
pub use unaligned::{Unaligned, Unrendered};
pub use vocabulary::{Blocks, UnknownToken, Vocabulary};

use std::sync::Arc;

use tokenizer::Tokenizer;
use tree::Json;

use crate::{Api, Body};

/// Contents of the model files that define how prompts are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFiles<'a> {
    /// Content of tokenizer.json.
    pub tokenizer: &'a [u8],
    /// Content of tokenizer_config.json.
    pub tokenizer_config: Option<&'a [u8]>,
    /// Content of special_tokens_map.json, which older models have.
    pub special_tokens_map: Option<&'a [u8]>,
    /// Content of chat_template.jinja; without it the template comes from tokenizer_config.json.
    pub chat_template: Option<&'a str>,
    /// How the engine's software reads tokenizer.json.
    pub reading: Reading,
    /// How the engine writes chats.
    pub chats: ChatFormat,
}

/// How an engine writes chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChatFormat {
    /// With the model's template.
    #[default]
    Template,
    /// With the harmony library, as vLLM does for gpt-oss. Its texts cannot be followed.
    Harmony,
}

/// How an engine's software reads a SentencePiece tokenizer. transformers 5 takes only the vocabulary from
/// tokenizer.json for the classes it knows (such as Llama's), and adds leading spaces by its own rule. Only
/// the engine's tokens reveal which rule applies; other tokenizers read the same in all cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As the file says.
    #[default]
    AsFiled,
    /// Adds a space before the first piece of a text, unless there is one.
    LeadsFirst,
    /// Adds a space before every piece, unless there is one.
    LeadsEvery,
}

impl Reading {
    /// All readings, the most probable first.
    pub const ALL: [Reading; 3] = [Reading::AsFiled, Reading::LeadsFirst, Reading::LeadsEvery];
}

/// Writer of a model's prompts as bytes.
#[derive(Debug)]
pub struct Alignment {
    tokenizer: Tokenizer,
    renderer: Renderer,
}

/// A written prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes that can be compared with reported blocks: all, or those before the first image.
    pub reported_bytes: usize,
}

impl Alignment {
    /// Builds an alignment from a model's files. Fails if prompts cannot be followed exactly.
    pub fn new(files: &ModelFiles<'_>) -> Result<Alignment, Unaligned> {
        let config = Json::of("tokenizer_config.json", files.tokenizer_config)?;
        let tokenizer = Tokenizer::read(files.tokenizer, &config, files.reading)?;
        Ok(Alignment { tokenizer, renderer: Renderer::new(files)? })
    }

    /// The same for an engine that converts requests of other APIs to chats by these rules.
    pub fn with_conversion(self, conversion: ChatConversion) -> Alignment {
        Alignment { renderer: self.renderer.with_conversion(conversion), ..self }
    }

    /// Table from token ids to bytes.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.tokenizer.vocabulary
    }

    /// Renderer from requests to text.
    pub fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Writes a request's prompt as the engine's bytes. `out` is overwritten, and left empty if there is no
    /// prompt. `unix_s` is the time for templates that print the date.
    pub fn write_prompt(
        &self,
        body: &Body<'_>,
        api: Api,
        unix_s: u64,
        out: &mut Vec<u8>,
    ) -> Result<Written, Unrendered> {
        out.clear();
        // The text reuses the buffer's memory, and stays there if nothing has to change.
        let mut text = String::from_utf8(std::mem::take(out)).unwrap_or_default();
        match self.renderer.render(body, api, unix_s, &mut text)? {
            Rendered::Text { around, media } => {
                self.write_text(text, around, out);
                Ok(Written {
                    reported_bytes: if media == Media::None { out.len() } else { first_media(out) },
                })
            }
            Rendered::Ids(ids) => {
                let written = self.vocabulary().write(&ids, out);
                written.map_err(|unknown| Unrendered::UnknownToken(unknown.id))?;
                Ok(Written { reported_bytes: out.len() })
            }
        }
    }

    fn write_text(&self, text: String, around: Around, out: &mut Vec<u8>) {
        let Tokenizer { wrapping, normalizer, .. } = &self.tokenizer;
        if around == Around::Nothing {
            return normalizer.write_owned(text, out);
        }
        out.reserve(text.len() + wrapping.before.len() + wrapping.after.len());
        out.extend_from_slice(&wrapping.before);
        normalizer.write(&text, out);
        out.extend_from_slice(&wrapping.after);
    }
}

/// Position of the first media mark. Media that the template does not show may be anywhere.
fn first_media(prompt: &[u8]) -> usize {
    memchr::memmem::find(prompt, media::MEDIA.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(0)
}
