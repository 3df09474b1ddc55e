//! Estimates the output tokens of a response by its text as it passes.
//!
//! The usage stands at the end of a response, so a client that leaves before it has none. Events do not tell either:
//! engines send many tokens in one event where they decode speculatively or in steps. So text counts, where the APIs have
//! it: a token is taken to have at most four bytes of one kind, such as letters or digits. That is close for prose
//! and code, and splits what a tokenizer would split anyway, as in `1 2 3`.

use crate::near_byte::find_near;

/// Longer names are none of a text's.
const NAME_BYTES_MAX: usize = 24;

/// Most bytes of one kind in a token.
const TOKEN_BYTES: u8 = 4;

/// Bytes that an escaped character counts as: most of those that are escaped have three.
const ESCAPED_BYTES: usize = 3;

/// The text of a response so far.
#[derive(Debug, Default)]
pub(crate) struct StreamedText {
    within: Within,
    /// The last byte outside of strings that is no space.
    before: u8,
    /// The beginning of a name that is split between two reads, or has escapes.
    name: Vec<u8>,
    /// What a value of the last name is.
    named: Part,
    /// The run of bytes that the next one may continue.
    run: (Kind, u8),
    deltas: u32,
    texts: u32,
}

/// Where the bytes so far end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Within {
    #[default]
    Structure,
    String(Part),
    /// After a backslash in a string.
    Escape(Part),
    /// Within the four digits of an escaped character.
    Digits(Part, u8),
}

/// What a string is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Part {
    Name,
    Delta,
    Text,
    #[default]
    Other,
}

impl Part {
    /// What the value of a name is.
    fn named(name: &[u8]) -> Part {
        match name {
            // Chats, completions, messages, and whole responses.
            b"text" | b"content" | b"reasoning_content" | b"reasoning" | b"thinking" | b"arguments"
            | b"partial_json" | b"refusal" => Part::Text,
            // A stream of `/v1/responses`, which repeats the text under other names.
            b"delta" => Part::Delta,
            _ => Part::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Kind {
    #[default]
    Space,
    Letter,
    Digit,
    Sign,
}

impl Kind {
    fn of(byte: u8) -> Kind {
        match byte {
            b' ' => Kind::Space,
            b'0'..=b'9' => Kind::Digit,
            b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => Kind::Letter,
            _ => Kind::Sign,
        }
    }
}

impl StreamedText {
    /// Approximate tokens of the text so far.
    pub(crate) fn tokens(&self) -> u32 {
        if self.deltas > 0 { self.deltas } else { self.texts }
    }

    /// Adds a chunk of the response.
    pub(crate) fn observe(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            let read = match self.within {
                Within::Structure => self.read_structure(bytes),
                Within::String(part) => self.read_string(part, bytes),
                Within::Escape(part) => {
                    if first == b'u' {
                        self.within = Within::Digits(part, 0);
                    } else {
                        self.within = Within::String(part);
                        self.take(part, Kind::Sign);
                    }
                    1
                }
                Within::Digits(part, seen) => {
                    self.within = Within::Digits(part, seen + 1);
                    if seen == 3 {
                        self.within = Within::String(part);
                        (0..ESCAPED_BYTES).for_each(|_| self.take(part, Kind::Letter));
                    }
                    1
                }
            };
            bytes = &bytes[read..];
        }
    }

    /// Reads up to the next string. Returns how much was read.
    fn read_structure(&mut self, bytes: &[u8]) -> usize {
        let quote = find_near(bytes, |byte| byte == b'"', |rest| memchr::memchr(b'"', rest));
        let between = &bytes[..quote.unwrap_or(bytes.len())];
        self.before = between.trim_ascii_end().last().copied().unwrap_or(self.before);
        let Some(quote) = quote else { return bytes.len() };
        let part = if self.before == b':' { self.named } else { Part::Name };
        self.name.clear();
        (self.within, self.before, self.run) = (Within::String(part), b'"', (Kind::Space, 0));
        quote + 1
    }

    /// Reads up to the end of a string or to what is escaped in it. Returns how much was read.
    fn read_string(&mut self, part: Part, bytes: &[u8]) -> usize {
        let is_end = |byte| matches!(byte, b'"' | b'\\' | b'\n');
        let end = find_near(bytes, is_end, |rest| memchr::memchr3(b'"', b'\\', b'\n', rest));
        let plain = &bytes[..end.unwrap_or(bytes.len())];
        match part {
            Part::Name if self.name.is_empty() && end.is_some_and(|end| bytes[end] != b'\\') => {
                self.named = Part::named(plain);
            }
            Part::Name => {
                let room = NAME_BYTES_MAX.saturating_sub(self.name.len());
                self.name.extend_from_slice(&plain[..plain.len().min(room)]);
                self.named = Part::named(&self.name);
            }
            Part::Delta | Part::Text => plain.iter().for_each(|byte| self.take(part, Kind::of(*byte))),
            Part::Other => {}
        }
        let Some(end) = end else { return bytes.len() };
        self.within = match bytes[end] {
            b'\\' => Within::Escape(part),
            // No string contains a line break: what had begun was none.
            _ => Within::Structure,
        };
        end + 1
    }

    /// Counts a byte of a string.
    fn take(&mut self, part: Part, kind: Kind) {
        let (last, length) = self.run;
        let begins = kind != last || length == TOKEN_BYTES;
        self.run = (kind, if begins { 1 } else { length + 1 });
        let tokens = u32::from(begins && kind != Kind::Space);
        match part {
            Part::Delta => self.deltas = self.deltas.saturating_add(tokens),
            Part::Text => self.texts = self.texts.saturating_add(tokens),
            // A name with something escaped is none of those above.
            Part::Name if self.name.len() < NAME_BYTES_MAX => self.name.push(b'\\'),
            Part::Name | Part::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(response: &str, size: usize) -> u32 {
        let mut text = StreamedText::default();
        response.as_bytes().chunks(size).for_each(|part| text.observe(part));
        text.tokens()
    }

    #[test]
    fn text_counts_in_every_api_and_nothing_beside_it() {
        let words = "word ".repeat(50);
        for (response, expected) in [
            (format!(r#"{{"id":"long-long-id","choices":[{{"index":0,"text":"{words}"}}]}}"#), 50),
            (format!(r#"{{"choices":[{{"delta":{{"role":"assistant","content" : "{words}"}}}}]}}"#), 50),
            (format!(r#"{{"delta":{{"tool_calls":[{{"function":{{"arguments":"{words}"}}}}]}}}}"#), 50),
            (
                format!(
                    r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"{words}"}}}}"#
                ),
                50,
            ),
            (format!(r#"{{"type":"response.output_text.delta","delta":"{words}"}}"#), 50),
            (format!("data: {{\"delta\":\"{words}\"}}\n\ndata: {{\"text\":\"{words}\"}}\n\n"), 50),
            (format!("{{\"text\":\"half\n\ndata: {{\"text\":\"{words}\"}}\n\n"), 51),
            (
                r#"{"text":"1 2, 3","text":"\u4f60\u597d","text":"a\nb","text":"12345"}"#.to_owned(),
                4 + 2 + 3 + 2,
            ),
            (format!(r#"{{"t\u0065xt":"{words}","content":["{words}"],"text":{{"format":"{words}"}}}}"#), 0),
            (format!(r#"{{"x":"\"text\":\"{words}","usage":null}}"#), 0),
        ] {
            for size in [1, 2, 7, 64, 10_000] {
                assert_eq!(tokens(&response, size), expected, "{response} in pieces of {size}");
            }
        }
    }
}
