//! Reads the events of a stream, most of which begin alike.
//!
//! ```text
//! data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" and"}...
//! data: {"id":"chatcmpl-7","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" so"}...
//! ╰──────────────────────────────── the same in each event ────────────────────────────────╯
//! ```
//!
//! A reader that was in the same state before the same bytes is put into the state after them, and does not read them
//! again. What it finds out does not depend on it.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// Where an event ends.
static END_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\n\n"));

/// Bytes of an event's start that are compared.
const START_BYTES_MAX: usize = 512;

/// A shorter start is read as fast as it is compared.
const START_BYTES_MIN: usize = 32;

/// Consecutive events with another start after which another one is looked for.
const OTHERS_MAX: u8 = 4;

/// Reads a stream as its bytes pass. Where reads split it makes no difference.
pub(crate) trait StreamReader {
    /// What decides how the next bytes are read.
    type State;

    fn read(&mut self, bytes: &[u8]);

    /// The state, if it is one that the reader can return to.
    fn state(&self) -> Option<Self::State>;

    /// Whether the reader is in this state, from which starts are read.
    fn is_in(&self, state: &Self::State) -> bool;

    fn set_state(&mut self, state: &Self::State);

    /// Something that differs when the reader has found out more than its state tells.
    fn findings(&self) -> [u64; 2];
}

/// The start that events of a stream share.
#[derive(Debug)]
pub(crate) struct RepeatedStart<S> {
    /// The start of the event before, until a shared start is known.
    last: Vec<u8>,
    known: Option<Box<KnownStart<S>>>,
    /// Consecutive events that did not have it.
    others: u8,
}

#[derive(Debug)]
struct KnownStart<S> {
    bytes: Vec<u8>,
    before: S,
    after: S,
}

impl<S> Default for RepeatedStart<S> {
    fn default() -> RepeatedStart<S> {
        RepeatedStart { last: Vec::new(), known: None, others: 0 }
    }
}

impl<S> RepeatedStart<S> {
    /// Reads a chunk of a stream.
    pub(crate) fn read<R: StreamReader<State = S>>(&mut self, reader: &mut R, mut chunk: &[u8]) {
        while !chunk.is_empty() {
            let end = END_FINDER.find(chunk).map_or(chunk.len(), |at| at + 2);
            self.read_event(reader, &chunk[..end]);
            chunk = &chunk[end..];
        }
    }

    /// Reads an event, or a part of one that was split.
    fn read_event<R: StreamReader<State = S>>(&mut self, reader: &mut R, event: &[u8]) {
        match self.known.as_deref() {
            Some(KnownStart { bytes, before, after }) => {
                if event.starts_with(bytes) && reader.is_in(before) {
                    self.others = 0;
                    reader.set_state(after);
                    return reader.read(&event[bytes.len()..]);
                }
                self.others += 1;
                if self.others == OTHERS_MAX {
                    *self = RepeatedStart::default();
                }
                reader.read(event);
            }
            None => self.learn(reader, event),
        }
    }

    /// Reads an event and compares its start with that of the one before.
    fn learn<R: StreamReader<State = S>>(&mut self, reader: &mut R, event: &[u8]) {
        let same = event.iter().zip(&self.last).take_while(|(one, other)| one == other).count();
        // What follows the last quote is probably text, of which no two events need to have the same.
        let same = memchr::memrchr(b'"', &event[..same]).unwrap_or(0);
        self.last.clear();
        self.last.extend_from_slice(&event[..event.len().min(START_BYTES_MAX)]);
        let (start, rest) = event.split_at(if same < START_BYTES_MIN { 0 } else { same });
        let before = reader.state().filter(|state| reader.is_in(state));
        let found = reader.findings();
        reader.read(start);
        if let (Some(before), Some(after)) = (before, reader.state())
            && !start.is_empty()
            && reader.findings() == found
        {
            self.known = Some(Box::new(KnownStart { bytes: start.to_vec(), before, after }));
        }
        reader.read(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the letters between brackets.
    #[derive(Default)]
    struct Letters {
        is_inside: bool,
        count: u64,
        bytes_read: usize,
    }

    impl StreamReader for Letters {
        type State = bool;

        fn read(&mut self, bytes: &[u8]) {
            self.bytes_read += bytes.len();
            for byte in bytes {
                match byte {
                    b'[' => self.is_inside = true,
                    b']' => self.is_inside = false,
                    _ => self.count += u64::from(self.is_inside),
                }
            }
        }

        fn state(&self) -> Option<bool> {
            Some(self.is_inside)
        }

        fn is_in(&self, is_inside: &bool) -> bool {
            self.is_inside == *is_inside
        }

        fn set_state(&mut self, is_inside: &bool) {
            self.is_inside = *is_inside;
        }

        fn findings(&self) -> [u64; 2] {
            [self.count, 0]
        }
    }

    fn read(stream: &str, size: usize) -> Letters {
        let (mut letters, mut start) = (Letters::default(), RepeatedStart::default());
        stream.as_bytes().chunks(size).for_each(|chunk| start.read(&mut letters, chunk));
        letters
    }

    #[test]
    fn starts_are_skipped_and_nothing_is_missed() {
        let head = "data: a start that each of the events has in common \"";
        let event = |number: usize| format!("{head}[{}]\n\n", "x".repeat(number % 7));
        let other = "data: another start, and [letters] in it, of an event as long as most \"[x]\n\n";
        let stream: String =
            (0..100).map(|number| if number % 9 == 8 { other.to_owned() } else { event(number) }).collect();
        let plain = read(&stream, 1);
        assert_eq!(plain.bytes_read, stream.len(), "single bytes are no starts");
        for size in [stream.len(), 1_000, 100, 61, 7] {
            assert_eq!(read(&stream, size).count, plain.count, "in chunks of {size}");
        }
        assert!(read(&stream, stream.len()).bytes_read < stream.len() / 2);
    }

    #[test]
    fn a_start_in_which_something_is_found_is_read_each_time() {
        let stream = "data: a start with [letters] that count each time \"\n\n".repeat(20);
        assert_eq!(read(&stream, stream.len()).count, 20 * 7);
    }

    #[test]
    fn another_start_is_looked_for_when_the_known_one_is_over() {
        let first = "data: the first kind of event, of which there are some \"[a]\n\n".repeat(5);
        let second = "data: the second kind of event, of which there are many \"[b]\n\n".repeat(95);
        let letters = read(&format!("{first}{second}"), usize::MAX);
        assert_eq!(letters.count, 100);
        assert!(letters.bytes_read < (first.len() + second.len()) / 2, "{}", letters.bytes_read);
    }
}
