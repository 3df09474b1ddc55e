//! Estimates the output tokens of a response by its text as it passes.
//!
//! The usage stands at the end of a response, so a client that leaves before it has none. Events do not tell either:
//! engines send many tokens in one event where they decode speculatively or in steps. So text counts, where the APIs have
//! it: a token is taken to have at most four bytes of one kind, such as letters or digits. That is close for prose
//! and code, and splits what a tokenizer would split anyway, as in `1 2 3`.

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
    place: Place,
    /// The run of bytes that the next one may continue.
    run: Run,
    /// The beginning of a name that is split between two reads, or has escapes.
    name: Vec<u8>,
    tokens: TextTokens,
}

/// What decides how the next string is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The last byte outside of strings that is no space.
    before: u8,
    /// What a value of the last name is.
    named: Part,
}

/// Approximate tokens of text, by the name that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextTokens {
    deltas: u32,
    texts: u32,
}

/// Consecutive bytes of one kind that are counted as a token.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    kind: Kind,
    length: u8,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
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

impl Run {
    /// Adds a byte. Returns the tokens that begin with it.
    fn add(&mut self, kind: Kind) -> u32 {
        let begins = kind != self.kind || self.length == TOKEN_BYTES;
        *self = Run { kind, length: if begins { 1 } else { self.length + 1 } };
        u32::from(begins && kind != Kind::Space)
    }
}

impl TextTokens {
    /// Adds a string without escapes.
    pub(crate) fn add_string(&mut self, part: Part, plain: &[u8]) {
        let mut run = Run::default();
        plain.iter().for_each(|byte| self.add(part, run.add(Kind::of(*byte))));
    }

    pub(crate) fn add_all(&mut self, other: TextTokens) {
        self.add(Part::Delta, other.deltas);
        self.add(Part::Text, other.texts);
    }

    fn add(&mut self, part: Part, tokens: u32) {
        match part {
            Part::Delta => self.deltas = self.deltas.saturating_add(tokens),
            Part::Text => self.texts = self.texts.saturating_add(tokens),
            Part::Name | Part::Other => {}
        }
    }
}

impl StreamedText {
    /// Approximate tokens of the text so far.
    pub(crate) fn tokens(&self) -> u32 {
        let TextTokens { deltas, texts } = self.tokens;
        if deltas > 0 { deltas } else { texts }
    }

    /// Approximate tokens of the text so far by name, and the place where it ends.
    pub(crate) fn reading(&self) -> (TextTokens, Place) {
        (self.tokens, self.place)
    }

    /// Adds text that was counted elsewhere and ends at this place, outside of strings.
    pub(crate) fn add(&mut self, tokens: TextTokens, place: Place) {
        self.tokens.add_all(tokens);
        self.place = place;
    }

    /// What the string is in which the bytes so far end; `None` outside of strings.
    pub(crate) fn open_string(&self) -> Option<Part> {
        match self.within {
            Within::Structure => None,
            Within::String(part) | Within::Escape(part) | Within::Digits(part, _) => Some(part),
        }
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
        let quote = memchr::memchr(b'"', bytes);
        let between = &bytes[..quote.unwrap_or(bytes.len())];
        self.place.before = between.trim_ascii_end().last().copied().unwrap_or(self.place.before);
        let Some(quote) = quote else { return bytes.len() };
        let part = if self.place.before == b':' { self.place.named } else { Part::Name };
        self.name.clear();
        (self.within, self.place.before, self.run) = (Within::String(part), b'"', Run::default());
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
        self.within = match bytes[end] {
            b'\\' => Within::Escape(part),
            // No string contains a line break: what had begun was none.
            _ => Within::Structure,
        };
        end + 1
    }

    /// Counts a byte of a string.
    fn take(&mut self, part: Part, kind: Kind) {
        let tokens = self.run.add(kind);
        // A name with something escaped is none of those above.
        if part == Part::Name && self.name.len() < NAME_BYTES_MAX {
            self.name.push(b'\\');
        }
        self.tokens.add(part, tokens);
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
