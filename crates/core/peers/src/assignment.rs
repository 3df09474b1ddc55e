//! One request on one worker, as its router reports it to peers.
//!
//! An assignment only moves forward: booked, prefilled, ended. So reports of it need no order: merged, they say what the latest
//! one said.

use std::sync::Arc;

use warmroute_types::Delivery;

/// Known facts about one assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The booking; `None` until the report that carries it arrives.
    pub booking: Option<BookingRecord>,
    /// The worker computed the prompt, so its cache holds it.
    pub is_prefilled: bool,
    /// How the assignment ended; `None` while it is open.
    pub end: Option<AssignmentEnd>,
}

/// The load that one request adds to one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookingRecord {
    /// The worker's identity: a hash of its address, the same on every router.
    pub worker: u64,
    /// Tokens of the prompt, counted or estimated by the router that chose.
    pub prompt_tokens: u32,
    /// Prompt tokens that the worker was predicted to hold.
    pub cached_tokens: u32,
    /// Prompt tokens that the worker was predicted to restore from slower memory.
    pub restorable_tokens: u32,
    /// Streamed or whole. Only streamed responses show when the prompt is prefilled.
    pub delivery: Delivery,
    /// The prompt that the worker's cache will hold; `None` if unknown, or dropped to save memory.
    pub prompt: Option<PromptDigests>,
}

/// A prompt as keyed hashes of its chunks; it contains no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptDigests {
    /// Namespace of the prompt: model, adapter, salt.
    pub root: u64,
    /// Bytes of the first chunk; later ones are longer.
    pub chunk_bytes: u32,
    /// Estimated tokens of the first chunk.
    pub chunk_tokens: u32,
    /// Digests of the complete chunks, in order.
    pub digests: Arc<[u64]>,
    /// Its router could not render it as the engine does, so no events of it are recognized.
    pub is_unrendered: bool,
}

/// How an assignment ended. Of two reports the greater one wins, because it knows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AssignmentEnd {
    /// It failed, its client left, or the outcome is unknown.
    Abandoned,
    /// It was answered, and the engine's usage did not contradict the prediction.
    Answered,
    /// It was answered, and the engine held less of the prompt than predicted.
    Stale {
        /// Chunks that the engine held, counted from the start of the prompt.
        found_chunks: u32,
    },
}

impl Assignment {
    /// An assignment that has just begun.
    pub fn new(booking: BookingRecord) -> Assignment {
        Assignment { booking: Some(booking), ..Assignment::default() }
    }

    /// Merges another report of the same assignment.
    pub fn merge(&mut self, other: Assignment) {
        self.booking = self.booking.take().or(other.booking);
        self.is_prefilled |= other.is_prefilled;
        self.end = self.end.max(other.end);
    }

    /// Bytes of the prompt's digests.
    pub fn prompt_bytes(&self) -> usize {
        let prompt = self.booking.as_ref().and_then(|booking| booking.prompt.as_ref());
        prompt.map_or(0, |prompt| prompt.digests.len() * size_of::<u64>())
    }

    /// Removes the prompt; returns whether there was one.
    pub fn drop_prompt(&mut self) -> bool {
        self.booking.as_mut().is_some_and(|booking| booking.prompt.take().is_some())
    }
}
