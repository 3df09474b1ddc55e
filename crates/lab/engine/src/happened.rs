//! What a step brought about, told to whoever drives the engine.
//!
//! A server turns these into response chunks and KV events, a simulator into figures. They come in the order in which
//! vLLM makes them: what scheduling did to the cache, then what the step computed.

use crate::{BlockName, SequenceId};

/// One thing that happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The sequence was scheduled for the first time.
    Started {
        /// Which one.
        id: SequenceId,
        /// Prompt tokens that were found in the cache.
        cached_tokens: u32,
    },
    /// An output token came out.
    Token {
        /// Whose.
        id: SequenceId,
        /// Which output token; 0 is the first, at the end of the prefill.
        index: u32,
    },
    /// The last token came out; the sequence's blocks are free, and cached.
    Finished {
        /// Which one.
        id: SequenceId,
    },
    /// The sequence lost its blocks to others and waits to be computed again.
    Preempted {
        /// Which one.
        id: SequenceId,
    },
    /// Blocks became cached: a prompt that begins with the same names can use them.
    Stored {
        /// Who filled them.
        id: SequenceId,
        /// The first of them, as an index into that sequence's chain.
        first_block: u32,
        /// How many, one after another.
        blocks: u32,
    },
    /// A cached block was evicted. A name that was stored twice is gone when it was removed twice.
    Removed {
        /// Its name.
        name: BlockName,
    },
    /// A cached block lies in a slower memory now. Told while it is still known from elsewhere, because it is told by name alone.
    Kept {
        /// Its name.
        name: BlockName,
        /// Where it lies.
        memory: Memory,
    },
    /// It does no more.
    Dropped {
        /// Its name.
        name: BlockName,
        /// Where it lay.
        memory: Memory,
    },
    /// The whole cache was emptied by [`clear_cache`](crate::Engine::clear_cache) since the last step.
    Cleared,
}

/// A memory behind the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// The engine's own host's.
    Host,
    /// One that several engines share.
    Pool,
}

impl Happened {
    /// The block that was evicted.
    pub(crate) fn removed(&self) -> Option<BlockName> {
        match *self {
            Happened::Removed { name } => Some(name),
            _ => None,
        }
    }
}
