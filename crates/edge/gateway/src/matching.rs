//! Renders a request's prompt in its engine's format: as bytes, or as tokens where bytes do not suffice.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use warmroute_prompt::{Alignment, Api, Attribution, Body, Media, Rendered, Renderer, write_media};
use warmroute_router::{Family, KnownMedium, Matching, Unit};
use warmroute_tokens::{EncoderPool, write_chain};

/// How a model's prompts are compared with its engines' KV events.
#[derive(Clone)]
pub enum ModelMatching {
    /// As bytes.
    Bytes(Arc<Alignment>),
    /// As tokens.
    Tokens {
        /// Renders the chat template.
        renderer: Arc<Renderer>,
        /// Tokenizes the rendered text on its own threads.
        pool: Arc<EncoderPool>,
    },
}

impl fmt::Display for ModelMatching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelMatching::Bytes(_) => Unit::Byte.as_str(),
            ModelMatching::Tokens { .. } => Unit::Token.as_str(),
        })
    }
}

/// A prompt in its engine's format.
pub(crate) struct RenderedPrompt {
    /// The part that can be compared with KV events.
    pub reported: Vec<u8>,
    /// The whole text, from which chunks are cut; `None` if equal to `reported`.
    pub text: Option<Vec<u8>>,
    pub unit: Unit,
    /// Whether the prompt contains images or other media.
    pub has_media: bool,
}

impl RenderedPrompt {
    /// The part that can be compared with KV events, with all media before its end written out as `known` tells.
    pub(crate) fn with_media(
        self,
        body: &Body<'_>,
        known: impl Fn(u64) -> Option<KnownMedium>,
    ) -> WrittenMedia {
        // A medium that the template does not show may be anywhere; then nothing is compared.
        let is_shown = self.has_media && self.unit == Unit::Byte && !self.reported.is_empty();
        match self.text {
            Some(text) if is_shown && !body.sets_media_options() => WrittenMedia::of(&text, known),
            _ => WrittenMedia { explained: self.reported.len(), bytes: self.reported, rest: Vec::new() },
        }
    }
}

/// A prompt with its known media written out.
pub(crate) struct WrittenMedia {
    /// The prompt up to its end or its first unknown medium.
    pub bytes: Vec<u8>,
    /// Its bytes before the first medium that is unknown or unchecked.
    pub explained: usize,
    /// The rendered prompt from that medium on; empty where there is none.
    pub rest: Vec<u8>,
}

impl WrittenMedia {
    fn of(text: &[u8], known: impl Fn(u64) -> Option<KnownMedium>) -> WrittenMedia {
        let is_all_checked = Cell::new(true);
        let all = write_media(text, |medium| {
            let known = known(medium)?;
            is_all_checked.set(is_all_checked.get() && known.is_checked);
            Some(known.facts)
        });
        if is_all_checked.get() {
            return WrittenMedia { explained: all.bytes.len(), bytes: all.bytes, rest: all.rest };
        }
        let checked = write_media(text, |medium| {
            known(medium).filter(|known| known.is_checked).map(|known| known.facts)
        });
        // A medium that was replaced in between is checked with the next request.
        let rest = if all.bytes.starts_with(&checked.bytes) { checked.rest } else { Vec::new() };
        WrittenMedia { explained: checked.bytes.len(), bytes: all.bytes, rest }
    }
}

