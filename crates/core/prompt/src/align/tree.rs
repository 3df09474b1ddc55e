//! Small parts of a model's files, as a tree.
//!
//! A normalizer or a list of special tokens is a few kilobytes, read once, so a tree is simplest. A
//! vocabulary is megabytes, so it stays a slice of the file and is walked in place.

use super::unaligned::Unaligned;
use crate::json::{BadJson, Cursor, Kind};

/// A JSON value. Numbers keep their spelling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl Json {
    /// Reads a whole document.
    pub fn read(bytes: &[u8]) -> Result<Json, BadJson> {
        // Skipping refuses documents that are nested too deep for the stack.
        Cursor::new(bytes).skip_value()?;
        let mut cursor = Cursor::new(bytes);
        let tree = Json::next(&mut cursor)?;
        cursor.end()?;
        Ok(tree)
    }

    /// Reads a file that a model may lack.
    pub fn of(file: &'static str, bytes: Option<&[u8]>) -> Result<Json, Unaligned> {
        match bytes {
            Some(bytes) => Json::read(bytes).map_err(|problem| Unaligned::BrokenFile { file, problem }),
            None => Ok(Json::Null),
        }
    }

    fn next(cursor: &mut Cursor<'_>) -> Result<Json, BadJson> {
        match cursor.kind() {
            Kind::String => Ok(Json::Text(cursor.text()?)),
            Kind::Array => {
                let mut items = Vec::new();
                cursor.array(|item| Json::next(item).map(|item| items.push(item)))?;
                Ok(Json::List(items))
            }
            Kind::Object => {
                let mut fields = Vec::new();
                cursor
                    .object(|key, value| Json::next(value).map(|value| fields.push((key.text(), value))))?;
                Ok(Json::Map(fields))
            }
            Kind::Other => Ok(Json::scalar(cursor.value()?)),
        }
    }

    fn scalar(word: &[u8]) -> Json {
        match word {
            b"null" => Json::Null,
            b"true" => Json::Bool(true),
            b"false" => Json::Bool(false),
            number => Json::Number(String::from_utf8_lossy(number).into_owned()),
        }
    }

    /// A field; `Null` if absent, because files omit unset fields.
    pub fn get(&self, name: &str) -> &Json {
        self.fields().iter().rev().find(|(key, _)| key == name).map_or(&Json::Null, |(_, value)| value)
    }

    pub fn fields(&self) -> &[(String, Json)] {
        match self {
            Json::Map(fields) => fields,
            _ => &[],
        }
    }

    pub fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn number<T: std::str::FromStr>(&self) -> Option<T> {
        match self {
            Json::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// Whether the value is `true`.
    pub fn is_true(&self) -> bool {
        *self == Json::Bool(true)
    }

    pub fn is_null(&self) -> bool {
        *self == Json::Null
    }

    /// The `type` of a step or model.
    pub fn type_name(&self) -> &str {
        self.get("type").text().unwrap_or("untyped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_the_values_of_its_document() {
        let tree = Json::read(br#"{"a":[1,"\u00e9",null],"b":{"c":true},"b":{"c":false}}"#).unwrap();
        assert_eq!(tree.get("a").items()[0].number(), Some(1));
        assert_eq!(tree.get("a").items()[1].text(), Some("é"));
        assert_eq!(tree.get("b").get("c"), &Json::Bool(false), "the last of two equal keys counts");
        assert!(tree.get("missing").get("deeper").is_null());
        assert!(Json::read(b"{} x").is_err());
        assert!(Json::read("[".repeat(1 << 20).as_bytes()).is_err(), "and the stack holds");
    }
}
