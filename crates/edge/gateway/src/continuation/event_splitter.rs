//! Splits a stream into complete events.

use bytes::{Bytes, BytesMut};

/// A longer event is no token's. The splitter gives up, and the stream passes unread.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Splits a stream of server-sent events.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    /// The beginning of an incomplete event.
    partial: BytesMut,
    /// How much of it was searched for its end.
    searched: usize,
}

impl EventSplitter {
    /// Adds a chunk.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.partial.extend_from_slice(chunk);
    }

    /// The next complete event, with the empty line at its end.
    pub(crate) fn next_event(&mut self) -> Option<Bytes> {
        let from = self.searched.saturating_sub(2);
        let ends = memchr::memchr_iter(b'\n', &self.partial[from..]);
        let end = ends.map(|at| from + at + 1).find_map(|next| match &self.partial[next..] {
            [b'\n', ..] => Some(next + 1),
            [b'\r', b'\n', ..] => Some(next + 2),
            _ => None,
        });
        self.searched = if end.is_some() { 0 } else { self.partial.len() };
        end.map(|end| self.partial.split_to(end).freeze())
    }

    /// Whether the incomplete event is longer than any event of a token.
    pub(crate) fn is_overlong(&self) -> bool {
        self.partial.len() > EVENT_BYTES_MAX
    }

    /// The incomplete event at the end.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        self.partial.split().freeze()
    }
}

/// The data of an event, if it has any. `Err` if a line is none of a server-sent event.
pub(crate) fn data_of(event: &[u8]) -> Result<Option<Vec<u8>>, NoEvent> {
    let mut data: Option<Vec<u8>> = None;
    for line in event.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(value) = line.strip_prefix(b"data:") {
            let data = data.get_or_insert_default();
            if !data.is_empty() {
                data.push(b'\n');
            }
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        } else if !is_other_field(line) {
            return Err(NoEvent);
        }
    }
    Ok(data)
}

/// The bytes are no server-sent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoEvent;

fn is_other_field(line: &[u8]) -> bool {
    const FIELDS: [&[u8]; 4] = [b":", b"event:", b"id:", b"retry:"];
    line.is_empty() || FIELDS.iter().any(|field| line.starts_with(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_the_stream_is_cut() {
        let stream = b"data: a\n\n: note\r\n\r\ndata: b\r\ndata: c\r\n\r\n\n\ndata: rest";
        let split = |cuts: [usize; 2]| {
            let (mut splitter, mut events) = (EventSplitter::default(), Vec::new());
            for part in [&stream[..cuts[0]], &stream[cuts[0]..cuts[1]], &stream[cuts[1]..]] {
                splitter.push(part);
                events.extend(std::iter::from_fn(|| splitter.next_event()));
            }
            (events, splitter.take_rest())
        };
        let (events, rest) = split([0, 0]);
        assert_eq!(rest, &b"data: rest"[..]);
        assert_eq!(events.concat().len() + rest.len(), stream.len());
        let data: Vec<_> = events.iter().filter_map(|event| data_of(event).unwrap()).collect();
        assert_eq!(data, [b"a".to_vec(), b"b\nc".to_vec()]);
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                assert_eq!(split([first, second]), (events.clone(), rest.clone()), "{first} {second}");
            }
        }
    }

    #[test]
    fn garbage_is_no_event() {
        assert_eq!(data_of(b"data: x\n\n"), Ok(Some(b"x".to_vec())));
        assert_eq!(data_of(b": ping\n\n"), Ok(None));
        assert_eq!(data_of(b"\x00\xffgarbage\n\n"), Err(NoEvent));
    }

    #[test]
    fn an_event_that_never_ends_is_noticed_in_linear_time() {
        let mut splitter = EventSplitter::default();
        for _ in 0..EVENT_BYTES_MAX {
            splitter.push(b"a\n");
            assert_eq!(splitter.next_event(), None);
        }
        assert!(splitter.is_overlong());
    }
}
