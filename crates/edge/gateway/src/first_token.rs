//! Finds the first token in a stream of server-sent events.
//!
//! The first token is the first event with text or a tool call, not the first byte: comments keep connections alive
//! before it, and two APIs announce a response before anything is computed. Reads may split events anywhere.

/// Events that precede the first token.
const ANNOUNCEMENTS: [&[u8]; 5] =
    [b"response.created", b"response.in_progress", b"response.queued", b"message_start", b"ping"];

/// Bytes of a line that are kept: enough to recognize it.
const LINE_BYTES_MAX: usize = 64;

/// Looks for the first token of a stream.
#[derive(Debug, Default)]
pub(crate) struct FirstToken {
    /// The beginning of the current line.
    line: Vec<u8>,
    /// Whether the current event is an announcement.
    is_announcement: bool,
}

impl FirstToken {
    /// Whether these bytes contain the first token.
    pub(crate) fn is_in(&mut self, chunk: &[u8]) -> bool {
        let mut rest = chunk;
        loop {
            let end = memchr::memchr(b'\n', rest);
            let part = &rest[..end.unwrap_or(rest.len())];
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if self.line.starts_with(b"data:") && !self.is_announcement {
                return true;
            }
            let Some(end) = end else { return false };
            self.end_line();
            rest = &rest[end + 1..];
        }
    }

    fn end_line(&mut self) {
        let line = self.line.trim_ascii();
        if line.is_empty() {
            self.is_announcement = false;
        } else if let Some(name) = line.strip_prefix(b"event:") {
            self.is_announcement = ANNOUNCEMENTS.contains(&name.trim_ascii());
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The read that contains the first token.
    fn seen_in(reads: &[&str]) -> Option<usize> {
        let mut first_token = FirstToken::default();
        reads.iter().position(|read| first_token.is_in(read.as_bytes()))
    }

    #[test]
    fn the_first_event_with_content_is_the_first_token() {
        for (reads, seen) in [
            (&["data: {}\n\n"][..], Some(0)),
            (&[": ping\n\n", "data: {}\n\n"], Some(1)),
            (&[": data: no\n\n", "\n"], None),
            (&["da", "ta: {}\n\n"], Some(1)),
            (&["event: message_start\ndata: {}\n\n", "event: ping\r\ndata: {}\r\n\r\n"], None),
            (&["event: message_start\nda", "ta: {}\n\nevent: content_block_start\ndata: {}\n\n"], Some(1)),
            (
                &["event: response.created\ndata: {}\n", "\nevent: response.output_text.delta\ndata: {}"],
                Some(1),
            ),
        ] {
            assert_eq!(seen_in(reads), seen, "{reads:?}");
        }
    }

    #[test]
    fn long_lines_are_not_kept() {
        let mut first_token = FirstToken::default();
        assert!(!first_token.is_in(&vec![b':'; 1 << 20]));
        assert!(first_token.line.len() <= LINE_BYTES_MAX);
    }
}
