//! A cursor over JSON bytes: finds fields, skips the rest, allocates nothing.
//!
//! serde_json would build a tree, and its raw values have no position. This walk returns slices of the body
//! with their positions, and finds string ends with wide compares, because prompts are long strings. The
//! cursor is strict about structure, so that it never reads a body differently from the engine. It is lenient
//! about string contents, which the engine checks.

use std::borrow::Cow;
use std::ops::Range;

/// Maximum nesting depth, the same as serde_json's.
const DEPTH_MAX: u32 = 128;

/// Error of invalid or unexpected JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at byte {at}")]
pub struct BadJson {
    /// Byte offset of the error.
    pub at: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl BadJson {
    /// Line and column of the error, both from 1.
    pub fn line_and_column(&self, body: &[u8]) -> (usize, usize) {
        let before = &body[..self.at.min(body.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
        (memchr::memchr_iter(b'\n', before).count() + 1, before.len() - line_start + 1)
    }
}

type Result<T> = std::result::Result<T, BadJson>;

/// Raw content of a string, with escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStr<'a>(pub(crate) &'a [u8]);

impl<'a> RawStr<'a> {
    /// Unescaped bytes.
    pub fn unescaped(self) -> Cow<'a, [u8]> {
        if memchr::memchr(b'\\', self.0).is_none() {
            return Cow::Borrowed(self.0);
        }
        let mut out = Vec::with_capacity(self.0.len());
        self.unescape(|piece| out.extend_from_slice(piece));
        Cow::Owned(out)
    }

    /// Whether the unescaped bytes start with `word`. Only the beginning is unescaped, because texts are long.
    pub(crate) fn starts_with(self, word: &str) -> bool {
        /// Length of the longest escape of one byte, `\u0041`.
        const ESCAPE_MAX: usize = 6;
        let beginning = &self.0[..self.0.len().min(word.len() * ESCAPE_MAX)];
        RawStr(beginning).unescaped().starts_with(word.as_bytes())
    }

    /// Unescaped text. A lone surrogate becomes the replacement character.
    pub(crate) fn text(self) -> String {
        match self.unescaped() {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Cow::Owned(bytes) => String::from_utf8(bytes)
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()),
        }
    }

    /// Passes on the unescaped bytes in pieces.
    pub fn unescape(self, mut push: impl FnMut(&[u8])) {
        let mut rest = self.0;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            push(&rest[..at]);
            let (length, bytes, used) = escape(&rest[at..]);
            push(&bytes[..length]);
            rest = &rest[(at + used).min(rest.len())..];
        }
        push(rest);
    }
}

/// Decodes the escape at the start of `raw`. Returns the number of bytes produced, the bytes, and the number
/// consumed.
fn escape(raw: &[u8]) -> (usize, [u8; 4], usize) {
    let simple = |byte: u8| (1, [byte, 0, 0, 0], 2);
    match raw.get(1) {
        Some(b'n') => simple(b'\n'),
        Some(b't') => simple(b'\t'),
        Some(b'r') => simple(b'\r'),
        Some(b'b') => simple(8),
        Some(b'f') => simple(12),
        Some(b'u') => unicode_escape(raw),
        Some(&other) => simple(other),
        None => (0, [0; 4], 1),
    }
}

