//! Fields and items of JSON in a request, as slices.

use crate::align::unaligned::Unrendered;
use crate::json::{Cursor, Kind, RawStr};

/// Values of some fields of an object; `None` for absent fields and null. Of a repeated key the last one counts.
pub(super) fn fields<'a, const N: usize>(
    object: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a [u8]>; N], Unrendered> {
    let mut found = [None; N];
    let read = Cursor::new(object).object(|key, value| {
        let value = value.value()?;
        if let Some(place) = names.iter().position(|name| name.as_bytes() == &*key.unescaped()) {
            found[place] = Some(value).filter(|value| *value != b"null");
        }
        Ok(())
    });
    read.map_err(|_| Unrendered::Shape).map(|()| found)
}

/// Whether an object has a field, even if null.
pub(super) fn has_field(object: &[u8], name: &str) -> Result<bool, Unrendered> {
    let mut is_there = false;
    let read = Cursor::new(object).object(|key, value| {
        is_there |= &*key.unescaped() == name.as_bytes();
        value.skip_value()
    });
    read.map_err(|_| Unrendered::Shape).map(|()| is_there)
}

/// Items of a list.
pub(super) fn items(list: &[u8]) -> Result<Vec<&[u8]>, Unrendered> {
    let mut items = Vec::new();
    let read = Cursor::new(list).array(|item| item.value().map(|item| items.push(item)));
    read.map_err(|_| Unrendered::Shape).map(|()| items)
}

/// Whether a value is a string.
pub(super) fn is_string(value: &[u8]) -> bool {
    Cursor::new(value).kind() == Kind::String
}

/// Content of a string with its escapes; `None` for other values.
pub(super) fn string(value: &[u8]) -> Option<&[u8]> {
    Cursor::new(value).string().ok().map(|raw| raw.0)
}

/// Content of a string that must be one; a missing value is an empty string.
pub(super) fn string_or_empty(value: Option<&[u8]>) -> Result<&[u8], Unrendered> {
    value.map_or(Some(&b""[..]), string).ok_or(Unrendered::Shape)
}

/// Whether a value is the string `word`.
pub(super) fn is_word(value: Option<&[u8]>, word: &str) -> bool {
    value.and_then(string).is_some_and(|raw| *RawStr(raw).unescaped() == *word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_text_is_compared_without_its_escapes() {
        assert!(RawStr(br"x-head: 1").starts_with("x-head"));
        assert!(RawStr(br"\u0078-he\u0061d").starts_with("x-head"));
        assert!(!RawStr(br"x-hea").starts_with("x-head"));
        assert!(!RawStr(br"\n x-head").starts_with("x-head"));
    }

    #[test]
    fn null_counts_as_absent_and_the_last_of_two_keys_counts() {
        let [a, b, c] = fields(br#"{"a":1,"b":null,"a":"\u0061","d":{}}"#, ["a", "b", "c"]).unwrap();
        assert_eq!((a, b, c), (Some(&br#""\u0061""#[..]), None, None));
        assert!(is_word(a, "a") && !is_word(c, "a"));
        assert!(has_field(br#"{"b":null}"#, "b").unwrap() && !has_field(b"{}", "b").unwrap());
        assert_eq!(fields(b"[]", ["a"]), Err(Unrendered::Shape));
    }
}
