//! Canonical prompt: the prompt as one byte string.
//!
//! Requests that an engine renders alike have the same bytes, and requests that differ early differ early
//! here. The order is: tools, system prompt, turns; per turn role, content, other fields. Separators are
//! bytes that UTF-8 never uses, so text cannot imitate them. An image is represented by its hash. Claude Code's attribution
//! line, which would separate conversations that engines render alike, is left out.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use crate::Body;
use crate::body::TEMPLATE_FIELDS;
use crate::json::{BadJson, Cursor, Kind, RawStr};

const TOOLS: u8 = 0xf8;
/// First byte of every message.
pub const MESSAGE: u8 = 0xf9;
const CONTENT: u8 = 0xfa;
const NEXT_PART: u8 = 0xfb;
/// Marks an image or a sound.
pub(crate) const MEDIA: u8 = 0xfc;
const FIELD: u8 = 0xfd;

/// Marks the end of what Anthropic's service caches.
const CACHE_MARK: &[u8] = b"cache_control";

/// Receiver of canonical bytes.
pub trait Sink {
    /// Receives the next bytes.
    fn push(&mut self, bytes: &[u8]);

    /// Called at the end of each user turn.
    fn user_turn_ended(&mut self) {}

    /// Whether the writer may stop.
    fn is_full(&self) -> bool {
        false
    }
}

impl Sink for Vec<u8> {
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes the whole prompt. The body was validated when read; a prompt of unknown shape is written verbatim.
pub fn write_prompt(body: &Body<'_>, sink: &mut impl Sink) {
    write_head(body, sink);
    if let Some(turns) = body.prompt.turns {
        write_turns(turns, sink, Turns::All);
    }
}

/// Writes the part that many users share: tools, system prompt and leading system turns.
pub fn write_system(body: &Body<'_>, sink: &mut impl Sink) {
    write_head(body, sink);
    if let Some(turns) = body.prompt.turns {
        write_turns(turns, sink, Turns::LeadingSystem);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Turns {
    All,
    LeadingSystem,
}

/// Internal signal that ends the walk over the turns early.
const ENOUGH: BadJson = BadJson { at: 0, expected: "nothing more" };

fn write_head(body: &Body<'_>, sink: &mut impl Sink) {
    for (name, value) in TEMPLATE_FIELDS.iter().zip(body.prompt.for_template) {
        if let Some(value) = value {
            sink.push(&[FIELD]);
            sink.push(name.as_bytes());
            sink.push(&[CONTENT]);
            sink.push(value);
        }
    }
    for medium in body.prompt.media.into_iter().flatten() {
        sink.push(&[MEDIA]);
        sink.push(&xxh3_64(medium).to_le_bytes());
    }
    if let Some(tools) = body.prompt.tools.filter(|tools| *tools != b"[]" && *tools != b"null") {
        sink.push(&[TOOLS]);
        sink.push(tools);
    }
    if let Some(system) = body.prompt.system.filter(|system| *system != b"null") {
        sink.push(&[MESSAGE]);
        sink.push(b"system");
        sink.push(&[CONTENT]);
        let written = write_content(&mut Cursor::new(system), Speaker::System, sink);
        debug_assert!(written.is_ok(), "the body was checked when it was read");
    }
}

fn write_turns(turns: &[u8], sink: &mut impl Sink, which: Turns) {
    let mut turns = Cursor::new(turns);
    let walked = match turns.kind() {
        Kind::String if which == Turns::All => turns.string_into(|piece| sink.push(piece)),
        Kind::Array => {
            turns.array(|item| if sink.is_full() { Err(ENOUGH) } else { write_turn(item, sink, which) })
        }
        _ => return,
    };
    debug_assert!(matches!(walked, Ok(()) | Err(ENOUGH)), "the body was checked when it was read");
}

/// Fields of a turn besides role and content that are kept without allocation; messages rarely have more than
/// two.
const OTHER_FIELDS: usize = 6;

/// An item of `messages`, `input` or `prompt` while it is read.
#[derive(Default)]
struct Turn<'a> {
    role: Option<RawStr<'a>>,
    /// Content found before the role, which must be written first.
    early_content: Option<&'a [u8]>,
    others: [Option<(RawStr<'a>, &'a [u8])>; OTHER_FIELDS],
    others_len: usize,
}

/// Writes an item, in one pass if its role precedes its content, as is usual.
fn write_turn<'a>(item: &mut Cursor<'a>, sink: &mut impl Sink, which: Turns) -> Result<(), BadJson> {
    if item.kind() != Kind::Object {
        return stand_for_itself(item.value()?, sink, which);
    }
    let start = item.clone();
    let mut turn = Turn::default();
    item.object(|key, value| {
        match key.0 {
            b"role" if value.kind() == Kind::String => turn.begin(value.string()?, sink, which)?,
            b"content" if let Some(role) = turn.role => write_content(value, Speaker::of(role), sink)?,
            b"content" => turn.early_content = Some(value.value()?),
            _ => turn.keep(key, value.value()?, sink),
        }
        Ok(())
    })?;
    if turn.role.is_none() {
        return stand_for_itself(start.up_to(item), sink, which);
    }
    turn.others.iter().flatten().for_each(|(key, raw)| write_field(*key, raw, sink));
    if turn.role == Some(RawStr(b"user")) {
        sink.user_turn_ended();
    }
    Ok(())
}

/// Writes an item that is not a message: a function result, a token id, or one of several prompts.
fn stand_for_itself(whole: &[u8], sink: &mut impl Sink, which: Turns) -> Result<(), BadJson> {
    if which == Turns::LeadingSystem {
        return Err(ENOUGH);
    }
    sink.push(&[FIELD]);
    sink.push(whole);
    Ok(())
}

impl<'a> Turn<'a> {
    fn begin(&mut self, role: RawStr<'a>, sink: &mut impl Sink, which: Turns) -> Result<(), BadJson> {
        if which == Turns::LeadingSystem && !matches!(role.0, b"system" | b"developer") {
            return Err(ENOUGH);
        }
        self.role = Some(role);
        sink.push(&[MESSAGE]);
        sink.push(role.0);
        sink.push(&[CONTENT]);
        match self.early_content.take() {
            Some(content) => write_content(&mut Cursor::new(content), Speaker::of(role), sink),
            None => Ok(()),
        }
    }

