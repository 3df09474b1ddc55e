//! Finds the identifier of the object in a response as its bytes pass.
//!
//! The identifier is the field `id` of a document, or of the `response` in an event. It nearly always stands at the
//! start, before instructions and tools of any length. The bytes are walked until it is found, without a buffer for more
//! than a name, and however reads split them.

/// Bytes that are walked at most.
const BYTES_MAX: usize = 1 << 20;

/// Longer names and identifiers are not what is looked for.
const TEXT_BYTES_MAX: usize = 256;

/// A walk through the beginning of a response.
#[derive(Debug, Default)]
pub(crate) struct IdWatch {
    walked: usize,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    /// The last string, or the part of it that has come.
    text: Vec<u8>,
    /// What the value that follows belongs to.
    key: Key,
    /// Whether the walk is within the object of `response`.
    in_response: bool,
    /// Whether the walk has ended without an identifier.
    is_over: bool,
}

/// The name before a value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Key {
    /// No name yet: a string that follows is one.
    #[default]
    None,
    Id,
    Response,
    Other,
}

impl IdWatch {
    /// Walks on. Returns the identifier when it is complete.
    pub(crate) fn walk(&mut self, chunk: &[u8]) -> Option<String> {
        if self.is_over {
            return None;
        }
        let found = chunk.iter().find_map(|&byte| self.step(byte));
        self.walked += chunk.len();
        self.is_over = found.is_some() || self.walked > BYTES_MAX;
        found
    }

    fn step(&mut self, byte: u8) -> Option<String> {
        if self.in_string {
            return self.step_in_string(byte);
        }
        match byte {
            b'"' if self.depth > 0 => {
                self.in_string = true;
                self.text.clear();
            }
            b'{' | b'[' => {
                self.in_response |= self.depth == 1 && self.key == Key::Response && byte == b'{';
                self.depth += 1;
                self.key = Key::None;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_response &= self.depth > 1;
                self.key = Key::None;
            }
            b':' if self.is_watched() => {
                self.key = match &*self.text {
                    b"id" => Key::Id,
                    b"response" => Key::Response,
                    _ => Key::Other,
                };
            }
            b',' => self.key = Key::None,
            _ => {}
        }
        None
    }

    fn step_in_string(&mut self, byte: u8) -> Option<String> {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => {
                self.is_escaped = true;
                // No identifier has escapes. The mark keeps the text from looking like one.
                self.push(b'\\');
            }
            b'"' => {
                self.in_string = false;
                return self.end_string();
            }
            other => self.push(other),
        }
        None
    }

    fn push(&mut self, byte: u8) {
        if self.text.len() <= TEXT_BYTES_MAX {
            self.text.push(byte);
        }
    }

    /// Whether the fields of this object are looked at.
    fn is_watched(&self) -> bool {
        self.depth == 1 || (self.depth == 2 && self.in_response)
    }

    fn end_string(&self) -> Option<String> {
        let is_id = self.key == Key::Id && self.is_watched();
        let is_plain =
            !self.text.is_empty() && self.text.len() <= TEXT_BYTES_MAX && !self.text.contains(&b'\\');
        (is_id && is_plain).then(|| String::from_utf8(self.text.clone()).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The identifier, if these bytes arrive in chunks of this size.
    fn found(bytes: &str, chunk: usize) -> Option<String> {
        let mut watch = IdWatch::default();
        let mut ids = bytes.as_bytes().chunks(chunk).filter_map(|chunk| watch.walk(chunk));
        let id = ids.next();
        assert_eq!(ids.next(), None, "it is found once");
        id
    }

    #[test]
    fn the_identifier_is_found_however_reads_split_it() {
        let tools = r#"[{"id":"no","name":"a\"}{"}]"#;
        for (bytes, id) in [
            (r#"{"id":"resp_1","object":"response"}"#.to_owned(), Some("resp_1")),
            (format!(r#"{{"tools":{tools},"x":"id", "id" : "resp_2"}}"#), Some("resp_2")),
            (
                "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_3\"}}\n\n"
                    .to_owned(),
                Some("resp_3"),
            ),
            (format!("data: {{\"response\":{{\"tools\":{tools},\"id\":\"resp_4\"}}}}\n\n"), Some("resp_4")),
            ("data: {\"item\":{\"id\":\"no\"}}\n\ndata: {\"response\":{\"id\":\"resp_5\"}}\n\n".to_owned(), Some("resp_5")),
            (r#"{"response":"id","id":7,"output":[{"id":"msg_1"}]}"#.to_owned(), None),
            (r#"{"response":{"a":{"id":"no"}}}"#.to_owned(), None),
            (r#"{"error":{"id":"no"}}"#.to_owned(), None),
            (r#"{"id":""}"#.to_owned(), None),
            (r#"{"id":"a\u0041"}"#.to_owned(), None),
            (r#"[{"id":"no"}]"#.to_owned(), None),
            ("".to_owned(), None),
        ] {
            for chunk in 1..=bytes.len().max(1) {
                assert_eq!(found(&bytes, chunk).as_deref(), id, "{bytes} in chunks of {chunk}");
            }
        }
    }

    #[test]
    fn a_long_response_without_identifier_is_given_up() {
        let mut watch = IdWatch::default();
        let long = format!(r#"{{"x":"{}","#, "a".repeat(BYTES_MAX));
        assert_eq!(watch.walk(long.as_bytes()), None);
        assert_eq!(watch.walk(br#""id":"resp_1"}"#), None);
        assert!(watch.text.len() <= TEXT_BYTES_MAX + 1);
    }
}
