//! Walks through JSON as its bytes pass, and reports the few fields that say how an answer stands.
//!
//! The walk knows at each byte within which fields it is. So text that a model or a client wrote is never taken for a field,
//! wherever reads split it. Only the enclosing field names and one short value are kept. A value within one read is not
//! copied.

/// Fields deeper than this are not reported.
const DEPTH_MAX: usize = 3;

/// Longer names and texts are none that are looked for.
const TEXT_BYTES_MAX: usize = 64;

/// A field that is looked for, or an item of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Name {
    #[default]
    Other,
    /// An item of a list.
    Item,
    Choices,
    Error,
    FinishReason,
    Index,
    Response,
    Status,
    Type,
}

impl Name {
    fn of(text: &[u8]) -> Name {
        match text {
            b"choices" => Name::Choices,
            b"error" => Name::Error,
            b"finish_reason" => Name::FinishReason,
            b"index" => Name::Index,
            b"response" => Name::Response,
            b"status" => Name::Status,
            b"type" => Name::Type,
            _ => Name::Other,
        }
    }
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A text without escapes, of some bytes at most.
    Text(&'a [u8]),
    /// A longer text.
    LongText,
    /// A number, `true`, `false` or `null`.
    Plain(&'a [u8]),
    /// The beginning of an object or a list.
    Begin,
    /// The end of an object or a list.
    End,
}

/// A walk through one document.
#[derive(Debug, Default)]
pub(crate) struct JsonWalk {
    /// Open objects and lists.
    depth: usize,
    /// The fields around the current place, the outermost first.
    names: [Name; DEPTH_MAX],
    /// Which of the open objects and lists are objects.
    is_object: [bool; DEPTH_MAX],
    within: Within,
    /// Whether a text that begins is a name.
    expects_name: bool,
    /// The current name, text or plain value.
    text: Vec<u8>,
    /// Whether that is more than is kept, or has escapes.
    is_long: bool,
    has_begun: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    #[default]
    Nothing,
    Text,
    /// After a backslash.
    Escape,
    Plain,
}

impl JsonWalk {
    /// Forgets the document.
    pub(crate) fn clear(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        *self = JsonWalk { text, ..JsonWalk::default() };
    }

    /// Walks on. `see` gets the names that lead to each value, and the value.
    pub(crate) fn walk(&mut self, mut bytes: &[u8], mut see: impl FnMut(&[Name], Value<'_>)) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.within {
                Within::Nothing if byte == b'"' => self.begin_text(rest, &mut see),
                Within::Nothing if is_plain(byte) => self.begin_plain(bytes, &mut see),
                Within::Text => self.walk_text(bytes, &mut see),
                Within::Escape => {
                    self.within = Within::Text;
                    rest
                }
                Within::Plain if is_plain(byte) => {
                    self.keep(&[byte]);
                    rest
                }
                Within::Plain => {
                    self.within = Within::Nothing;
                    let text = std::mem::take(&mut self.text);
                    self.report(Value::Plain(&text), &mut see);
                    self.text = text;
                    bytes
                }
                Within::Nothing => {
                    self.step(byte, &mut see);
                    rest
                }
            };
        }
    }

    /// Whether a whole object or list has passed.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_begun && self.depth == 0 && self.within == Within::Nothing
    }

