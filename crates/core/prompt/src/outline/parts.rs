//! Walks the fields of a prompt in the order of the canonical prompt, with the text of each.

use super::FieldPath;
use crate::attribution::Attribution;
use crate::canonical::{ContentPart, Speaker, is_bookkeeping, write_string};
use crate::json::{BadJson, Cursor, Kind, RawStr};
use crate::{Api, Body};

/// Ends the walk.
const ENOUGH: BadJson = BadJson { at: 0, expected: "nothing more" };

type Walk = Result<(), BadJson>;

/// Calls `visit` with each field and its text, until it returns false.
pub(super) fn visit_parts(
    body: &Body<'_>,
    api: Api,
    attribution: Attribution,
    visit: impl FnMut(FieldPath, &[u8]) -> bool,
) {
    let mut walker = Walker { visit, attribution, text: Vec::new() };
    let walked = walker.walk(body, api);
    debug_assert!(matches!(walked, Ok(()) | Err(ENOUGH)), "the body was checked when it was read");
}

struct Walker<V> {
    visit: V,
    attribution: Attribution,
    /// Text of the current field.
    text: Vec<u8>,
}

impl<V: FnMut(FieldPath, &[u8]) -> bool> Walker<V> {
    fn walk(&mut self, body: &Body<'_>, api: Api) -> Walk {
        for (index, value) in body.prompt.for_template.iter().enumerate() {
            value.map_or(Ok(()), |value| self.raw(FieldPath::setting(index), value))?;
        }
        if let Some(tools) = body.prompt.tools.filter(|tools| *tools != b"null") {
            self.items(tools, FieldPath::tools())?;
        }
        if let Some(system) = body.prompt.system.filter(|system| *system != b"null") {
            self.content(&mut Cursor::new(system), FieldPath::system(api), self.in_system())?;
        }
        let Some(turns) = body.prompt.turns else { return Ok(()) };
        let (mut turns, path) = (Cursor::new(turns), FieldPath::turns(body.prompt.turns_key));
        match turns.kind() {
            Kind::String => self.content(&mut turns, path, Speaker::Other),
            Kind::Array => {
                let mut index = 0;
                turns.array(|turn| {
                    index += 1;
                    self.turn(turn, path.item(index - 1))
                })
            }
            _ => Ok(()),
        }
    }

    fn raw(&mut self, path: FieldPath, text: &[u8]) -> Walk {
        if (self.visit)(path, text) { Ok(()) } else { Err(ENOUGH) }
    }

    /// Passes on what was collected.
    fn pass(&mut self, path: FieldPath) -> Walk {
        let text = std::mem::take(&mut self.text);
        let passed = self.raw(path, &text);
        self.text = text;
        self.text.clear();
        passed
    }

    fn items(&mut self, list: &[u8], path: FieldPath) -> Walk {
        let mut list = Cursor::new(list);
        if list.kind() != Kind::Array {
            return Ok(());
        }
        let mut index = 0;
        list.array(|item| {
            index += 1;
            ContentPart::read(item.value()?).write(&mut self.text);
            self.pass(path.item(index - 1))
        })
    }

    /// Who speaks in a system prompt: a prompt that keeps its attribution line is as any other text.
    fn in_system(&self) -> Speaker {
        match self.attribution {
            Attribution::Dropped => Speaker::System,
            Attribution::Kept => Speaker::Other,
        }
    }

    /// A string, or each of its parts. Positions in a text count from behind an attribution line that is dropped.
    fn content(&mut self, content: &mut Cursor<'_>, path: FieldPath, of: Speaker) -> Walk {
        match content.kind() {
            Kind::String => {
                write_string(content, of, &mut self.text)?;
                self.pass(path.content(None))
            }
            Kind::Array => {
                let mut index = 0;
                content.array(|part| {
                    index += 1;
                    let Some(part) = ContentPart::read(part.value()?).of(of) else { return Ok(()) };
                    part.write(&mut self.text);
                    self.pass(path.content(Some(index - 1)))
                })
            }
            _ => content.skip_value(),
        }
    }

    /// A message, or an item of another kind as it is.
    fn turn(&mut self, turn: &mut Cursor<'_>, path: FieldPath) -> Walk {
        let whole = turn.value()?;
        let (mut role, mut content) = (None, None);
        if Cursor::new(whole).kind() == Kind::Object {
            Cursor::new(whole).object(|key, value| {
                match key.0 {
                    b"role" if value.kind() == Kind::String => role = Some(value.string()?),
                    b"content" => content = Some(value.value()?),
                    _ => value.skip_value()?,
                }
                Ok(())
            })?;
        }
        let Some(role) = role else {
            ContentPart::read(whole).write(&mut self.text);
            return self.pass(path);
        };
        let path = path.of_role(role.0);
        let of = if role.0 == b"system" { self.in_system() } else { Speaker::Other };
        content.map_or(Ok(()), |content| self.content(&mut Cursor::new(content), path, of))?;
        self.other_fields(whole, path)
    }

    /// Fields of a message besides role and content, such as tool calls.
    fn other_fields(&mut self, message: &[u8], path: FieldPath) -> Walk {
        Cursor::new(message).object(|key: RawStr<'_>, value| {
            let raw = value.value()?;
            let is_written = !matches!(key.0, b"role" | b"content") && !is_bookkeeping(key);
            if is_written && raw != b"null" {
                self.text.extend_from_slice(key.0);
                self.text.extend_from_slice(raw);
            }
            Ok(())
        })?;
        if self.text.is_empty() { Ok(()) } else { self.pass(path) }
    }
}
