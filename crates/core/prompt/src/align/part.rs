//! Part of a message's content: text, an image or other media, or a reference to a tool.
//!
//! vLLM accepts many kinds of parts and passes few to templates: text in a `text` field, and media as their
//! modality. A medium is marked in the prompt by its hash. Text after it is not matched with reported blocks,
//! but requests with the same image have the same bytes.

use minijinja::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::unaligned::Unrendered;
use super::values::{text_of, value_of};
use crate::json::{Cursor, Kind, RawStr};

/// Starts a media mark in the prompt: a character reserved for private use.
pub(crate) const MEDIA: char = '\u{10fffd}';

/// Fields that vLLM knows in parts; other fields are passed to the template.
const KNOWN_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// A part as templates see it.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Text { text: Value, others: Vec<(Value, Value)> },
    Media { modality: &'static str, mark: String, others: Vec<(Value, Value)> },
    ToolReference(Value),
}

impl Part {
    /// A text part.
    pub fn text(text: Value) -> Part {
        Part::Text { text, others: Vec::new() }
    }

    /// Reads an item of a content list; `None` for one that vLLM drops.
    pub fn read(part: &[u8]) -> Result<Option<Part>, Unrendered> {
        let mut cursor = Cursor::new(part);
        match cursor.kind() {
            Kind::String => {
                let text = cursor.string().map_err(|_| Unrendered::Shape)?;
                Ok(Some(Part::text(Value::from(text_of(text)?))))
            }
            Kind::Object => Fields::read(part)?.part(part),
            _ => Err(Unrendered::Shape),
        }
    }

    /// Appends the values that a template with parts receives.
    pub fn push_values(self, values: &mut Vec<Value>) {
        let typed = |kind: &'static str| (Value::from("type"), Value::from(kind));
        let text_part = |text: Value| [typed("text"), (Value::from("text"), text)];
        match self {
            Part::Text { text, others } => {
                values.push(Value::from_pairs(text_part(text).into_iter().chain(others)))
            }
            Part::Media { modality, mark, others } => {
                values.push(Value::from_pairs(text_part(Value::from(mark))));
                values.push(Value::from_pairs([typed(modality)].into_iter().chain(others)));
            }
            Part::ToolReference(name) => {
                values.push(Value::from_pairs([typed("tool_reference"), (Value::from("name"), name)]));
            }
        }
    }
}

/// Relevant fields of a part.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<RawStr<'a>>,
    text: Option<&'a [u8]>,
    refusal: Option<&'a [u8]>,
    thinking: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    has_uuid: bool,
    /// Modality implied by a field's name.
    media: Option<&'static str>,
    others: Vec<(RawStr<'a>, &'a [u8])>,
}

impl<'a> Fields<'a> {
    fn read(part: &'a [u8]) -> Result<Fields<'a>, Unrendered> {
        let mut fields = Fields::default();
        let read = Cursor::new(part).object(|key, value| {
            let raw = value.clone();
            let whole = value.value()?;
            match &*key.unescaped() {
                b"type" => fields.kind = raw.clone().string().ok(),
                b"text" => fields.text = Some(whole),
                b"refusal" => fields.refusal = Some(whole),
                b"thinking" => fields.thinking = Some(whole),
                b"name" => fields.name = Some(whole),
                b"uuid" => fields.has_uuid = whole != b"null",
                name => {
                    fields.media = fields.media.or(modality(name));
                    if !KNOWN_FIELDS.iter().any(|known| known.as_bytes() == name) {
                        fields.others.push((key, whole));
                    }
                }
            }
            Ok(())
        });
        read.map_err(|_| Unrendered::Shape).map(|()| fields)
    }

    fn part(self, whole: &[u8]) -> Result<Option<Part>, Unrendered> {
        let kind = self.kind.map(|kind| kind.unescaped()).unwrap_or_default();
        let kind = if self.has_uuid { &b""[..] } else { &kind };
        match kind {
            b"text" | b"input_text" | b"output_text" => self.text_part(self.text),
            b"refusal" => self.text_part(self.refusal),
            b"thinking" => self.text_part(self.thinking),
            b"tool_reference" => {
                Ok(Some(Part::ToolReference(value_of(self.name.ok_or(Unrendered::Shape)?)?)))
            }
            b"prompt_embeds" => Err(Unrendered::Setting("prompt_embeds")),
            b"" => self.media_part(self.media, whole),
            kind => self.media_part(modality(kind), whole),
        }
    }

    fn text_part(&self, text: Option<&[u8]>) -> Result<Option<Part>, Unrendered> {
        let Some(text) = text.filter(|text| *text != b"null") else { return Ok(None) };
        let text = value_of(text)?;
        if text.as_str().is_none() {
            return Err(Unrendered::Shape);
        }
        Ok(Some(Part::Text { text, others: self.others()? }))
    }

    fn media_part(&self, modality: Option<&'static str>, whole: &[u8]) -> Result<Option<Part>, Unrendered> {
        let modality = modality.ok_or(Unrendered::Shape)?;
        let mark = format!("{MEDIA}{:016x}", xxh3_64(whole));
        Ok(Some(Part::Media { modality, mark, others: self.others()? }))
    }

    fn others(&self) -> Result<Vec<(Value, Value)>, Unrendered> {
        self.others.iter().map(|(key, value)| Ok((Value::from(text_of(*key)?), value_of(value)?))).collect()
    }
}

/// Modality named by a part's type or field.
fn modality(name: &[u8]) -> Option<&'static str> {
    match name {
        b"image_url" | b"input_image" | b"image_pil" | b"image_embeds" => Some("image"),
        b"audio_url" | b"input_audio" | b"audio_embeds" => Some("audio"),
        b"video_url" | b"video_embeds" => Some("video"),
        _ => None,
    }
}
