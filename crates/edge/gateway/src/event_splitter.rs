//! Splits a stream of server-sent events into complete events. Where the stream is cut by reads makes no difference.

use bytes::{Buf, Bytes, BytesMut};

/// Splits a stream of server-sent events.
#[derive(Debug, Default)]
pub(crate) struct EventSplitter {
    /// The beginning of an incomplete event.
    partial: BytesMut,
    /// How much of it was searched for its end. Searching all of it for each read would take the square of its length.
    searched: usize,
    /// Whether the incomplete event began before `partial`.
    is_within_event: bool,
}

impl EventSplitter {
    /// Adds a chunk.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.partial.extend_from_slice(chunk);
    }

    /// The next complete event, with the empty line at its end. An empty line before an event is an event of its own.
    pub(crate) fn next_event(&mut self) -> Option<Bytes> {
        let end = self.event_end();
        self.searched = if end.is_some() { 0 } else { self.partial.len() };
        self.is_within_event &= end.is_none();
        end.map(|end| self.partial.split_to(end).freeze())
    }

    fn event_end(&self) -> Option<usize> {
        if !self.is_within_event
            && let Some(end) = empty_line(&self.partial)
        {
            return Some(end);
        }
        // An end that was split between two reads begins up to two bytes before.
        let from = self.searched.saturating_sub(2);
        let lines = memchr::memchr_iter(b'\n', &self.partial[from..]).map(|at| from + at + 1);
        lines.into_iter().find_map(|next| empty_line(&self.partial[next..]).map(|end| next + end))
    }

    /// Whether the next byte begins an event.
    pub(crate) fn is_between_events(&self) -> bool {
        self.partial.is_empty() && !self.is_within_event
    }

    /// Bytes of the incomplete event that have not been taken.
    pub(crate) fn partial_len(&self) -> usize {
        self.partial.len()
    }

    /// Takes the beginning of the incomplete event, whose end is the next event. What may belong to its end stays.
    pub(crate) fn take_beginning(&mut self, taken: &mut Vec<u8>) {
        let kept = [&b"\n\r"[..], b"\n"].into_iter().find(|end| self.partial.ends_with(end));
        let end = self.partial.len() - kept.map_or(0, <[u8]>::len);
        taken.extend_from_slice(&self.partial[..end]);
        self.partial.advance(end);
        (self.searched, self.is_within_event) = (0, true);
    }

    /// Whether the beginning of the incomplete event was taken.
    pub(crate) fn is_within_event(&self) -> bool {
        self.is_within_event
    }

    /// The incomplete event at the end.
    pub(crate) fn take_rest(&mut self) -> Bytes {
        (self.searched, self.is_within_event) = (0, false);
        self.partial.split().freeze()
    }
}

fn empty_line(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
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

/// Whether an event, or one of several, is named an error.
pub(crate) fn is_named_error(events: &[u8]) -> bool {
    events
        .split(|byte| *byte == b'\n')
        .any(|line| line.strip_prefix(b"event:").is_some_and(|name| name.trim_ascii() == b"error"))
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

    /// An engine that never ends its event: `a\n` in small pieces took seconds when each piece searched everything.
    #[test]
    fn small_pieces_of_a_long_event_are_searched_once() {
        let (mut splitter, mut taken) = (EventSplitter::default(), Vec::new());
        for piece in 0..100_000 {
            splitter.push(b"a\n");
            assert_eq!(splitter.next_event(), None);
            assert_eq!(splitter.searched, splitter.partial_len());
            if piece % 1_000 == 0 {
                splitter.take_beginning(&mut taken);
                assert!(splitter.is_within_event() && splitter.partial_len() == 1);
            }
        }
        splitter.push(b"\r\n");
        let end = splitter.next_event().unwrap();
        assert_eq!(taken.len() + end.len(), 200_002);
        assert!(splitter.is_between_events());
    }
}
