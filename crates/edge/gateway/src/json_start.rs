//! Whether a body begins like a JSON object.
//!
//! Engines in Python read JSON in UTF-8, UTF-16 and UTF-32, with a mark at its start or without, and some read it whatever
//! the content type says. The gateway reads UTF-8 only, so it must know which bodies an engine may read.

/// As many bytes tell the encoding.
pub(crate) const ENCODING_BYTES: usize = 4;

/// Whether a text begins with a brace, after space; `None` if only space has come. The encoding is found as Python's
/// parser finds it.
pub(crate) fn begins_object(bytes: &[u8]) -> Option<bool> {
    // Bytes a character, which of them has the value of an ASCII character, and the length of the mark.
    let (width, low, mark) = match bytes {
        [0, 0, 0xfe, 0xff, ..] => (4, 3, 4),
        [0xff, 0xfe, 0, 0, ..] => (4, 0, 4),
        [0xfe, 0xff, ..] => (2, 1, 2),
        [0xff, 0xfe, ..] => (2, 0, 2),
        [0xef, 0xbb, 0xbf, ..] => (1, 0, 3),
        [0, 0, ..] => (4, 3, 0),
        [0, _, ..] => (2, 1, 0),
        [_, 0, 0, 0, ..] => (4, 0, 0),
        [_, 0, ..] => (2, 0, 0),
        _ => (1, 0, 0),
    };
    let mut rest = &bytes[mark..];
    while rest.len() >= width {
        let (character, length) = match width {
            1 => first_character(rest)?,
            _ => (code_unit(&rest[..width], low), width),
        };
        if !is_space(character) {
            return Some(character == u32::from(b'{'));
        }
        rest = &rest[length..];
    }
    None
}

/// The first character of a text in UTF-8 and its length; `None` if the rest of it is still to come. A byte that is no
/// UTF-8 is taken for one of Latin-1.
fn first_character(bytes: &[u8]) -> Option<(u32, usize)> {
    let start = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => return None,
        Err(error) => std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default(),
    };
    match valid.chars().next() {
        Some(first) => Some((first.into(), first.len_utf8())),
        None => bytes.first().map(|byte| (u32::from(*byte), 1)),
    }
}

/// The number of a code unit whose lowest byte is at `low`: the first or the last.
fn code_unit(bytes: &[u8], low: usize) -> u32 {
    let join = |number: u32, byte: &u8| number << 8 | u32::from(*byte);
    if low == 0 { bytes.iter().rev().fold(0, join) } else { bytes.iter().fold(0, join) }
}

/// Whether a program may strip this character from the start of a text: JSON's space, and all that Python strips.
fn is_space(character: u32) -> bool {
    (0x1c..=0x1f).contains(&character) || char::from_u32(character).is_some_and(char::is_whitespace)
}

/// Whether a text is lines of JSON objects. No parser takes it for one object.
pub(crate) fn is_lines(bytes: &[u8]) -> bool {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    let mut count = 0;
    values.by_ref().all(|value| value.map(|_| count += 1).is_ok()) && count > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in UTF-8, UTF-16 and UTF-32 of both orders, with and without a mark.
    fn encodings(text: &str) -> Vec<Vec<u8>> {
        let utf16 = |bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        let utf32 =
            |bytes: fn(u32) -> [u8; 4]| text.chars().map(u32::from).flat_map(bytes).collect::<Vec<u8>>();
        let plain = [
            (text.as_bytes().to_vec(), &b"\xef\xbb\xbf"[..]),
            (utf16(u16::to_le_bytes), b"\xff\xfe"),
            (utf16(u16::to_be_bytes), b"\xfe\xff"),
            (utf32(u32::to_le_bytes), b"\xff\xfe\0\0"),
            (utf32(u32::to_be_bytes), b"\0\0\xfe\xff"),
        ];
        plain.into_iter().flat_map(|(bytes, mark)| [[mark, &bytes].concat(), bytes]).collect()
    }

    #[test]
    fn an_object_is_recognized_in_every_encoding() {
        for bytes in encodings(" \r\n\t{\"a\": NaN}") {
            assert_eq!(begins_object(&bytes), Some(true), "{bytes:x?}");
        }
        for bytes in encodings("--boundary\r\n{") {
            assert_eq!(begins_object(&bytes), Some(false), "{bytes:x?}");
        }
        for bytes in encodings("  ") {
            assert_eq!(begins_object(&bytes), None, "{bytes:x?}");
        }
    }

    #[test]
    fn spaces_of_any_kind_may_come_first() {
        for space in ["\u{b}", "\u{c}", "\u{1c}", "\u{85}", "\u{a0}", "\u{2028}", "\u{3000}"] {
            for bytes in encodings(&["  ", space, " {"].concat()) {
                assert_eq!(begins_object(&bytes), Some(true), "{space:?} {bytes:x?}");
                let cut = &bytes[..bytes.len() - 1];
                assert_ne!(begins_object(cut), Some(false), "{space:?} {cut:x?}");
            }
        }
        assert_eq!(begins_object(b"   \xa0{"), Some(true), "Latin-1");
        for cut in [&b"   \xe2"[..], b"   \xe2\x80", b"   \xc2"] {
            assert_eq!(begins_object(cut), None, "a space of which the rest is still to come");
        }
        assert_eq!(begins_object("  ä{".as_bytes()), Some(false));
    }

    #[test]
    fn lines_of_json_are_whole_objects() {
        assert!(is_lines(b"{\"a\":1}\n{\"a\":2}\n"));
        for other in
            [&b"{\"a\":1} \n"[..], b"{} x", b"{\"a\":NaN}\n{}", b"\xef\xbb\xbf{}\n{}", b"{\0}\0", b""]
        {
            assert!(!is_lines(other), "{other:x?}");
        }
    }

    #[test]
    fn recordings_and_pictures_are_none() {
        let starts: [&[u8]; 8] = [
            b"RIFF\x24\x08\0\0WAVE",
            b"ID3\x04\0\0\0{",
            b"\xff\xfb\x90\x64{",
            b"\xff\xd8\xff\xe0",
            b"\x89PNG\r\n",
            b"\0\0\0\x20ftypisom",
            b"OggS\0\x02",
            &[0; 64],
        ];
        for start in starts {
            assert_eq!(begins_object(start), Some(false), "{start:x?}");
        }
        assert_eq!(begins_object(b""), None);
    }
}
