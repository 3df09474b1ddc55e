//! Names of the fields that make up a prompt.

use std::fmt;

use crate::Api;
use crate::body::{TEMPLATE_FIELDS, TurnsKey};

/// Kind of a field, in the order in which templates write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// A setting that the template reads.
    Setting,
    /// The definition of a tool.
    Tools,
    /// The system prompt.
    System,
    /// A message or another item of the conversation.
    Turns,
}

/// Role of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `system` or `developer`
    System,
    /// `user`
    User,
    /// Any other, or none.
    Other,
}

/// Place of a field in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath {
    /// Kind of the field.
    pub field: Field,
    /// Role, for turns.
    pub role: Role,
    /// Name of the field.
    name: &'static str,
    /// Item of a list.
    pub item: Option<u32>,
    /// Whether it is the item's content.
    is_content: bool,
    /// Part of the content.
    part: Option<u32>,
}

impl FieldPath {
    fn new(field: Field, name: &'static str) -> FieldPath {
        FieldPath { field, role: Role::Other, name, item: None, is_content: false, part: None }
    }

    pub(super) fn setting(index: usize) -> FieldPath {
        FieldPath::new(Field::Setting, TEMPLATE_FIELDS[index])
    }

    pub(super) fn tools() -> FieldPath {
        FieldPath::new(Field::Tools, "tools")
    }

    pub(super) fn system(api: Api) -> FieldPath {
        let name = if api == Api::Responses { "instructions" } else { "system" };
        FieldPath { role: Role::System, ..FieldPath::new(Field::System, name) }
    }

    pub(super) fn turns(key: TurnsKey) -> FieldPath {
        let name = match key {
            TurnsKey::Messages => "messages",
            TurnsKey::Input => "input",
            TurnsKey::Prompt => "prompt",
            TurnsKey::Text => "text",
            TurnsKey::InputIds => "input_ids",
        };
        FieldPath::new(Field::Turns, name)
    }

    pub(super) fn item(self, item: usize) -> FieldPath {
        FieldPath { item: u32::try_from(item).ok(), ..self }
    }

    pub(super) fn of_role(self, role: &[u8]) -> FieldPath {
        let role = match role {
            b"system" | b"developer" => Role::System,
            b"user" => Role::User,
            _ => Role::Other,
        };
        FieldPath { role, ..self }
    }

    /// The content of a turn, or a part of it.
    pub(super) fn content(self, part: Option<usize>) -> FieldPath {
        FieldPath { is_content: true, part: part.and_then(|part| u32::try_from(part).ok()), ..self }
    }

    /// The field as a whole, without the item.
    pub fn whole(self) -> FieldPath {
        FieldPath { item: None, is_content: false, part: None, ..self }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.item.map_or(Ok(()), |item| write!(f, "[{item}]"))?;
        if self.is_content && self.field == Field::Turns && self.item.is_some() {
            f.write_str(".content")?;
        }
        self.part.map_or(Ok(()), |part| write!(f, "[{part}]"))
    }
}