/// Why a prompt could not be rendered: a label of the `unrendered` metric.
pub(crate) struct RenderError(pub &'static str);

impl ModelMatching {
    /// The same for the router, which reads the events of the family's engines.
    pub(crate) fn of_family(&self, family: &Family) -> Matching {
        match self {
            ModelMatching::Bytes(alignment) => {
                Matching::bytes(family.clone(), Arc::clone(alignment.vocabulary()))
            }
            ModelMatching::Tokens { .. } => Matching::tokens(family.clone()),
        }
    }

    fn renderer(&self) -> &Renderer {
        match self {
            ModelMatching::Bytes(alignment) => alignment.renderer(),
            ModelMatching::Tokens { renderer, .. } => renderer,
        }
    }

    /// Whether the engine separates the caches of this API's requests by their `cache_salt`.
    pub(crate) fn honours_salt(&self, api: Api) -> bool {
        self.renderer().conversion().honours_salt(api)
    }

    /// What the engine does with Claude Code's attribution line.
    pub(crate) fn attribution(&self) -> Attribution {
        self.renderer().attribution()
    }

    /// Renders a request's prompt as its engine does.
    pub(crate) async fn render(&self, body: &Body<'_>, api: Api) -> Result<RenderedPrompt, RenderError> {
        match self {
            ModelMatching::Bytes(alignment) => render_bytes(alignment, body, api),
            ModelMatching::Tokens { renderer, pool } => render_tokens(renderer, pool, body, api).await,
        }
    }
}

fn render_bytes(alignment: &Alignment, body: &Body<'_>, api: Api) -> Result<RenderedPrompt, RenderError> {
    let mut text = Vec::new();
    let written = alignment.write_prompt(body, api, unix_s(), &mut text);
    let reported_bytes = written.map_err(|why| RenderError(why.label()))?.reported_bytes;
    let unit = Unit::Byte;
    if reported_bytes == text.len() {
        return Ok(RenderedPrompt { reported: text, text: None, unit, has_media: false });
    }
    let reported = text[..reported_bytes].to_vec();
    Ok(RenderedPrompt { reported, text: Some(text), unit, has_media: true })
}

async fn render_tokens(
    renderer: &Renderer,
    pool: &EncoderPool,
    body: &Body<'_>,
    api: Api,
) -> Result<RenderedPrompt, RenderError> {
    let mut text = String::new();
    let rendered = renderer.render(body, api, unix_s(), &mut text);
    let (ids, media) = match rendered.map_err(|why| RenderError(why.label()))? {
        Rendered::Ids(ids) => (ids, Media::None),
        Rendered::Text { around, media } => {
            let encoding = pool.encode(text.clone(), around).map_err(|_| RenderError("busy"))?;
            (encoding.await.map_err(|_| RenderError("tokenizer_failed"))?, media)
        }
    };
    // Only the engine knows how many tokens an image takes, so nothing after it can be compared.
    let has_media = media != Media::None;
    let mut reported = Vec::new();
    write_chain(if has_media { &[] } else { &ids }, &mut reported);
    Ok(RenderedPrompt { reported, text: Some(text.into_bytes()), unit: Unit::Token, has_media })
}

/// The current time, for templates that print the date.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use warmroute_prompt::{ChatConversion, ModelFiles};

    /// A tokenizer with one token for each byte, without a chat template.
    pub(crate) fn byte_level() -> ModelMatching {
        ModelMatching::Bytes(Arc::new(alignment(None)))
    }

    /// The same with a chat template, for an engine with these rules.
    pub(crate) fn byte_level_chats(conversion: ChatConversion) -> ModelMatching {
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        ModelMatching::Bytes(Arc::new(alignment(Some(template)).with_conversion(conversion)))
    }

    fn alignment(chat_template: Option<&str>) -> Alignment {
        let letters =
            (0_u32..256).map(|byte| char::from_u32(if is_itself(byte) { byte } else { 256 + rank(byte) }));
        let vocab: serde_json::Map<_, _> =
            letters.flatten().enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
        let tokenizer = serde_json::json!({
            "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null, "decoder": {"type": "ByteLevel"},
        });
        let tokenizer = tokenizer.to_string();
        let files = ModelFiles { tokenizer: tokenizer.as_bytes(), chat_template, ..ModelFiles::default() };
        Alignment::new(&files).unwrap()
    }

    /// GPT-2's alphabet: printable bytes stand for themselves, the others are mapped to 256 and above.
    fn is_itself(byte: u32) -> bool {
        matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
    }

    fn rank(byte: u32) -> u32 {
        (0..byte).filter(|&other| !is_itself(other)).count() as u32
    }
}
