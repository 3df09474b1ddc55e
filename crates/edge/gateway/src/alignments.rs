//! Which models' prompts can be written as their engines write them.
//!
//! A model gets an alignment when its files were found and a worker's engine was seen to agree with them. Until then, and
//! for requests that cannot be followed, prompts are canonical and caches presumed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use warmroute_prompt::{Alignment, Api, Body, Media, Rendered, Renderer};
use warmroute_router::Unit;
use warmroute_tokens::{EncoderPool, write_chain};

/// How a model's prompts are compared with what its engines report.
#[derive(Clone)]
pub enum ModelMatching {
    /// As bytes.
    Bytes(Arc<Alignment>),
    /// As tokens.
    Tokens {
        /// Renders a request.
        renderer: Arc<Renderer>,
        /// Tokenizes what was rendered, on threads of its own.
        pool: Arc<EncoderPool>,
    },
}

impl fmt::Display for ModelMatching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelMatching::Bytes(_) => "bytes",
            ModelMatching::Tokens { .. } => "tokens",
        })
    }
}

/// A prompt as its engine writes it.
pub(crate) struct Written {
    /// What can be compared with reports.
    pub reported: Vec<u8>,
    /// The whole text, from which chunks are cut; `None` where it is the same.
    pub text: Option<Vec<u8>>,
    pub unit: Unit,
    /// Whether there is something in it that is no text.
    pub has_media: bool,
}

/// Why a prompt was not written.
pub(crate) struct Unwritten(pub &'static str);

/// Alignments by the model's name.
#[derive(Default)]
pub(crate) struct Alignments {
    by_model: RwLock<BTreeMap<String, ModelMatching>>,
}

impl Alignments {
    /// `None`: this model is not aligned any more.
    pub(crate) fn set(&self, model: &str, matching: Option<ModelMatching>) {
        let mut by_model = self.by_model.write();
        match matching {
            Some(matching) => _ = by_model.insert(model.to_owned(), matching),
            None => _ = by_model.remove(model),
        }
    }

    /// How a model's prompts are written; `None` for one that is not aligned.
    pub(crate) fn of(&self, model: &str) -> Option<ModelMatching> {
        self.by_model.read().get(model).cloned()
    }
}

impl ModelMatching {
    /// Writes a request's prompt as its engine would.
    pub(crate) async fn write(&self, body: &Body<'_>, api: Api) -> Result<Written, Unwritten> {
        match self {
            ModelMatching::Bytes(alignment) => {
                let mut text = Vec::new();
                let written = alignment.write_prompt(body, api, unix_s(), &mut text);
                let reported_bytes = written.map_err(|why| Unwritten(why.label()))?.reported_bytes;
                let unit = Unit::Byte;
                if reported_bytes == text.len() {
                    return Ok(Written { reported: text, text: None, unit, has_media: false });
                }
                let reported = text[..reported_bytes].to_vec();
                Ok(Written { reported, text: Some(text), unit, has_media: true })
            }
            ModelMatching::Tokens { renderer, pool } => {
                let mut text = String::new();
                let rendered = renderer.render(body, api, unix_s(), &mut text);
                let (ids, media) = match rendered.map_err(|why| Unwritten(why.label()))? {
                    Rendered::Ids(ids) => (ids, Media::None),
                    Rendered::Text { around, media } => {
                        let encoding = pool.encode(text.clone(), around).map_err(|_| Unwritten("busy"))?;
                        (encoding.await.map_err(|_| Unwritten("tokenizer_failed"))?, media)
                    }
                };
                // Where an image's tokens go, only the engine knows.
                let has_media = media != Media::None;
                let mut reported = Vec::new();
                write_chain(if has_media { &[] } else { &ids }, &mut reported);
                Ok(Written { reported, text: Some(text.into_bytes()), unit: Unit::Token, has_media })
            }
        }
    }
}

/// For templates that print the date.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
