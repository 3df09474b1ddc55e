//! Fields of a body that a router needs, as slices of the body.

mod native_fields;

use std::borrow::Cow;
use std::ops::Range;

use crate::api::Api;
use crate::json::{BadJson, Cursor, Kind, RawStr};
use crate::json_path::{JsonPath, text_of};
use native_fields::{MEDIA_FIELDS, NativeFields};

/// Bytes per token without a measured rate: the usual figure for English text and code.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// Fields found in a body. Of a repeated key the last one counts, as in the engines' parsers; [`Body::repeated`] tells.
#[derive(Clone, Debug, Default)]
pub struct Body<'a> {
    model: Option<(RawStr<'a>, Range<usize>)>,
    is_stream: bool,
    stream_options: Option<(&'a [u8], Range<usize>)>,
    /// `n` and `best_of`.
    choices: [Option<&'a [u8]>; 2],
    /// Values in the order of [`ANSWER_FIELDS`].
    answer_max: [Option<&'a [u8]>; ANSWER_FIELDS.len()],
    /// `previous_response_id` and `conversation`, as raw values.
    continued: [Option<&'a [u8]>; 2],
    native: NativeFields<'a>,
    /// `input` and `items`: lists of items in the Responses and Conversations APIs.
    listed: [Option<&'a [u8]>; 2],
    /// `store`, as its raw value.
    store: Option<&'a [u8]>,
    is_background: bool,
    /// The [`ALL_DECIDING_FIELDS`] that were seen, as bits.
    seen: u64,
    repeated: Option<&'static str>,
    salt: Option<RawStr<'a>>,
    salt_range: Option<Range<usize>>,
    marked: Vec<MarkedField>,
    /// Values at the caller's paths, in their order.
    found: Vec<Option<&'a [u8]>>,
    pub(crate) prompt: PromptFields<'a>,
}

/// A field of a body that the caller asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedField {
    /// The caller's number for its name.
    pub mark: usize,
    /// From the quote before its name to the end of its value.
    pub range: Range<usize>,
}

impl MarkedField {
    /// The field with this key, whose value ends where the cursor stands.
    fn before<'a>(mark: usize, key: RawStr<'a>, end: &Cursor<'a>) -> MarkedField {
        MarkedField { mark, range: end.position_of(key) - 1..end.position() }
    }
}

/// An object of further fields, or a list of one for each prompt: engines read some fields there as well as at the top.
const SAMPLING_FIELD: &[u8] = b"sampling_params";

/// Fields that limit the answer's length. The API decides which of them an engine reads.
const ANSWER_FIELDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// Fields besides the prompt that change what a template renders.
pub(crate) const TEMPLATE_FIELDS: [&str; 8] = [
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "extra_key",
    "functions",
    "lora_path",
    "reasoning_effort",
    "tool_choice",
];

/// Fields that change how an engine ends or frames a prompt. They are not part of the canonical prompt,
/// because requests that differ in them share their beginning.
pub(crate) const FRAME_FIELDS: [&str; 10] = [
    "add_generation_prompt",
    "add_special_tokens",
    "continue_final_message",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "output_config",
    "prompt_embeds",
    "reasoning",
    "thinking",
    "truncate_prompt_tokens",
];

/// Fields by which a router decides, beside those that limit the answer or belong to the prompt.
const DECIDING_FIELDS: [&str; 22] = [
    "model",
    "stream",
    "stream_options",
    "prompt",
    "messages",
    "input",
    "items",
    "system",
    "instructions",
    "tools",
    "previous_response_id",
    "conversation",
    "store",
    "background",
    "n",
    "best_of",
    "text",
    "input_ids",
    "sampling_params",
    "image_data",
    "audio_data",
    "video_data",
];

/// All fields by which a router decides. Engines and proxies that read another one of two equal keys would get another
/// request than the router has checked.
const ALL_DECIDING_FIELDS: [&[&str]; 5] =
    [&DECIDING_FIELDS, &["cache_salt"], &ANSWER_FIELDS, &TEMPLATE_FIELDS, &FRAME_FIELDS];

/// The place of a field in [`ALL_DECIDING_FIELDS`], counted through all lists, and its name.
fn deciding_field(name: &[u8]) -> Option<(usize, &'static str)> {
    let mut before = 0;
    for fields in ALL_DECIDING_FIELDS {
        if let Some(place) = fields.iter().position(|field| field.as_bytes() == name) {
            return Some((before + place, fields[place]));
        }
        before += fields.len();
    }
    None
}

/// Key of the turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TurnsKey {
    #[default]
    Messages,
    Input,
    Prompt,
    Text,
    InputIds,
}

/// Raw values that make up the prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptFields<'a> {
    /// Values in the order of [`FRAME_FIELDS`].
    pub frame: [Option<&'a [u8]>; FRAME_FIELDS.len()],
    pub turns_key: TurnsKey,
    /// Values in the order of [`TEMPLATE_FIELDS`].
    pub for_template: [Option<&'a [u8]>; TEMPLATE_FIELDS.len()],
    pub tools: Option<&'a [u8]>,
    /// `system` (Anthropic) or `instructions` (Responses).
    pub system: Option<&'a [u8]>,
    /// `messages`, `input`, `prompt`, `text` or `input_ids`.
    pub turns: Option<&'a [u8]>,
    /// Media beside the turns, which `/generate` has.
    pub media: [Option<&'a [u8]>; MEDIA_FIELDS.len()],
}

impl<'a> PromptFields<'a> {
    /// A field that the template or the engine's framing reads; `None` if absent or null.
    pub fn setting(&self, name: &str) -> Option<&'a [u8]> {
        let place = |names: &[&str]| names.iter().position(|known| *known == name);
        match place(&TEMPLATE_FIELDS) {
            Some(field) => self.for_template[field],
            None => place(&FRAME_FIELDS).and_then(|field| self.frame[field]),
        }
    }

    /// Sets a field that [`PromptFields::setting`] returns.
    pub fn set(&mut self, name: &str, value: Option<&'a [u8]>) {
        let place = |names: &[&str]| names.iter().position(|known| *known == name);
        if let Some(field) = place(&TEMPLATE_FIELDS) {
            self.for_template[field] = value;
        } else if let Some(field) = place(&FRAME_FIELDS) {
            self.frame[field] = value;
        }
    }
}

impl<'a> Body<'a> {
    /// Whether a field changes what an engine makes of images, audio or video.
    pub fn sets_media_options(&self) -> bool {
        let names = ["media_io_kwargs", "mm_processor_kwargs"];
        names.iter().any(|name| self.prompt.setting(name).is_some())
    }

    /// Reads a body, which must be exactly one JSON object.
    pub fn read(bytes: &'a [u8]) -> Result<Body<'a>, BadJson> {
        Body::read_with(bytes, &[], |_| None)
    }

    /// Reads a body. Finds the values at `paths`, and records where the fields are whose names `mark` numbers, at the top
    /// and in `sampling_params`.
    pub fn read_with(
        bytes: &'a [u8],
        paths: &[JsonPath],
        mark: impl Fn(&[u8]) -> Option<usize>,
    ) -> Result<Body<'a>, BadJson> {
        let mut body = Body { found: vec![None; paths.len()], ..Body::default() };
        let mut cursor = Cursor::new(bytes);
        cursor.object(|key, value| {
            let (name, before) = (key.unescaped(), value.clone());
            let own_mark = mark(&name);
            body.note(&name);
            body.field(&name, value)?;
            for (path, found) in paths.iter().zip(&mut body.found) {
                if path.begins_with(&name) {
                    *found = path.find(before.up_to(value).trim_ascii());
                }
            }
            match own_mark {
                Some(mark) => body.marked.push(MarkedField::before(mark, key, value)),
                None if *name == *SAMPLING_FIELD => mark_fields(before, &mark, &mut body.marked)?,
                None => {}
            }
            Ok(())
        })?;
        cursor.end()?;
        Ok(body)
    }

    /// The body as this API's. `/generate` ignores the fields of the other APIs and has its prompt elsewhere.
    pub fn of_api(self, api: Api) -> Body<'a> {
        if api != Api::Generate {
            return self;
        }
        let (turns_key, turns) = self.native.turns();
        let turns = turns.map(only_one_of);
        Body {
            choices: [self.native.answers(), None],
            answer_max: [self.native.answer_tokens(), None, None],
            continued: [None; 2],
            listed: [None; 2],
            store: None,
            is_background: false,
            prompt: PromptFields {
                tools: None,
                system: None,
                turns_key,
                turns,
                media: self.native.media,
                ..self.prompt
            },
            ..self
        }
    }

    /// The fields that were marked, in order. A repeated key is there each time.
    pub fn marked(&self) -> &[MarkedField] {
        &self.marked
    }

    /// The body without these fields, which are in order.
    pub fn without_fields(bytes: &[u8], fields: &[Range<usize>]) -> Vec<u8> {
        let mut kept = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for field in fields {
            kept.extend_from_slice(&bytes[at..field.start]);
            let space = bytes[field.end..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            at = field.end + space;
            if bytes.get(at) == Some(&b',') {
                at += 1;
            } else {
                // The last field: the comma before it goes, if any is left.
                kept.truncate(kept.trim_ascii_end().len());
                kept.pop_if(|last| *last == b',');
            }
        }
        kept.extend_from_slice(&bytes[at..]);
        kept
    }

    /// Notes that a field is there.
    fn note(&mut self, name: &[u8]) {
        let Some((place, field)) = deciding_field(name) else { return };
        if self.seen & (1 << place) != 0 {
            self.repeated = self.repeated.or(Some(field));
        }
        self.seen |= 1 << place;
    }

    /// The first field that is there twice, of those by which a router decides.
    pub fn repeated(&self) -> Option<&'static str> {
        self.repeated
    }

    /// Reads the value of a field. Its name has no escapes left, which engines accept.
    fn field(&mut self, name: &[u8], value: &mut Cursor<'a>) -> Result<(), BadJson> {
        match name {
            b"model" => {
                let before = value.clone();
                let range = value.value_range()?;
                self.model = before.clone().string().ok().map(|name| (name, range));
            }
            b"stream" => self.is_stream = flag_of(value.value()?),
            b"prompt" => self.turns(TurnsKey::Prompt, only_one_of(value.value()?)),
            b"messages" => self.turns(TurnsKey::Messages, value.value()?),
            b"input" => {
                self.listed[0] = Some(value.value()?);
                self.turns(TurnsKey::Input, self.listed[0].unwrap_or_default());
            }
            b"items" => self.listed[1] = Some(value.value()?),
            b"system" | b"instructions" => self.prompt.system = Some(value.value()?),
            b"tools" => self.prompt.tools = Some(value.value()?),
            b"stream_options" => {
                let before = value.clone();
                let range = value.value_range()?;
                self.stream_options = Some((before.up_to(value).trim_ascii(), range));
            }
            b"previous_response_id" => self.continued[0] = Some(value.value()?),
            b"conversation" => self.continued[1] = Some(value.value()?),
            b"store" => self.store = Some(value.value()?),
            b"background" => self.is_background = flag_of(value.value()?),
            b"n" => self.choices[0] = Some(value.value()?),
            b"best_of" => self.choices[1] = Some(value.value()?),
            name if NativeFields::has(name) => self.native.set(name, value.value()?),
            b"cache_salt" => {
                let before = value.clone();
                self.salt_range = Some(value.value_range()?);
                self.salt = before.clone().string().ok();
            }
            other => {
                let value = Some(value.value()?).filter(|value| *value != b"null");
                let place = |names: &[&str]| names.iter().position(|name| name.as_bytes() == other);
                if let Some(field) = place(&ANSWER_FIELDS) {
                    self.answer_max[field] = value;
                } else if let Ok(name) = std::str::from_utf8(other) {
                    self.prompt.set(name, value);
                }
            }
        }
        Ok(())
    }

    /// Clients of the Responses API send `"prompt": null` beside `input`.
    fn turns(&mut self, key: TurnsKey, value: &'a [u8]) {
        if value == b"null" && self.prompt.turns.is_some() {
            return;
        }
        self.prompt.turns_key = key;
        self.prompt.turns = Some(value);
    }

    /// The model's name, if it is a string.
    pub fn model(&self) -> Option<Cow<'a, str>> {
        match self.model.as_ref()?.0.unescaped() {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }

    /// Byte range of the model's value, including quotes, for splicing in another name.
    pub fn model_range(&self) -> Option<Range<usize>> {
        Some(self.model.as_ref()?.1.clone())
    }

    /// Whether the client requested a stream.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Raw `stream_options`; `None` for null.
    pub fn stream_options(&self) -> Option<&'a [u8]> {
        self.stream_options.as_ref().map(|(options, _)| *options).filter(|options| *options != b"null")
    }

    /// Byte range of the value of `stream_options`, even if null.
    pub fn stream_options_range(&self) -> Option<Range<usize>> {
        Some(self.stream_options.as_ref()?.1.clone())
    }

    /// Whether the request wants one answer: neither `n` nor `best_of` exceeds 1.
    pub fn has_one_answer(&self) -> bool {
        self.choices.iter().flatten().all(|n| matches!(*n, b"1" | b"null"))
    }

    /// Number of answers computed, for all prompts together. With `best_of` the client may receive fewer.
    pub fn answers(&self) -> u32 {
        let each = self.choices.into_iter().flatten().filter_map(number_of).max().unwrap_or(1);
        let prompts = if self.has_one_prompt() { 1 } else { self.prompt.turns.map_or(1, items) };
        each.saturating_mul(prompts)
    }

    /// Maximum tokens of an answer, if the client sets one that this API reads. Engines differ in which of
    /// two fields wins, so this is the larger.
    pub fn answer_tokens_max(&self, api: Api) -> Option<u32> {
        let [tokens, completion, output] = self.answer_max;
        let known: &[Option<&[u8]>] = match api {
            Api::Chat => &[tokens, completion],
            Api::Completions | Api::Messages | Api::Generate => &[tokens],
            Api::Responses => &[output],
            Api::Other => &self.answer_max,
        };
        known.iter().copied().flatten().filter_map(number_of).max()
    }

    /// Whether the request has exactly one prompt.
    pub fn has_one_prompt(&self) -> bool {
        let is_list_of_prompts = |turns: &[u8]| {
            turns.first() == Some(&b'[')
                && turns[1..]
                    .iter()
                    .find(|b| !b.is_ascii_whitespace())
                    .is_some_and(|b| matches!(b, b'"' | b'['))
        };
        !self.prompt.turns.is_some_and(is_list_of_prompts)
    }

    /// Whether part of the prompt is in an earlier response.
    pub fn continues_another(&self) -> bool {
        self.continued.iter().flatten().any(|value| *value != b"null")
    }

    /// The stored response that the request continues (`previous_response_id`).
    pub fn previous_response(&self) -> Option<Cow<'a, [u8]>> {
        self.continued[0].filter(|value| value.starts_with(b"\"")).and_then(text_of)
    }

    /// The stored conversation that the request continues: a name, or an object with one.
    pub fn conversation(&self) -> Option<Cow<'a, [u8]>> {
        let value = self.continued[1]?;
        let mut id = value.starts_with(b"\"").then_some(value);
        if value.starts_with(b"{") {
            _ = Cursor::new(value).object(|key, field| {
                let is_id = *key.unescaped() == *b"id";
                let field = field.value()?;
                if is_id {
                    id = field.starts_with(b"\"").then_some(field);
                }
                Ok(())
            });
        }
        id.and_then(text_of)
    }

    /// Whether the client asks the server not to store the response.
    pub fn forbids_storing(&self) -> bool {
        self.store == Some(b"false")
    }

    /// Whether the client asks the server to store the response.
    pub fn asks_to_store(&self) -> bool {
        self.store == Some(b"true")
    }

    /// Whether the server answers before it has computed the response.
    pub fn is_background(&self) -> bool {
        self.is_background
    }

    /// Identifiers of stored items that stand in place of items: `{"type":"item_reference","id":…}`, or an object with
    /// neither a type nor a role.
    pub fn item_references(&self) -> Vec<Cow<'a, [u8]>> {
        let mut references = Vec::new();
        for list in self.listed.into_iter().flatten().filter(|list| list.starts_with(b"[")) {
            // The list is complete, and what is no item has no reference.
            _ = Cursor::new(list).array(|item| {
                references.extend(item_reference(item.value()?));
                Ok(())
            });
        }
        references
    }

    /// Salt that separates this request's cache from others.
    pub fn salt(&self) -> Option<Cow<'a, [u8]>> {
        self.salt.map(RawStr::unescaped)
    }

    /// Byte range of the value of `cache_salt`, of whatever kind.
    pub fn salt_range(&self) -> Option<Range<usize>> {
        self.salt_range.clone()
    }

    /// The string or number at the path with this place in the list given to [`Body::read_with`].
    pub fn found(&self, place: usize) -> Option<Cow<'a, [u8]>> {
        self.found.get(place).copied().flatten().and_then(text_of)
    }
}

