//! Words of a text, and those among them that look like values: dates, times, ids, counts.

use crate::calendar::is_calendar_name;

/// Longest word. Longer ones, such as encoded data, are split.
const WORD_BYTES_MAX: usize = 128;

/// A word, or the bytes between two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// Its bytes.
    pub text: &'a [u8],
    /// Position in the text.
    pub at: usize,
    /// Whether it has a digit or is a name in dates, so that it may change from request to request.
    pub is_value: bool,
}

/// Splits a text into words and what is between them. Together they are the text.
pub fn words(text: &[u8]) -> impl Iterator<Item = Word<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &text[at..];
        let first = *rest.first()?;
        let word = if class(first) & WORD != 0 { word(rest, at) } else { gap(rest, at) };
        at += word.text.len();
        Some(word)
    })
}

fn word(rest: &[u8], at: usize) -> Word<'_> {
    let reach = &rest[..rest.len().min(WORD_BYTES_MAX)];
    let (mut len, mut classes) = (0, 0);
    while let Some(&byte) = reach.get(len)
        && class(byte) & WORD != 0
    {
        classes |= class(byte);
        len += 1;
    }
    // Punctuation at the end of a sentence belongs to no word.
    while len > 1 && class(reach[len - 1]) & ALPHANUMERIC == 0 {
        len -= 1;
    }
    let text = &reach[..len];
    Word { text, at, is_value: classes & DIGIT != 0 || is_calendar(text) }
}

/// What is between two words, up to the end of a line.
fn gap(rest: &[u8], at: usize) -> Word<'_> {
    let reach = &rest[..rest.len().min(WORD_BYTES_MAX)];
    let end = reach.iter().position(|&byte| byte == b'\n' || class(byte) & WORD != 0).unwrap_or(reach.len());
    let len = end + usize::from(reach.get(end) == Some(&b'\n'));
    Word { text: &rest[..len], at, is_value: false }
}

/// Classes of bytes. Dates, times and ids are one word each, with what joins them.
const WORD: u8 = 1;
const ALPHANUMERIC: u8 = 2;
const DIGIT: u8 = 4;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'0'..=b'9' => WORD | ALPHANUMERIC | DIGIT,
            b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => WORD | ALPHANUMERIC,
            b'-' | b'_' | b':' | b'.' | b'+' | b'/' => WORD,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

fn class(byte: u8) -> u8 {
    CLASSES[usize::from(byte)]
}

fn is_calendar(text: &[u8]) -> bool {
    match text {
        b"am" | b"pm" => true,
        [b'A'..=b'Z', ..] if text.len() <= 9 => is_calendar_name(text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<&str> {
        let values = words(text.as_bytes()).filter(|word| word.is_value);
        values.map(|word| std::str::from_utf8(word.text).unwrap()).collect()
    }

    #[test]
    fn dates_times_ids_and_numbers_are_values() {
        let text = "Today is Tuesday, 2026-11-17T08:00:00Z. Request req_9f86d081-ab, 17 of 30, \"name\": x.";
        assert_eq!(values(text), ["Tuesday", "2026-11-17T08:00:00Z", "req_9f86d081-ab", "17", "30"]);
    }

    #[test]
    fn words_and_gaps_are_the_whole_text() {
        for text in ["", "a", "...", "a. b\n\nc", &"x".repeat(1_000), &"- ".repeat(200), "über 5 €"] {
            let joined: Vec<u8> = words(text.as_bytes()).flat_map(|word| word.text.to_vec()).collect();
            assert_eq!(joined, text.as_bytes());
        }
    }
}
