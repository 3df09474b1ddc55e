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
    for character in bytes[mark..].chunks_exact(width) {
        let is_ascii = character.iter().enumerate().all(|(at, byte)| at == low || *byte == 0);
        match character[low] {
            b' ' | b'\t' | b'\n' | b'\r' if is_ascii => {}
            byte => return Some(is_ascii && byte == b'{'),
        }
    }
    None
}

/// Whether a text is a JSON value with more behind it, as in lines of JSON. No parser takes it for one object.
pub(crate) fn is_several_values(bytes: &[u8]) -> bool {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    let is_first_whole = matches!(values.next(), Some(Ok(_)));
    is_first_whole && !bytes[values.byte_offset()..].trim_ascii().is_empty()
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
    fn lines_of_json_are_several_values() {
        assert!(is_several_values(b"{\"a\":1}\n{\"a\":2}\n") && is_several_values(b"{} x"));
        for one in [&b"{\"a\":1} \n"[..], b"{\"a\":NaN}\n{}", b"\xef\xbb\xbf{}\n{}", b"{\0}\0", b""] {
            assert!(!is_several_values(one), "{one:x?}");
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
