//! Tool definitions of both APIs, written as a chat's tools.

use super::chat_message::write_texts;
use super::object::has_field;
use crate::align::unaligned::Unrendered;

/// A tool, in slices of the request.
#[derive(Clone, Debug)]
pub(super) struct ToolDefinition<'a> {
    /// Parts of the name, with their escapes.
    pub name: Vec<&'a [u8]>,
    /// JSON values, as the following fields.
    pub description: Option<&'a [u8]>,
    pub parameters: Parameters<'a>,
    pub strict: Option<&'a [u8]>,
    pub defer_loading: Option<&'a [u8]>,
}

/// Schema of a tool's arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parameters<'a> {
    /// As in the request, or null.
    Json(Option<&'a [u8]>),
    /// As in the request, and of type `object` if it names no type.
    Typed(&'a [u8]),
    /// One text argument, as vLLM declares it for a tool that takes free text.
    FreeText,
}

/// vLLM's schema of the function that stands for a tool of free text. The words are part of the prompt.
const FREE_TEXT: &str = concat!(
    r#"{"type":"object","properties":{"input":{"type":"string","#,
    r#""description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}"#
);

impl ToolDefinition<'_> {
    /// Writes the tool as a chat's tool.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), Unrendered> {
        out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
        write_texts(&self.name, "", out);
        out.extend_from_slice(b",\"parameters\":");
        self.parameters.write(out)?;
        let others = [
            ("description", self.description),
            ("strict", self.strict),
            ("defer_loading", self.defer_loading),
        ];
        for (name, value) in others {
            if let Some(value) = value {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                out.extend_from_slice(value);
            }
        }
        out.extend_from_slice(b"}}");
        Ok(())
    }
}

impl Parameters<'_> {
    fn write(&self, out: &mut Vec<u8>) -> Result<(), Unrendered> {
        match self {
            Parameters::Json(schema) => out.extend_from_slice(schema.unwrap_or(b"null")),
            Parameters::FreeText => out.extend_from_slice(FREE_TEXT.as_bytes()),
            Parameters::Typed(schema) if has_field(schema, "type")? => out.extend_from_slice(schema),
            Parameters::Typed(schema) => {
                // The added type is the last field.
                let open = schema.trim_ascii_end().strip_suffix(b"}").ok_or(Unrendered::Shape)?;
                let is_empty = open.trim_ascii() == b"{";
                out.extend_from_slice(open);
                out.extend_from_slice(if is_empty { b"" } else { b"," });
                out.extend_from_slice(b"\"type\":\"object\"}");
            }
        }
        Ok(())
    }
}

/// JSON of all tools.
pub(super) fn to_json(tools: &[ToolDefinition<'_>]) -> Result<Vec<u8>, Unrendered> {
    let mut out = vec![b'['];
    for (n, tool) in tools.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        tool.write(&mut out)?;
    }
    out.push(b']');
    Ok(out)
}
