//! One request's stay with one worker, as its router tells it.
//!
//! A trip only goes forward: booked, computed, over. So reports of it need no order; together they say what the latest said.

use std::sync::Arc;

use warmroute_types::Delivery;

/// What is known of a trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trip {
    /// What was booked; the same whoever tells it, or not heard yet.
    pub booked: Option<Booked>,
    /// Its prompt has been computed: the worker's cache holds it.
    pub is_computed: bool,
    /// How it ended, if it has.
    pub over: Option<Over>,
}

/// A request on a worker's desk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    /// The worker's identity: a hash of its address, the same for every router.
    pub worker: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of these, what the worker was believed to hold.
    pub cached_tokens: u32,
    /// And what it was believed to fetch from slower memory.
    pub restorable_tokens: u32,
    /// How its answer comes: whether anybody will hear when its prompt is computed.
    pub delivery: Delivery,
    /// What will lie in the worker's cache; `None` where that is not known, or was given up for want of room.
    pub prompt: Option<Prompt>,
}

/// A prompt, without a word of it: keyed hashes of its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its namespace.
    pub root: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Tokens that a chunk is believed to have.
    pub chunk_tokens: u32,
    /// Its whole chunks, in order.
    pub digests: Arc<[u64]>,
}

/// How a trip ended. Of two reports the greater one is true: it knows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Over {
    /// It failed, or its client left, or nobody said.
    Left,
    /// It was answered, and the engine said nothing that would change what is believed.
    Answered,
    /// It was answered, and the engine had only so many chunks of what it was believed to hold.
    Found {
        /// From the beginning.
        chunks: u32,
    },
}

impl Trip {
    /// A trip that has just begun.
    pub fn begun(booked: Booked) -> Trip {
        Trip { booked: Some(booked), ..Trip::default() }
    }

    /// Takes in another report of the same trip.
    pub fn merge(&mut self, other: Trip) {
        self.booked = self.booked.take().or(other.booked);
        self.is_computed |= other.is_computed;
        self.over = self.over.max(other.over);
    }

    /// Bytes of its prompt's digests.
    pub fn prompt_bytes(&self) -> usize {
        let prompt = self.booked.as_ref().and_then(|booked| booked.prompt.as_ref());
        prompt.map_or(0, |prompt| prompt.digests.len() * size_of::<u64>())
    }

    /// Gives up its prompt; whether it had one.
    pub fn forget_prompt(&mut self) -> bool {
        self.booked.as_mut().is_some_and(|booked| booked.prompt.take().is_some())
    }
}