/// Whether engines take a JSON value for true. vLLM and SGLang accept numbers and words for it.
pub fn flag_of(value: &[u8]) -> bool {
    const WORDS: [&[u8]; 7] = [b"true", b"t", b"yes", b"y", b"on", b"1", b"1.0"];
    let is_word = |word: Cow<'_, [u8]>| WORDS.iter().any(|one| word.eq_ignore_ascii_case(one));
    let is_one =
        || std::str::from_utf8(value).ok().and_then(|number| number.parse::<f64>().ok()) == Some(1.0);
    value == b"true" || text_of(value).is_some_and(is_word) || is_one()
}

/// The identifier of an item that is only a reference.
fn item_reference(item: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (mut kind, mut role, mut id) = (None, None, None);
    let walked = Cursor::new(item).object(|key, field| {
        let name = key.unescaped();
        let value = Some(field.value()?).filter(|value| *value != b"null");
        match &*name {
            b"type" => kind = value,
            b"role" => role = value,
            b"id" => id = value,
            _ => {}
        }
        Ok(())
    });
    let is_reference = match kind.map(text_of) {
        Some(kind) => kind.as_deref() == Some(b"item_reference"),
        None => role.is_none() && id.is_some(),
    };
    walked.ok().filter(|()| is_reference)?;
    Some(id.and_then(text_of).unwrap_or_default())
}

