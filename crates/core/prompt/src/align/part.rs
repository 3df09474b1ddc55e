//! Part of a message's content: text, an image or other media, or a reference to a tool.
//!
//! vLLM accepts many kinds of parts and passes few to templates: text in a `text` field, and media as their
//! modality. A medium is marked in the prompt by its hash; see [`media`](super::media) for what follows.

use minijinja::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::media::rendered_mark;
use super::unaligned::Unrendered;
use super::values::{text_of, value_of};
use crate::json::{Cursor, Kind, RawStr};

/// A medium's data, or the word that announces it, begins within this many bytes of its field.
const INLINE_WITHIN: usize = 128;

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
    Text { text: Value, kind: TextKind, others: Vec<(Value, Value)> },
    Media { modality: &'static str, mark: String, others: Vec<(Value, Value)> },
    ToolReference(Value),
}

/// Type of a text part in the request. Templates see one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    /// A plain string, or `text`.
    Plain,
    /// `refusal`, `input_text` and others.
    Other,
}

impl Part {
    /// A text part.
    pub fn text(text: Value) -> Part {
        Part::Text { text, kind: TextKind::Plain, others: Vec::new() }
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
            Part::Text { text, others, .. } => {
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
    /// The value of the field that holds the medium, and whether that field always holds its data.
    medium: Option<(&'a [u8], bool)>,
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
                    if modality(name).is_some() {
                        let is_data = name == b"input_audio" || name.ends_with(b"_embeds");
                        fields.medium = fields.medium.or(Some((whole, is_data)));
                    }
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
            b"text" => self.text_part(self.text, TextKind::Plain),
            b"refusal" => self.text_part(self.refusal, TextKind::Other),
            // Without a text the engine shows some templates a null.
            b"input_text" | b"output_text" if is_given(self.text) => {
                self.text_part(self.text, TextKind::Other)
            }
            b"thinking" if is_given(self.thinking) => self.text_part(self.thinking, TextKind::Other),
            b"input_text" | b"output_text" | b"thinking" => Err(Unrendered::Shape),
            b"tool_reference" => {
                Ok(Some(Part::ToolReference(value_of(self.name.ok_or(Unrendered::Shape)?)?)))
            }
            b"prompt_embeds" => Err(Unrendered::Setting("prompt_embeds")),
            b"" => self.media_part(self.media, whole),
            kind => self.media_part(modality(kind), whole),
        }
    }

    fn text_part(&self, text: Option<&[u8]>, kind: TextKind) -> Result<Option<Part>, Unrendered> {
        let Some(text) = text.filter(|_| is_given(text)) else { return Ok(None) };
        let text = value_of(text)?;
        if text.as_str().is_none() {
            return Err(Unrendered::Shape);
        }
        Ok(Some(Part::Text { text, kind, others: self.others()? }))
    }

    fn media_part(&self, modality: Option<&'static str>, whole: &[u8]) -> Result<Option<Part>, Unrendered> {
        let modality = modality.ok_or(Unrendered::Shape)?;
        let mark = rendered_mark(xxh3_64(whole), self.is_fixed());
        Ok(Some(Part::Media { modality, mark, others: self.others()? }))
    }

    /// Whether equal parts always mean equal content: the data is inside, or the client vouches for it by an id. What
    /// a URL leads to may change.
    fn is_fixed(&self) -> bool {
        let is_inline = |value: &[u8]| {
            let near = &value[..value.len().min(INLINE_WITHIN)];
            [&b"\"data:"[..], b"\"base64\""].iter().any(|data| memchr::memmem::find(near, data).is_some())
        };
        self.has_uuid || self.medium.is_some_and(|(value, is_data)| is_data || is_inline(value))
    }

    fn others(&self) -> Result<Vec<(Value, Value)>, Unrendered> {
        self.others.iter().map(|(key, value)| Ok((Value::from(text_of(*key)?), value_of(value)?))).collect()
    }
}

fn is_given(value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| value != b"null")
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