    /// Keeps other fields, such as tool calls and names, to write them after the content. Fields beyond the
    /// limit are written at once.
    fn keep(&mut self, key: RawStr<'a>, raw: &'a [u8], sink: &mut impl Sink) {
        if raw == b"null" || is_bookkeeping(key) {
            return;
        }
        match self.others.get_mut(self.others_len) {
            Some(other) => *other = Some((key, raw)),
            None => write_field(key, raw, sink),
        }
        self.others_len += 1;
    }
}

/// Whether a field of a turn is for the client's and the service's records. Codex gives every item an id of its own,
/// so that conversations with the same text would share nothing.
pub(crate) fn is_bookkeeping(key: RawStr<'_>) -> bool {
    matches!(key.0, b"id" | b"status")
}

fn write_field(key: RawStr<'_>, raw: &[u8], sink: &mut impl Sink) {
    sink.push(&[FIELD]);
    sink.push(key.0);
    sink.push(&[CONTENT]);
    sink.push(raw);
}

/// Whose content it is. Only system prompts have an attribution line.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Speaker {
    System,
    Other,
}

impl Speaker {
    fn of(role: RawStr<'_>) -> Speaker {
        if role.0 == b"system" { Speaker::System } else { Speaker::Other }
    }
}

/// Writes a string or parts. Parts are separated, but a single text part equals a string.
fn write_content(content: &mut Cursor<'_>, of: Speaker, sink: &mut impl Sink) -> Result<(), BadJson> {
    match content.kind() {
        Kind::String => write_string(content, of, sink),
        Kind::Array => {
            let mut is_first = true;
            content.array(|part| {
                let Some(part) = ContentPart::read(part.value()?).of(of) else { return Ok(()) };
                if !is_first {
                    sink.push(&[NEXT_PART]);
                }
                is_first = false;
                part.write(sink);
                Ok(())
            })
        }
        _ => content.skip_value(),
    }
}

/// Writes a string in one pass, unless its beginning is left out.
pub(crate) fn write_string(
    string: &mut Cursor<'_>,
    of: Speaker,
    sink: &mut impl Sink,
) -> Result<(), BadJson> {
    if of == Speaker::Other || !string.peek_string().has_attribution() {
        return string.string_into(|piece| sink.push(piece));
    }
    let rest = string.string()?.without_attribution();
    rest.into_iter().for_each(|rest| rest.unescape(|piece| sink.push(piece)));
    Ok(())
}

