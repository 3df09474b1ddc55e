//! Template values from the JSON of a body.
//!
//! Without an intermediate tree: objects keep their key order, integers stay integers, and a string without
//! escapes is copied once.

use std::borrow::Cow;

use minijinja::Value;

use super::unaligned::Unrendered;
use crate::body::PromptFields;
use crate::json::{BadJson, Cursor, Kind, RawStr};

/// Value of a slice with one JSON value.
pub(crate) fn value_of(json: &[u8]) -> Result<Value, Unrendered> {
    next(&mut Cursor::new(json)).map_err(|_| Unrendered::Shape)
}

/// A setting that is true or false; `None` if it is absent. Engines also take some words and numbers for true or false;
/// what they make of those is not followed.
pub(crate) fn flag(fields: &PromptFields<'_>, name: &str) -> Result<Option<bool>, Unrendered> {
    match fields.setting(name) {
        None => Ok(None),
        Some(b"true") => Ok(Some(true)),
        Some(b"false") => Ok(Some(false)),
        Some(_) => Err(Unrendered::Shape),
    }
}

/// Text of a string. A lone surrogate is refused, because engines cannot tokenize it.
pub(crate) fn text_of(raw: RawStr<'_>) -> Result<Cow<'_, str>, Unrendered> {
    match raw.unescaped() {
        Cow::Borrowed(bytes) => {
            simdutf8::basic::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| Unrendered::Shape)
        }
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Unrendered::Shape),
    }
}

const NOT_UNICODE: BadJson = BadJson { at: 0, expected: "Unicode" };

fn next(cursor: &mut Cursor<'_>) -> Result<Value, BadJson> {
    match cursor.kind() {
        Kind::String => text_of(cursor.string()?).map(Value::from).map_err(|_| NOT_UNICODE),
        Kind::Array => {
            let mut items = Vec::new();
            cursor.array(|item| next(item).map(|item| items.push(item)))?;
            Ok(Value::from(items))
        }
        Kind::Object => {
            let mut fields = Vec::new();
            cursor.object(|key, value| {
                let key = text_of(key).map_err(|_| NOT_UNICODE)?;
                next(value).map(|value| fields.push((Value::from(key), value)))
            })?;
            Ok(Value::from_pairs(fields))
        }
        Kind::Other => scalar(cursor.value()?),
    }
}

fn scalar(word: &[u8]) -> Result<Value, BadJson> {
    let word = str::from_utf8(word).map_err(|_| NOT_UNICODE)?;
    Ok(match word {
        "null" => Value::from(()),
        "true" => Value::from(true),
        "false" => Value::from(false),
        number => match (number.parse::<i64>(), number.parse::<f64>()) {
            (Ok(whole), _) => Value::from(whole),
            (Err(_), Ok(_)) if number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                number.parse::<i128>().map(Value::from).map_err(|_| NOT_UNICODE)?
            }
            (Err(_), Ok(float)) => Value::from(float),
            (Err(_), Err(_)) => return Err(NOT_UNICODE),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_those_of_the_body() {
        let value =
            value_of(r#"{"b":[1,1.0,-2e-7,18446744073709551616],"a":{"\u00e9":null,"x":"y\n"}}"#.as_bytes())
                .unwrap();
        assert_eq!(
            value.to_string(),
            r"{'b': [1, 1.0, -2e-7, 18446744073709551616], 'a': {'é': None, 'x': 'y\n'}}"
        );
        assert_eq!(value_of(br#""\ud800""#), Err(Unrendered::Shape), "a lone surrogate");
    }
}