    fn step(&mut self, byte: u8, see: &mut impl FnMut(&[Name], Value<'_>)) {
        match byte {
            b'{' | b'[' => {
                self.report(Value::Begin, see);
                if self.depth < DEPTH_MAX {
                    self.is_object[self.depth] = byte == b'{';
                    self.names[self.depth] = if byte == b'{' { Name::Other } else { Name::Item };
                }
                self.depth += 1;
                (self.has_begun, self.expects_name) = (true, byte == b'{');
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.expects_name = false;
                self.report(Value::End, see);
            }
            b',' => self.expects_name = self.is_in_object(),
            b':' => self.expects_name = false,
            _ => {}
        }
    }

    /// Walks over a text that begins here. Returns what follows.
    fn begin_text<'a>(&mut self, bytes: &'a [u8], see: &mut impl FnMut(&[Name], Value<'_>)) -> &'a [u8] {
        match find_text_end(bytes) {
            Some(end) if bytes[end] == b'"' => {
                self.is_long = end > TEXT_BYTES_MAX;
                self.end_text(&bytes[..end], see);
                &bytes[end + 1..]
            }
            // It is split, or has escapes.
            _ => {
                self.begin(Within::Text);
                bytes
            }
        }
    }

    /// Walks over a plain value that begins here. Returns what follows.
    fn begin_plain<'a>(&mut self, bytes: &'a [u8], see: &mut impl FnMut(&[Name], Value<'_>)) -> &'a [u8] {
        let Some(end) = bytes.iter().position(|&byte| !is_plain(byte)) else {
            self.begin(Within::Plain);
            self.keep(bytes);
            return &[];
        };
        self.report(Value::Plain(&bytes[..end.min(TEXT_BYTES_MAX)]), see);
        &bytes[end..]
    }

    fn begin(&mut self, within: Within) {
        (self.within, self.is_long) = (within, false);
        self.text.clear();
    }

    /// Walks to the end of a text, or to an escape. Returns what follows.
    fn walk_text<'a>(&mut self, bytes: &'a [u8], see: &mut impl FnMut(&[Name], Value<'_>)) -> &'a [u8] {
        let Some(at) = find_text_end(bytes) else {
            self.keep(bytes);
            return &[];
        };
        self.keep(&bytes[..at]);
        if bytes[at] == b'\\' {
            (self.within, self.is_long) = (Within::Escape, true);
        } else {
            self.within = Within::Nothing;
            let text = std::mem::take(&mut self.text);
            self.end_text(&text, see);
            self.text = text;
        }
        &bytes[at + 1..]
    }

    fn end_text(&mut self, text: &[u8], see: &mut impl FnMut(&[Name], Value<'_>)) {
        if self.expects_name {
            if let Some(name) = self.depth.checked_sub(1).and_then(|last| self.names.get_mut(last)) {
                *name = if self.is_long { Name::Other } else { Name::of(text) };
            }
        } else {
            self.report(if self.is_long { Value::LongText } else { Value::Text(text) }, see);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.is_long |= self.text.len() + bytes.len() > TEXT_BYTES_MAX;
        if !self.is_long {
            self.text.extend_from_slice(bytes);
        }
    }

    fn is_in_object(&self) -> bool {
        self.depth.checked_sub(1).and_then(|last| self.is_object.get(last)).copied().unwrap_or(false)
    }

    fn report(&self, value: Value<'_>, see: &mut impl FnMut(&[Name], Value<'_>)) {
        if let Some(names) = self.names.get(..self.depth).filter(|_| self.depth > 0) {
            see(names, value);
        }
    }
}

/// The place of the first quote or backslash.
fn find_text_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr2(b'"', b'\\', bytes)
}

/// Whether a number, `true`, `false` or `null` has this byte.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is reported of these bytes in chunks of this size, without what has no name that is looked for.
    fn seen(bytes: &str, chunk: usize) -> Vec<(Vec<Name>, String)> {
        let (mut walk, mut seen) = (JsonWalk::default(), Vec::new());
        for chunk in bytes.as_bytes().chunks(chunk) {
            walk.walk(chunk, |names, value| {
                if !names.contains(&Name::Other) {
                    let text = match value {
                        Value::Text(text) | Value::Plain(text) => String::from_utf8_lossy(text).into_owned(),
                        other => format!("{other:?}"),
                    };
                    seen.push((names.to_vec(), text));
                }
            });
        }
        assert!(walk.is_whole(), "{bytes}");
        seen
    }

    #[test]
    fn fields_are_found_by_their_place_however_reads_split_them() {
        let text = r#"\"status\":\"completed\",{[\\"#;
        let json = format!(
            r#"{{"a":{{"status":"no","b":[[{{"status":"no"}}]]}},"t":"{text}","status" : "queued",
               "error":null,"choices":[{{"index":1,"x":{{"finish_reason":"no"}},"finish_reason":"stop"}},{{}}],
               "response":{{"status":"done","z":"{text}"}},"type":"{text}","sta\u0074us":"no"}}"#
        );
        let (item, end) = ([Name::Choices, Name::Item], "End".to_owned());
        let begin = "Begin".to_owned();
        let in_item = |name: Name| vec![Name::Choices, Name::Item, name];
        let expected = vec![
            (vec![Name::Status], "queued".to_owned()),
            (vec![Name::Error], "null".to_owned()),
            (vec![Name::Choices], begin.clone()),
            (item.to_vec(), begin.clone()),
            (in_item(Name::Index), "1".to_owned()),
            (in_item(Name::FinishReason), "stop".to_owned()),
            (item.to_vec(), end.clone()),
            (item.to_vec(), begin.clone()),
            (item.to_vec(), end.clone()),
            (vec![Name::Choices], end.clone()),
            (vec![Name::Response], begin),
            (vec![Name::Response, Name::Status], "done".to_owned()),
            (vec![Name::Response], end),
            (vec![Name::Type], "LongText".to_owned()),
        ];
        for chunk in 1..=json.len() {
            assert_eq!(seen(&json, chunk), expected, "in chunks of {chunk}");
        }
    }

    #[test]
    fn nothing_is_kept_of_a_long_text_and_deep_lists_are_passed() {
        let mut walk = JsonWalk::default();
        walk.walk(format!("{{\"a\":\"{}", "x".repeat(1 << 20)).as_bytes(), |_, _| {});
        assert!(walk.text.len() <= TEXT_BYTES_MAX && !walk.is_whole());
        let deep = format!("\",\"b\":{}{},\"status\":\"queued\"}}", "[".repeat(9_999), "]".repeat(9_999));
        let mut status = false;
        walk.walk(deep.as_bytes(), |names, value| {
            status |= names == [Name::Status] && value == Value::Text(b"queued");
        });
        assert!(status && walk.is_whole());
    }
}