/// Marks the fields of an object, or of each object in a list.
fn mark_fields<'a>(
    mut value: Cursor<'a>,
    mark: &impl Fn(&[u8]) -> Option<usize>,
    marked: &mut Vec<MarkedField>,
) -> Result<(), BadJson> {
    let mut object = |value: &mut Cursor<'a>| {
        value.object(|key, value| {
            value.skip_value()?;
            marked.extend(mark(&key.unescaped()).map(|mark| MarkedField::before(mark, key, value)));
            Ok(())
        })
    };
    match value.kind() {
        Kind::Object => object(&mut value),
        Kind::Array => value.array(|item| match item.kind() {
            Kind::Object => object(item),
            _ => item.skip_value(),
        }),
        Kind::String | Kind::Other => Ok(()),
    }
}

/// The prompt of a list of one prompt; any other value unchanged.
fn only_one_of(prompts: &[u8]) -> &[u8] {
    let mut cursor = Cursor::new(prompts);
    if cursor.kind() != Kind::Array {
        return prompts;
    }
    let mut only = None;
    let read = cursor.array(|item| {
        let is_prompt = matches!(item.kind(), Kind::String | Kind::Array);
        let value = item.value()?;
        // Stop early: a list of token ids can have thousands of items.
        let is_first = is_prompt && only.replace(value).is_none();
        if is_first { Ok(()) } else { Err(BadJson { at: 0, expected: "only one" }) }
    });
    read.ok().and(only).unwrap_or(prompts)
}