fn unicode_escape(raw: &[u8]) -> (usize, [u8; 4], usize) {
    let Some(high) = hex4(raw) else { return (0, [0; 4], raw.len()) };
    if (0xd800..0xdc00).contains(&high)
        && let Some(low) = raw.get(6..).and_then(hex4)
        && (0xdc00..0xe000).contains(&low)
    {
        let (length, bytes) = utf8(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
        return (length, bytes, 12);
    }
    let (length, bytes) = utf8(high);
    (length, bytes, 6)
}

fn hex4(escape: &[u8]) -> Option<u32> {
    let digits =
        escape.strip_prefix(b"\\u")?.get(..4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// UTF-8 of a code point. A lone surrogate, which has none, uses the same bit pattern, so that it differs
/// from everything else.
fn utf8(code: u32) -> (usize, [u8; 4]) {
    let low = |shift: u32| 0x80 | ((code >> shift) & 0x3f) as u8;
    match code {
        0..0x80 => (1, [code as u8, 0, 0, 0]),
        0x80..0x800 => (2, [0xc0 | (code >> 6) as u8, low(0), 0, 0]),
        0x800..0x1_0000 => (3, [0xe0 | (code >> 12) as u8, low(6), low(0), 0]),
        _ => (4, [0xf0 | (code >> 18) as u8, low(12), low(6), low(0)]),
    }
}

/// Kind of the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Other,
}

/// A position in the bytes, before the next value.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    fn bad<T>(&self, expected: &'static str) -> Result<T> {
        Err(BadJson { at: self.at, expected })
    }

    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<()> {
        if self.eat(byte) { Ok(()) } else { self.bad(expected) }
    }

    /// Checks that only white space is left.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { self.bad("the end of the body") }
    }

    pub(crate) fn kind(&mut self) -> Kind {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            _ => Kind::Other,
        }
    }

    /// Walks an object; `field` receives each key and must consume its value.
    pub(crate) fn object(
        &mut self,
        mut field: impl FnMut(RawStr<'a>, &mut Cursor<'a>) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{', "an object")?;
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "a colon")?;
            field(key, self)?;
            if self.eat(b'}') {
                return Ok(());
            }
            self.expect(b',', "a comma or the end of the object")?;
        }
    }

    /// Walks an array; `item` must consume each value.
    pub(crate) fn array(&mut self, mut item: impl FnMut(&mut Cursor<'a>) -> Result<()>) -> Result<()> {
        self.expect(b'[', "an array")?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(b']') {
                return Ok(());
            }
            self.expect(b',', "a comma or the end of the array")?;
        }
    }

    pub(crate) fn string(&mut self) -> Result<RawStr<'a>> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        loop {
            match memchr::memchr2(b'"', b'\\', &self.bytes[self.at..]) {
                Some(found) if self.bytes[self.at + found] == b'"' => {
                    self.at += found + 1;
                    return Ok(RawStr(&self.bytes[start..self.at - 1]));
                }
                Some(found) => self.escape_at(self.at + found)?,
                None => {
                    self.at = self.bytes.len();
                    return self.bad("the end of a string");
                }
            }
        }
    }

    /// The next string, unescaped.
    pub(crate) fn text(&mut self) -> Result<String> {
        self.string().map(RawStr::text)
    }

    /// The next string, unescaped in pieces, in one pass.
    pub(crate) fn string_into(&mut self, mut push: impl FnMut(&[u8])) -> Result<()> {
        self.expect(b'"', "a string")?;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(found) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = self.bytes.len();
                return self.bad("the end of a string");
            };
            push(&rest[..found]);
            if rest[found] == b'"' {
                self.at += found + 1;
                return Ok(());
            }
            let begin = self.at + found;
            // Line breaks and quotes are nearly all escapes in practice.
            match rest.get(found + 1) {
                Some(b'n') => (self.at, _) = (begin + 2, push(b"\n")),
                Some(b'"') => (self.at, _) = (begin + 2, push(b"\"")),
                _ => {
                    self.escape_at(begin)?;
                    let (length, bytes, used) = escape(&rest[found..]);
                    push(&bytes[..length]);
                    // Two escaped surrogates are one character, so this may skip more than one escape.
                    self.at = begin + used;
                }
            }
        }
    }

    /// Skips the escape at `at`.
    fn escape_at(&mut self, at: usize) -> Result<()> {
        self.at = at;
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if self.bytes.get(at..).and_then(hex4).is_some() => self.at += 6,
            _ => return self.bad("a valid escape"),
        }
        Ok(())
    }

    /// The bytes of the next string and what follows it, without its opening quote; for a look at its beginning.
    pub(crate) fn peek_string(&self) -> RawStr<'a> {
        RawStr(self.bytes.get(self.at + 1..).unwrap_or_default())
    }

    /// The position, in bytes.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The position of a string's content that this cursor read.
    pub(crate) fn position_of(&self, string: RawStr<'a>) -> usize {
        string.0.as_ptr().addr() - self.bytes.as_ptr().addr()
    }

    /// The bytes from this position to a later one.
    pub(crate) fn up_to(&self, later: &Cursor<'a>) -> &'a [u8] {
        &self.bytes[self.at..later.at]
    }

    /// The next value as raw, validated JSON.
    pub(crate) fn value(&mut self) -> Result<&'a [u8]> {
        self.skip_space();
        let start = self.at;
        self.skip_value()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Byte range of the next value.
    pub(crate) fn value_range(&mut self) -> Result<Range<usize>> {
        self.skip_space();
        let start = self.at;
        self.skip_value()?;
        Ok(start..self.at)
    }

    /// Skips a value of any depth without recursion, so that a hostile body cannot overflow the stack.
    pub(crate) fn skip_value(&mut self) -> Result<()> {
        // One bit per open bracket: 1 for an object, 0 for an array.
        let (mut open, mut depth) = (0_u128, 0_u32);
        loop {
            match self.kind() {
                Kind::String => _ = self.string()?,
                Kind::Other => self.scalar()?,
                bracket => {
                    if depth == DEPTH_MAX {
                        return self.bad("less nesting");
                    }
                    self.at += 1;
                    open = open << 1 | u128::from(bracket == Kind::Object);
                    depth += 1;
                    if !self.eat(if bracket == Kind::Object { b'}' } else { b']' }) {
                        self.key_of(bracket)?;
                        continue;
                    }
                    (open, depth) = (open >> 1, depth - 1);
                }
            }
            // A value is complete: close the brackets that end here, or continue with the next value.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let (bracket, end) = if open & 1 == 1 { (Kind::Object, b'}') } else { (Kind::Array, b']') };
                if self.eat(end) {
                    (open, depth) = (open >> 1, depth - 1);
                    continue;
                }
                self.expect(b',', "a comma or a closing bracket")?;
                self.key_of(bracket)?;
                break;
            }
        }
    }

    fn key_of(&mut self, bracket: Kind) -> Result<()> {
        if bracket == Kind::Object {
            self.string()?;
            self.expect(b':', "a colon")?;
        }
        Ok(())
    }

    /// Skips a number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Result<()> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)).count();
        let word = &rest[..length];
        if !(matches!(word, b"true" | b"false" | b"null") || is_number(word)) {
            return self.bad("a value");
        }
        self.at += length;
        Ok(())
    }
}

