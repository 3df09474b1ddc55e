//! Paths to values in a body, such as `metadata.user_id`.
//!
//! A path is followed while the body is read: the first name is compared with each field of the body, and only a value
//! under that name is searched further. Values are therefore read at most twice, and long ones once.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::json::{BadJson, Cursor, Kind};

/// Longer values are not searched. Names of sessions stand in small objects; prompts do not contain any.
const SEARCHED_BYTES_MAX: usize = 16 << 10;

/// Names from the outermost object inwards, with dots between them. A number is a place in a list, from zero. `\.` is a
/// dot within a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    names: Vec<String>,
}

impl FromStr for JsonPath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<JsonPath, &'static str> {
        let mut names = vec![String::new()];
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match (char, names.last_mut()) {
                ('.', _) => names.push(String::new()),
                ('\\', Some(name)) => name.push(chars.next().ok_or("a path must not end with a backslash")?),
                (other, Some(name)) => name.push(other),
                (_, None) => {}
            }
        }
        let is_empty = names.iter().any(String::is_empty);
        if is_empty { Err("a name in a path must not be empty") } else { Ok(JsonPath { names }) }
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |name: &String| name.replace('\\', "\\\\").replace('.', "\\.");
        f.write_str(&self.names.iter().map(escaped).collect::<Vec<_>>().join("."))
    }
}

impl JsonPath {
    /// Whether the path begins with this field of the body.
    pub(crate) fn begins_with(&self, field: &[u8]) -> bool {
        self.names[0].as_bytes() == field
    }

    /// The string or number at the end of the path, in the value of its first name.
    pub(crate) fn find<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        let inner = &self.names[1..];
        if !inner.is_empty() && value.len() > SEARCHED_BYTES_MAX {
            return None;
        }
        let found = inner.iter().try_fold(value, |value, name| member(value, name))?;
        matches!(found.first(), Some(b'"' | b'-' | b'0'..=b'9')).then_some(found)
    }
}

/// A field of an object or an item of a list. Of a repeated key the last one counts.
fn member<'a>(value: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (mut cursor, mut found) = (Cursor::new(value), None);
    let read: Result<(), BadJson> = match cursor.kind() {
        Kind::Object => cursor.object(|key, value| {
            let value = value.value()?;
            if *key.unescaped() == *name.as_bytes() {
                found = Some(value);
            }
            Ok(())
        }),
        Kind::Array => {
            let (wanted, mut place) = (name.parse::<usize>().ok()?, 0);
            cursor.array(|item| {
                let value = item.value()?;
                if place == wanted {
                    found = Some(value);
                }
                place += 1;
                Ok(())
            })
        }
        Kind::String | Kind::Other => return None,
    };
    read.ok().and(found)
}

/// The text of a string, or the digits of a number; `None` if empty.
pub(crate) fn text_of(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let text = match Cursor::new(value).string() {
        Ok(string) => string.unescaped(),
        Err(_) => Cow::Borrowed(value),
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> JsonPath {
        text.parse().unwrap()
    }

    #[test]
    fn paths_print_as_they_parse() {
        for text in ["user", "metadata.user_id", "a.0.b", r"a\.b.c", r"a\\b"] {
            assert_eq!(path(text).to_string(), text);
        }
        assert_eq!(path(r"a\.b.c").names, ["a.b", "c"]);
        for wrong in ["", ".", "a.", ".a", "a..b", "a\\"] {
            assert!(wrong.parse::<JsonPath>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn strings_and_numbers_are_found_at_any_depth() {
        let value = br#"{ "user_id" : "u\u002d1", "n": 42, "x": null, "list": [ {"id":"a"}, {"id":"b"} ], "user_id": "u2"}"#;
        let find = |at: &str| path(at).find(value).and_then(text_of);
        assert_eq!(find("metadata.user_id").unwrap(), "u2".as_bytes(), "the last one counts");
        assert_eq!(find("metadata.n").unwrap(), "42".as_bytes());
        assert_eq!(find("metadata.list.1.id").unwrap(), "b".as_bytes());
        for none in ["metadata", "metadata.x", "metadata.list", "metadata.list.2.id", "metadata.user_id.a"] {
            assert_eq!(find(none), None, "{none}");
        }
        assert_eq!(path("user").find(br#""u\u002d1""#).and_then(text_of).unwrap(), "u-1".as_bytes());
        assert_eq!(path("user").find(br#""""#).and_then(text_of), None);
    }

    #[test]
    fn long_values_are_not_searched() {
        let value = format!(r#"{{"id":"a","rest":"{}"}}"#, "x".repeat(SEARCHED_BYTES_MAX));
        assert_eq!(path("m.id").find(value.as_bytes()), None);
        let string = format!(r#""{}""#, "x".repeat(SEARCHED_BYTES_MAX));
        assert!(path("m").find(string.as_bytes()).is_some(), "a string needs no search");
    }
}
