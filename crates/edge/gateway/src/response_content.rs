//! What the bytes of a response tell: its usage, its text, and how it stands.

use crate::answer_state::AnswerState;
use crate::framing::Framing;
use crate::text_events::TextEvents;
use crate::usage::UsageWatch;

/// Reads a response as it passes.
#[derive(Debug, Default)]
pub(crate) struct ResponseContent {
    pub(crate) usage: UsageWatch,
    /// How the answer stands; `None` if nothing depends on it.
    pub(crate) state: Option<AnswerState>,
    counts_text: bool,
    /// Recognizes events; `None` for a document.
    text_events: Option<TextEvents>,
}

/// What follows a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    More,
    /// The response has ended.
    Nothing,
}

/// What a chunk consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkKind {
    /// Whole events that differ from earlier ones in their text only.
    TextEvents,
    Other,
}

impl ResponseContent {
    pub(crate) fn new(framing: Framing, usage: UsageWatch) -> ResponseContent {
        let text_events = (framing == Framing::Events).then(TextEvents::default);
        ResponseContent { usage, state: None, counts_text: false, text_events }
    }

    /// Counts the tokens of the text as well.
    pub(crate) fn count_text(self, counts_text: bool) -> ResponseContent {
        ResponseContent { counts_text, ..self }
    }

    /// Reads how the answer stands as well.
    pub(crate) fn read_state(self, state: Option<AnswerState>) -> ResponseContent {
        ResponseContent { state, ..self }
    }

    /// Reads a chunk.
    pub(crate) fn observe(&mut self, chunk: &[u8]) -> ChunkKind {
        self.read(chunk, Follows::More)
    }

    /// Reads a chunk that more may follow, or the last one.
    pub(crate) fn read(&mut self, mut chunk: &[u8], follows: Follows) -> ChunkKind {
        let mut kind = if chunk.is_empty() { ChunkKind::Other } else { ChunkKind::TextEvents };
        loop {
            chunk = &chunk[self.skip_recognized(chunk)..];
            if chunk.is_empty() {
                return kind;
            }
            kind = ChunkKind::Other;
            let bytes = self.text_events.as_ref().map_or(chunk.len(), |events| events.bytes_to_read(chunk));
            self.read_in_full(&chunk[..bytes], follows);
            chunk = &chunk[bytes..];
        }
    }

    /// Counts the recognized events at the beginning of a chunk. Returns their bytes.
    fn skip_recognized(&mut self, chunk: &[u8]) -> usize {
        let text_events = self.text_events.as_mut().filter(|_| self.usage.is_between_events());
        let Some(events) = text_events.and_then(|text_events| text_events.recognize(chunk)) else { return 0 };
        self.usage.add_recognized(&chunk[..events.bytes], events.count);
        if self.counts_text {
            self.usage.add_text(events.tokens, events.place);
        }
        self.state.iter_mut().for_each(|state| state.add_recognized(events.count));
        events.bytes
    }

    fn read_in_full(&mut self, chunk: &[u8], follows: Follows) {
        self.usage.observe(chunk);
        if self.counts_text && !self.is_counted(follows) {
            self.usage.observe_text(chunk);
        }
        self.state.iter_mut().for_each(|state| state.observe(chunk));
        self.text_events.iter_mut().for_each(|text_events| text_events.learn(chunk));
    }

    /// Whether the response is a document that has ended with a usage: its text then counts for nothing. A document that may
    /// still break off counts by its text, because a field that the client chose may look like a usage.
    fn is_counted(&self, follows: Follows) -> bool {
        follows == Follows::Nothing && self.text_events.is_none() && self.usage.read().is_some()
    }
}
