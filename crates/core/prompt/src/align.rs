//! Prompts and cached blocks in the same bytes: precise matching without tokenizing.
//!
//! ```text
//! body ─▶ chat template ─▶ text ─▶ Normalizer ─▶ bytes ┐
//!                                                      ├─ compared by the index, span by span
//! token ids of a block ──────────▶ Vocabulary ─▶ bytes ┘
//! ```
//!
//! A tokenizer cuts text, it does not change it, apart from what its normalizer does first. So the bytes of a block's tokens
//! are the bytes of the prompt they came from, and whoever renders the prompt as the engine does can look it up without
//! knowing where the cuts are. What cannot be followed exactly is refused with a reason.

mod added;
mod alphabet;
mod chat;
mod conversation;
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

pub use renderer::{Around, Media, Rendered, Renderer};
pub use unaligned::{Unaligned, Unrendered};
pub use vocabulary::{Blocks, UnknownToken, Vocabulary};

use std::sync::Arc;

use tokenizer::Tokenizer;
use tree::Json;

use crate::{Api, Body};

/// The files of a model that say how its prompts are written, as they were read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFiles<'a> {
    /// tokenizer.json
    pub tokenizer: &'a [u8],
    /// tokenizer_config.json
    pub tokenizer_config: Option<&'a [u8]>,
    /// special_tokens_map.json, which older models have beside it.
    pub special_tokens_map: Option<&'a [u8]>,
    /// chat_template.jinja; without it the template is taken from tokenizer_config.json.
    pub chat_template: Option<&'a str>,
    /// How the engine's software reads tokenizer.json.
    pub reading: Reading,
}

/// How an engine's software reads a SentencePiece tokenizer. transformers 5 takes only the vocabulary from tokenizer.json for
/// the classes that it knows (Llama's among them), and sets leading spaces by a rule of its own. Which rule it is, only the
/// engine's own tokens tell; for other tokenizers all readings are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reading {
    /// As the file says.
    #[default]
    AsFiled,
    /// A space before the very first piece of a text, where none stands.
    LeadsFirst,
    /// A space before every piece, where none stands.
    LeadsEvery,
}

impl Reading {
    /// All of them, the most probable first.
    pub const ALL: [Reading; 3] = [Reading::AsFiled, Reading::LeadsFirst, Reading::LeadsEvery];
}

/// How a model's prompts become bytes.
#[derive(Debug)]
pub struct Alignment {
    tokenizer: Tokenizer,
    renderer: Renderer,
}

/// A prompt that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// So many of the bytes can be compared with what engines report: all, or those before the first image.
    pub reported_bytes: usize,
}

impl Alignment {
    /// From a model's files; refuses a model whose prompts could not be followed exactly.
    pub fn new(files: &ModelFiles<'_>) -> Result<Alignment, Unaligned> {
        let config = Json::of("tokenizer_config.json", files.tokenizer_config)?;
        let tokenizer = Tokenizer::read(files.tokenizer, &config, files.reading)?;
        Ok(Alignment { tokenizer, renderer: Renderer::new(files)? })
    }

    /// From token ids to bytes.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.tokenizer.vocabulary
    }

    /// From requests to text.
    pub fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Writes a request's prompt as the engine's bytes; `out` is overwritten, and empty where there is no prompt. `unix_s`
    /// is for templates that print the date.
    pub fn write_prompt(
        &self,
        body: &Body<'_>,
        api: Api,
        unix_s: u64,
        out: &mut Vec<u8>,
    ) -> Result<Written, Unrendered> {
        out.clear();
        // The bytes' own memory takes the text, and keeps it where nothing has to be changed.
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

/// Where the first medium stands. One that the template does not show may stand anywhere.
fn first_media(prompt: &[u8]) -> usize {
    memchr::memmem::find(prompt, part::MEDIA.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(0)
}