fn is_number(word: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    let unsigned = word.strip_prefix(b"-").unwrap_or(word);
    let whole = digits(unsigned);
    if whole == 0 || (whole > 1 && unsigned[0] == b'0') {
        return false;
    }
    let mut rest = &unsigned[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let length = digits(fraction);
        if length == 0 {
            return false;
        }
        rest = &fraction[length..];
    }
    match rest {
        [] => true,
        [b'e' | b'E', exponent @ ..] => {
            let exponent = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_json(text: &str) -> bool {
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.skip_value().and_then(|()| cursor.end()).is_ok()
    }

    #[test]
    fn structure_is_accepted_exactly_as_by_serde_json() {
        for text in [
            "{}",
            "[]",
            "0",
            "-1.5e+3",
            "01",
            "1.",
            ".5",
            "1e",
            "--1",
            "true",
            "tru",
            "null,",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\\ud83d\\ude00\"",
            "[1,]",
            "[,1]",
            "{\"a\":1,}",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "[1 2]",
            "[[],{}]",
            " [ 1 , {\"a\" : [ ] } ] ",
            "{\"a\":1}}",
            "[1}",
            "{\"a\":[1}",
            "",
            " ",
            "[\"\\\\\"]",
        ] {
            let truth = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            assert_eq!(is_json(text), truth, "{text}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        assert!(is_json(&format!("{}{}", "[".repeat(128), "]".repeat(128))));
        assert!(!is_json(&format!("{}{}", "[".repeat(129), "]".repeat(129))));
        assert!(!is_json(&"[{\"a\":".repeat(100_000)));
    }

    #[test]
    fn errors_have_the_right_line_and_column() {
        let body = b"{\n  \"model\": \"m\",\n  \"stream\": maybe\n}";
        let bad = Cursor::new(body).skip_value().unwrap_err();
        assert_eq!((bad.line_and_column(body), bad.expected), ((3, 13), "a value"));
    }

    proptest! {
        #[test]
        fn strings_are_unescaped_as_by_serde_json(text in "\\PC*|[\\x00-\\x7f\"\\\\]*") {
            let json = serde_json::to_string(&text).unwrap();
            let raw = Cursor::new(json.as_bytes()).string().unwrap();
            prop_assert_eq!(raw.unescaped(), text.as_bytes());
            let mut pieces = Vec::new();
            Cursor::new(json.as_bytes()).string_into(|piece| pieces.extend_from_slice(piece)).unwrap();
            prop_assert_eq!(pieces, text.as_bytes());
        }

        #[test]
        fn escaped_code_points_are_decoded_as_by_serde_json(text in prop::collection::vec(any::<char>(), 0..20)) {
            let escaped: String = text.iter().flat_map(|c| {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>()
            }).collect();
            let json = format!("\"{escaped}\"");
            let truth: String = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(Cursor::new(json.as_bytes()).string().unwrap().unescaped(), truth.as_bytes());
            let mut pieces = Vec::new();
            Cursor::new(json.as_bytes()).string_into(|piece| pieces.extend_from_slice(piece)).unwrap();
            prop_assert_eq!(pieces, truth.as_bytes());
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\u0d8-1.e tfn\n\xff".to_vec()), 0..60)) {
            let mut cursor = Cursor::new(&bytes);
            if let Err(bad) = cursor.skip_value() {
                bad.line_and_column(&bytes);
            }
            RawStr(&bytes).unescaped();
        }

        #[test]
        fn skipped_values_are_those_that_serde_json_accepts(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\n1.e t".to_vec()), 0..12)) {
            let text = std::str::from_utf8(&bytes).unwrap();
            let truth = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            prop_assert_eq!(is_json(text), truth, "{}", text);
        }
    }
}