/// Number of items of a list.
fn items(list: &[u8]) -> u32 {
    let mut items = 0;
    let read = Cursor::new(list).array(|item| {
        items += 1;
        item.skip_value()
    });
    read.map_or(1, |()| items)
}

/// A positive number in JSON, rounded up, in any notation: engines also accept `1e3`, `64.0`, `"64"` and `"1_000"`.
pub fn number_of(value: &[u8]) -> Option<u32> {
    let quoted = Cursor::new(value).string().ok();
    let written = quoted.map_or(Cow::Borrowed(value), RawStr::unescaped);
    let written = std::str::from_utf8(&written).ok()?.trim().replace('_', "");
    let number = written.parse::<f64>().ok()?;
    (number > 0.0).then_some(number.ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_fields_are_found_in_any_order() {
        let json = br#" {"tools":[{"a":"}"}], "stream" : true,"x":{"model":"no"},"model":"m\u0031","user":"u-1","messages":[] } "#;
        let paths = ["user", "session_id", "x.model"].map(|path| path.parse().unwrap());
        let body = Body::read_with(json, &paths, |_| None).unwrap();
        assert_eq!(body.model().unwrap(), "m1");
        assert_eq!(&json[body.model_range().unwrap()], br#""m\u0031""#);
        assert!(body.is_stream());
        assert_eq!(body.found(0).unwrap(), "u-1".as_bytes());
        assert_eq!(body.found(1), None);
        assert_eq!(body.found(2).unwrap(), "no".as_bytes());
        assert_eq!(body.prompt.tools, Some(&br#"[{"a":"}"}]"#[..]));
    }

    #[test]
    fn marked_fields_are_found_and_removed() {
        let mark = |key: &[u8]| [&b"x"[..], b"y"].iter().position(|name| *name == key);
        for (json, without) in [
            (r#"{"x":1}"#, "{}"),
            (r#"{ "x" : [1,{"x":2}] }"#, "{ }"),
            (r#"{"a":1,"x":1}"#, r#"{"a":1}"#),
            (r#"{"x":1,"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":1,"x":1,"y":"}","b":{"x":1}}"#, r#"{"a":1,"b":{"x":1}}"#),
            (r#"{"a":1 , "x":1 , "\u0079":2 , "x":null }"#, r#"{"a":1 }"#),
            (r#"{"x":1,"y":2}"#, "{}"),
            (r#"{"a":"x"}"#, r#"{"a":"x"}"#),
            (r#"{"sampling_params":{"a":1,"x":{"y":1}},"b":2}"#, r#"{"sampling_params":{"a":1},"b":2}"#),
            (
                r#"{"sampling_params" : [{"x":1}, 5,{"a":1 , "y":1}],"x":1}"#,
                r#"{"sampling_params":[{},5,{"a":1}]}"#,
            ),
        ] {
            let body = Body::read_with(json.as_bytes(), &[], mark).unwrap();
            let ranges: Vec<_> = body.marked().iter().map(|field| field.range.clone()).collect();
            let kept = String::from_utf8(Body::without_fields(json.as_bytes(), &ranges)).unwrap();
            let [kept_value, value] =
                [&kept, without].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
            assert_eq!(kept_value, value, "{json}: {kept}");
        }
    }

    #[test]
    fn an_escaped_key_is_the_same_key() {
        assert_eq!(Body::read(br#"{"mod\u0065l":"m"}"#).unwrap().model().unwrap(), "m");
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let body = Body::read(br#"{"model":"a","stream":true,"model":"b","stream":false}"#).unwrap();
        assert_eq!((body.model().unwrap().as_ref(), body.is_stream()), ("b", false));
    }

    #[test]
    fn a_repeated_field_is_told_in_every_spelling() {
        let deciding_fields = ALL_DECIDING_FIELDS.concat();
        assert!(deciding_fields.len() <= 64, "each has a bit");
        let repeated = |json: &str| Body::read(json.as_bytes()).unwrap().repeated();
        for field in deciding_fields {
            assert_eq!(repeated(&format!(r#"{{"{field}":1,"a":1,"{field}":1}}"#)), Some(field));
            let (start, end) = field.split_at(1);
            let escaped = format!("\\u{:04x}{end}", start.as_bytes()[0]);
            assert_eq!(repeated(&format!(r#"{{"{escaped}":1,"{field}":1}}"#)), Some(field));
        }
        assert_eq!(repeated(r#"{"model":"a","a":1,"a":2,"messages":[{"model":1}]}"#), None);
    }

    #[test]
    fn items_that_are_only_references_are_found() {
        for (json, expected) in [
            (r#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#, &["msg_1"][..]),
            (r#"{"input":[{"id":"a"},{"type":"item\u005freference","id":"b"}],"prompt":{}}"#, &["a", "b"]),
            (r#"{"items":[{"id":"a","type":null}]}"#, &["a"]),
            (r#"{"input":[{"type":"message","type":"item_reference","id":"x","id":"y"}]}"#, &["y"]),
            (r#"{"input":[{"type":"item_reference"}]}"#, &[""]),
            (r#"{"input":[{"role":"user","content":"item_reference"},"text",5]}"#, &[]),
            (r#"{"input":[{"type":"message","id":"msg_1","role":"assistant","content":[]}]}"#, &[]),
            (r#"{"input":"item_reference","items":null}"#, &[]),
        ] {
            let body = Body::read(json.as_bytes()).unwrap();
            let found: Vec<_> =
                body.item_references().iter().map(|id| String::from_utf8_lossy(id).into_owned()).collect();
            assert_eq!(found, expected, "{json}");
        }
    }

    #[test]
    fn a_stream_is_asked_for_in_every_way_that_engines_accept() {
        for (value, expected) in [
            ("true", true),
            ("1", true),
            ("1.0", true),
            ("10e-1", true),
            ("\"True\"", true),
            ("\"on\"", true),
            ("\"\\u0079es\"", true),
            ("false", false),
            ("0", false),
            ("null", false),
            ("\"no\"", false),
            ("2", false),
            ("[true]", false),
        ] {
            let json = format!(r#"{{"stream":{value}}}"#);
            assert_eq!(Body::read(json.as_bytes()).unwrap().is_stream(), expected, "{json}");
        }
    }

    #[test]
    fn values_of_the_wrong_kind_are_left_to_the_engine() {
        let json = br#"{"model":5,"user":{"id":1},"stream":"maybe","session_id":""}"#;
        let paths = ["user", "session_id"].map(|path| path.parse().unwrap());
        let body = Body::read_with(json, &paths, |_| None).unwrap();
        assert!(body.model().is_none() && body.model_range().is_none() && !body.is_stream());
        assert!((0..2).all(|place| body.found(place).is_none()));
    }

    #[test]
    fn stored_responses_and_conversations_are_found() {
        for (json, response, conversation, continues) in [
            (r#"{"previous_response_id":"resp_1"}"#, Some("resp_1"), None, true),
            (r#"{"previous_response_id":"a","previous_response_id":null}"#, None, None, false),
            (r#"{"conversation":"conv_1"}"#, None, Some("conv_1"), true),
            (r#"{"conversation":{"x":{"id":1},"id":"conv_2"}}"#, None, Some("conv_2"), true),
            (r#"{"conversation":{"id":5},"previous_response_id":7}"#, None, None, true),
            (r#"{"conversation":null}"#, None, None, false),
        ] {
            let body = Body::read(json.as_bytes()).unwrap();
            assert_eq!(body.previous_response().as_deref(), response.map(str::as_bytes), "{json}");
            assert_eq!(body.conversation().as_deref(), conversation.map(str::as_bytes), "{json}");
            assert_eq!(body.continues_another(), continues, "{json}");
        }
        let forbids = |json: &str| Body::read(json.as_bytes()).unwrap().forbids_storing();
        assert!(forbids(r#"{"store":false}"#) && !forbids(r#"{"store":true}"#) && !forbids("{}"));
        let asks = |json: &str| Body::read(json.as_bytes()).unwrap().asks_to_store();
        assert!(asks(r#"{"store":true}"#) && !asks(r#"{"store":null}"#) && !asks("{}"));
        let runs_on = |json: &str| Body::read(json.as_bytes()).unwrap().is_background();
        assert!(runs_on(r#"{"background":true}"#) && runs_on(r#"{"background":"yes"}"#));
        assert!(!runs_on(r#"{"background":false}"#) && !runs_on("{}"));
    }

    #[test]
    fn a_body_that_is_not_an_object_is_refused() {
        for json in ["[]", "", "\"a\"", "{\"a\":1} x", "{\"a\":1"] {
            assert!(Body::read(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn single_and_multiple_prompts_and_answers_are_distinguished() {
        for (json, one_prompt, one_answer) in [
            (r#"{"messages":[{"role":"user"}]}"#, true, true),
            (r#"{"messages":[{"role":"user"}],"n":1}"#, true, true),
            (r#"{"messages":[{"role":"user"}],"n":2}"#, true, false),
            (r#"{"prompt":"a"}"#, true, true),
            (r#"{"prompt":[1,2]}"#, true, true),
            (r#"{"prompt":[7]}"#, true, true),
            (r#"{"prompt":["a"]}"#, true, true),
            (r#"{"prompt":[ [1, 2] ]}"#, true, true),
            (r#"{"prompt":["a","b"]}"#, false, true),
            (r#"{"prompt":[ [1],[2]],"n":3}"#, false, false),
            (r#"{"prompt":"a","n":1,"best_of":2}"#, true, false),
            (r#"{"prompt":"a","n":"2"}"#, true, false),
        ] {
            let body = Body::read(json.as_bytes()).unwrap();
            assert_eq!((body.has_one_prompt(), body.has_one_answer()), (one_prompt, one_answer), "{json}");
        }
    }

    #[test]
    fn answers_are_counted_and_their_maximum_length_is_read() {
        for (api, json, answers, max) in [
            (Api::Chat, r#"{"messages":[{"role":"user"}]}"#, 1, None),
            (Api::Chat, r#"{"messages":[],"max_tokens":64,"n":3}"#, 3, Some(64)),
            (Api::Chat, r#"{"messages":[],"max_tokens":1,"max_completion_tokens":900}"#, 1, Some(900)),
            (Api::Responses, r#"{"input":"a","max_output_tokens": 6.4e1}"#, 1, Some(64)),
            (Api::Completions, r#"{"prompt":["a","b"],"n":2,"max_tokens":null}"#, 4, None),
            (Api::Completions, r#"{"prompt":"a","max_tokens":-1,"n":"x"}"#, 1, None),
            (Api::Completions, r#"{"prompt":"a","max_tokens":99999999999}"#, 1, Some(u32::MAX)),
            (Api::Completions, r#"{"prompt":"a","max_tokens":"\u0036_4 ","n":"3"}"#, 3, Some(64)),
            (Api::Completions, r#"{"prompt":"a","n":2,"best_of":5}"#, 5, None),
            (Api::Completions, r#"{"prompt":"a","n":5,"best_of":"2"}"#, 5, None),
        ] {
            let body = Body::read(json.as_bytes()).unwrap();
            assert_eq!((body.answers(), body.answer_tokens_max(api)), (answers, max), "{json}");
        }
    }

    #[test]
    fn a_maximum_that_the_api_does_not_read_is_ignored() {
        let json = br#"{"max_tokens":1,"max_completion_tokens":2,"max_output_tokens":3}"#;
        let body = Body::read(json).unwrap();
        let apis = [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Other];
        let known = apis.map(|api| body.answer_tokens_max(api));
        assert_eq!(known, [Some(2), Some(1), Some(3), Some(1), Some(3)]);
        let chat = |json: &[u8]| Body::read(json).unwrap().answer_tokens_max(Api::Chat);
        assert_eq!(chat(br#"{"max_output_tokens":1}"#), None, "the engine takes no notice of it");
        assert_eq!(chat(br#"{"max_tokens":1,"max_tokens":null}"#), None, "the last one counts");
    }

    #[test]
    fn a_list_of_one_prompt_is_that_prompt() {
        let turns = |json: &'static str| Body::read(json.as_bytes()).unwrap().prompt.turns.unwrap();
        assert_eq!(turns(r#"{"prompt":[ "a b" ]}"#), br#""a b""#);
        assert_eq!(turns(r#"{"prompt":[[1, 2]]}"#), b"[1, 2]");
        assert_eq!(turns(r#"{"prompt":[7]}"#), b"[7]");
    }

    #[test]
    fn stream_options_are_found_with_their_byte_range() {
        let json = br#"{"stream_options" : {"include_usage":true} ,"stream":true}"#;
        let body = Body::read(json).unwrap();
        assert_eq!(body.stream_options(), Some(&br#"{"include_usage":true}"#[..]));
        assert_eq!(&json[body.stream_options_range().unwrap()], br#"{"include_usage":true}"#);
        let body = Body::read(br#"{"stream_options":null}"#).unwrap();
        assert_eq!((body.stream_options(), body.stream_options_range()), (None, Some(18..22)));
    }

    #[test]
    fn tokens_are_counted_or_estimated() {
        let tokens = |json: &str| Body::read(json.as_bytes()).unwrap().prompt_tokens();
        assert_eq!(tokens(r#"{"prompt":[ 1, 2,3]}"#), 3);
        assert_eq!(tokens(r#"{"prompt":"0123456789"}"#), 3);
        assert_eq!(tokens("{}"), 0);
        let image = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}]}}]}}"#,
            "A".repeat(1 << 20)
        );
        assert!(tokens(&image) < 10, "a megabyte of image is not a megabyte of text");
    }
}