/// A part of a content.
#[derive(Clone, Copy)]
pub(crate) enum ContentPart<'a> {
    Text(RawStr<'a>),
    Media(&'a [u8]),
    Other(&'a [u8]),
}

impl<'a> ContentPart<'a> {
    pub(crate) fn read(part: &'a [u8]) -> ContentPart<'a> {
        let (mut kind, mut text) = (None, None);
        let read = Cursor::new(part).object(|key, value| {
            match key.0 {
                b"type" if value.kind() == Kind::String => kind = Some(value.string()?),
                b"text" if value.kind() == Kind::String => text = Some(value.string()?),
                _ => value.skip_value()?,
            }
            Ok(())
        });
        match (read, kind.map(|kind| kind.0), text) {
            (Ok(()), Some(b"text" | b"input_text" | b"output_text"), Some(text)) => ContentPart::Text(text),
            (Ok(()), Some(b"image_url" | b"input_image" | b"image" | b"input_audio" | b"video_url"), _) => {
                ContentPart::Media(part)
            }
            _ => ContentPart::Other(part),
        }
    }

    /// The part of a speaker's content as engines render it; `None` if they leave it out.
    pub(crate) fn of(self, speaker: Speaker) -> Option<ContentPart<'a>> {
        match (self, speaker) {
            (ContentPart::Text(text), Speaker::System) => text.without_attribution().map(ContentPart::Text),
            _ => Some(self),
        }
    }

    pub(crate) fn write(self, sink: &mut impl Sink) {
        match self {
            ContentPart::Text(text) => text.unescape(|piece| sink.push(piece)),
            ContentPart::Media(part) => {
                sink.push(&[MEDIA]);
                sink.push(&xxh3_64(part).to_le_bytes());
            }
            ContentPart::Other(part) => {
                sink.push(&[FIELD]);
                sink.push(&without_cache_mark(part));
            }
        }
    }
}

/// The part without `cache_control`, which templates do not read. Clients move it from part to part as a conversation
/// grows, so it would make equal prompts differ.
fn without_cache_mark(part: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memmem::find(part, CACHE_MARK).is_none() {
        return Cow::Borrowed(part);
    }
    let mut marks = Vec::new();
    let read = Cursor::new(part).object(|key, value| {
        value.skip_value()?;
        if key.0 == CACHE_MARK {
            marks.push(value.position_of(key) - 1..value.position());
        }
        Ok(())
    });
    if read.is_ok() { Cow::Owned(Body::without_fields(part, &marks)) } else { Cow::Borrowed(part) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn canonical(body: &Value) -> Vec<u8> {
        let text = body.to_string();
        let mut out = Vec::new();
        write_prompt(&Body::read(text.as_bytes()).unwrap(), &mut out);
        out
    }

    fn system(body: &Value) -> Vec<u8> {
        let text = body.to_string();
        let mut out = Vec::new();
        write_system(&Body::read(text.as_bytes()).unwrap(), &mut out);
        out
    }

    fn chat(turns: &[(&str, &str)]) -> Value {
        let messages: Vec<_> =
            turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        json!({ "messages": messages })
    }

    #[test]
    fn a_longer_conversation_starts_with_the_shorter_one() {
        let before = canonical(&chat(&[("system", "Be brief."), ("user", "Hi\n\"you\"")]));
        let after = canonical(&chat(&[
            ("system", "Be brief."),
            ("user", "Hi\n\"you\""),
            ("assistant", "Hello."),
            ("user", "Bye"),
        ]));
        assert!(after.starts_with(&before));
        assert_eq!(before, b"\xf9system\xfaBe brief.\xf9user\xfaHi\n\"you\"");
    }

    #[test]
    fn every_field_that_a_template_reads_changes_the_bytes() {
        let plain = chat(&[("user", "Hi")]);
        let others = [
            chat(&[("assistant", "Hi")]),
            json!({"messages": plain["messages"], "tools": [{"type": "function"}]}),
            json!({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]}),
            json!({"messages": [{"role": "user", "content": "Hi", "tool_calls": [{"id": "1"}]}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]}),
            json!({"messages": plain["messages"], "system": "Be brief."}),
            json!({"messages": plain["messages"], "chat_template_kwargs": {"thinking": true}}),
        ];
        for other in &others {
            assert_ne!(canonical(&plain), canonical(other), "{other}");
        }
    }

    #[test]
    fn equivalent_notations_have_the_same_bytes() {
        let plain = canonical(&chat(&[("user", "Hi")]));
        for other in [
            json!({"messages": [{"content": "Hi", "role": "user"}], "tools": []}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": null}),
            json!({"messages": [{"role": "user", "content": "Hi", "name": null}], "temperature": 0.5}),
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}),
            json!({"input": [{"id": "msg_1", "role": "user", "content": "Hi", "status": "completed"}]}),
        ] {
            assert_eq!(plain, canonical(&other), "{other}");
        }
    }

    #[test]
    fn a_cache_mark_that_moves_on_changes_nothing() {
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "cache_control"});
        let with_mark = |id: &str| {
            let mut result = result(id);
            result["cache_control"] = json!({"type": "ephemeral"});
            result
        };
        let chat = |parts: Value| canonical(&json!({"messages": [{"role": "user", "content": parts}]}));
        let before = chat(json!([result("a"), with_mark("b")]));
        assert_eq!(before, chat(json!([result("a"), result("b")])));
        assert!(chat(json!([result("a"), result("b"), with_mark("c")])).starts_with(&before));
        assert_ne!(before, chat(json!([result("a"), result("c")])));
    }

    #[test]
    fn an_attribution_line_in_the_system_prompt_changes_nothing() {
        let line = |n: u32| format!("x-anthropic-billing-header: cc_version=2.1.{n}; cch={n:05x};");
        let turns = json!([{"role": "user", "content": line(1)}]);
        let text = |text: &str| json!({"type": "text", "text": text});
        let messages = |system: Value| canonical(&json!({"system": system, "messages": turns}));
        let plain = messages(json!([text("Be brief."), text("Be kind.")]));
        for n in [1, 2] {
            assert_eq!(messages(json!([text(&line(n)), text("Be brief."), text("Be kind.")])), plain);
            assert_eq!(messages(json!(line(n) + "\nBe brief.")), messages(json!("Be brief.")));
            assert_eq!(
                canonical(&chat(&[("system", &(line(n) + "\nBe brief."))])),
                canonical(&chat(&[("system", "Be brief.")]))
            );
        }
        let asked = |n: u32| canonical(&chat(&[("user", &line(n))]));
        assert_ne!(asked(1), asked(2), "of others it is text");
    }

    #[test]
    fn an_image_is_represented_by_its_hash_at_its_position() {
        let with = |url: &str| {
            canonical(&json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": url}},
            ]}]}))
        };
        let (cat, dog) = (with(&"cat".repeat(10_000)), with(&"dog".repeat(10_000)));
        assert_eq!((cat.len(), dog.len()), (cat.len(), cat.len()));
        assert!(cat.len() < 40);
        assert_ne!(cat, dog);
    }

    #[test]
    fn the_shared_part_ends_before_the_first_user_turn() {
        let body = chat(&[("system", "Be brief."), ("user", "Hi"), ("system", "And kind.")]);
        assert_eq!(system(&body), b"\xf9system\xfaBe brief.");
        assert_eq!(system(&chat(&[("user", "Hi")])), b"");
        assert_eq!(system(&json!({"system": "Be brief.", "messages": []})), b"\xf9system\xfaBe brief.");
    }

    #[test]
    fn plain_prompts_are_their_own_text() {
        assert_eq!(canonical(&json!({"prompt": "Once upon"})), b"Once upon");
        assert_eq!(canonical(&json!({"prompt": ["a", "b"]})), b"\xfd\"a\"\xfd\"b\"");
        assert_eq!(canonical(&json!({"prompt": [1, 22]})), b"\xfd1\xfd22");
    }

    proptest! {
        /// Conversations share canonical bytes exactly as far as they share turns and text.
        #[test]
        fn prompts_that_differ_early_differ_early(
            shared in "\\PC{0,20}", left in "[a-m]{1,9}", right in "[n-z]{1,9}", role in "user|system",
        ) {
            let prompt = |end: &str| canonical(&chat(&[(&role, &format!("{shared}{end}")), ("assistant", "same")]));
            let (left, right) = (prompt(&left), prompt(&right));
            let common = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common, 2 + role.len() + shared.len());
        }
    }
}
