//! Estimates the output tokens of a response by its text as it passes.
//!
//! The usage stands at the end of a response, so a client that leaves before it has none. Events do not tell either:
//! engines send many tokens in one event where they decode speculatively or in steps. So text counts, where the APIs have
//! it: a token is taken to have at most four bytes of one kind, such as letters or digits. That is close for prose
//! and code, and splits what a tokenizer would split anyway, as in `1 2 3`.

use crate::repeated_start::{RepeatedStart, StreamReader};

/// Longer names are none of a text's.
const NAME_BYTES_MAX: usize = 24;

/// Most bytes of one kind in a token.
const TOKEN_BYTES: u8 = 4;

/// Bytes that an escaped character counts as: most of those that are escaped have three.
const ESCAPED_BYTES: usize = 3;

/// The text of a response so far.
#[derive(Debug, Default)]
pub(crate) struct StreamedText {
    strings: Strings,
    start: RepeatedStart<Place>,
}

/// What the strings of a response have so far.
#[derive(Debug, Default)]
struct Strings {
    place: Place,
    /// The beginning of a name that is split between two reads, or has escapes.
    name: Vec<u8>,
    deltas: u32,
    texts: u32,
}

/// A place in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Place {
    within: Within,
    /// The last byte outside of strings that is no space.
    before: u8,
    /// What a value of the last name is.
    named: Part,
    /// The run of bytes that the next one may continue.
    run: (Kind, u8),
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
        let Strings { deltas, texts, .. } = self.strings;
        if deltas > 0 { deltas } else { texts }
    }

    /// Adds a chunk of the response.
    pub(crate) fn observe(&mut self, bytes: &[u8]) {
        self.start.read(&mut self.strings, bytes);
    }
}

impl StreamReader for Strings {
    type State = Place;

    fn read(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            let read = match self.place.within {
                Within::Structure => self.read_structure(bytes),
                Within::String(part) => self.read_string(part, bytes),
                Within::Escape(part) => {
                    if first == b'u' {
                        self.place.within = Within::Digits(part, 0);
                    } else {
                        self.place.within = Within::String(part);
                        self.take(part, Kind::Sign);
                    }
                    1
                }
                Within::Digits(part, seen) => {
                    self.place.within = Within::Digits(part, seen + 1);
                    if seen == 3 {
                        self.place.within = Within::String(part);
                        (0..ESCAPED_BYTES).for_each(|_| self.take(part, Kind::Letter));
                    }
                    1
                }
            };
            bytes = &bytes[read..];
        }
    }

    /// Outside of strings only: the beginning of a name is not part of the state.
    fn state(&self) -> Option<Place> {
        Some(self.place).filter(|place| place.within == Within::Structure)
    }

    fn is_in(&self, place: &Place) -> bool {
        self.place == *place
    }

    fn set_state(&mut self, place: &Place) {
        self.place = *place;
    }

    fn findings(&self) -> [u64; 2] {
        [u64::from(self.deltas), u64::from(self.texts)]
    }
}

impl Strings {
    /// Reads up to the next string. Returns how much was read.
    fn read_structure(&mut self, bytes: &[u8]) -> usize {
        let quote = memchr::memchr(b'"', bytes);
        let between = &bytes[..quote.unwrap_or(bytes.len())];
        let place = &mut self.place;
        place.before = between.trim_ascii_end().last().copied().unwrap_or(place.before);
        let Some(quote) = quote else { return bytes.len() };
        let part = if place.before == b':' { place.named } else { Part::Name };
        self.name.clear();
        (place.within, place.before, place.run) = (Within::String(part), b'"', (Kind::Space, 0));
        quote + 1
    }

    /// Reads up to the end of a string or to what is escaped in it. Returns how much was read.
    fn read_string(&mut self, part: Part, bytes: &[u8]) -> usize {
        let end = memchr::memchr3(b'"', b'\\', b'\n', bytes);
        let plain = &bytes[..end.unwrap_or(bytes.len())];
        match part {
            Part::Name if self.name.is_empty() && end.is_some_and(|end| bytes[end] != b'\\') => {
                self.place.named = Part::named(plain);
            }
            Part::Name => {
                let room = NAME_BYTES_MAX.saturating_sub(self.name.len());
                self.name.extend_from_slice(&plain[..plain.len().min(room)]);
                self.place.named = Part::named(&self.name);
            }
            Part::Delta | Part::Text => plain.iter().for_each(|byte| self.take(part, Kind::of(*byte))),
            Part::Other => {}
        }
        let Some(end) = end else { return bytes.len() };
        self.place.within = match bytes[end] {
            b'\\' => Within::Escape(part),
            // No string contains a line break: what had begun was none.
            _ => Within::Structure,
        };
        end + 1
    }

    /// Counts a byte of a string.
    fn take(&mut self, part: Part, kind: Kind) {
        let (last, length) = self.place.run;
        let begins = kind != last || length == TOKEN_BYTES;
        self.place.run = (kind, if begins { 1 } else { length + 1 });
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

    #[test]
    fn events_that_begin_alike_are_counted_as_others_are() {
        let texts = ["one", "one two", r#"\"three\","#, "", r#"4 \u4f60"#, "\\n"];
        for (start, end) in [
            (
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":""#,
                r#""}}]}"#,
            ),
            (
                r#"{"type":"response.output_text.delta","item_id":"msg-1","delta":""#,
                r#"","sequence_number":7}"#,
            ),
            (r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""#, r#""}}"#),
        ] {
            let events = texts.iter().cycle().take(40);
            let stream: String = events.map(|text| format!("data: {start}{text}{end}\n\n")).collect();
            let plain = tokens(&stream, 1);
            assert!(plain >= 40, "{plain}");
            for size in [2, 61, 100, 1_000, stream.len()] {
                assert_eq!(tokens(&stream, size), plain, "{start} in pieces of {size}");
            }
        }
    }
}
