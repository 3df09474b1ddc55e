//! The events of a step, returned to the engine's driver.
//!
//! A server turns them into response chunks and KV events, a simulator into figures. They come in vLLM's order: what
//! scheduling did to the cache, then what the step computed.

use warmroute_types::Micros;

use crate::{BlockName, SequenceId};

/// One event of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The sequence was scheduled for the first time.
    Started {
        /// The sequence.
        id: SequenceId,
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
        /// Time from submission to this step.
        queued: Micros,
    },
    /// The sequence produced an output token.
    Token {
        /// The sequence.
        id: SequenceId,
        /// The index of the output token; 0 is the first, at the end of the prefill.
        index: u32,
    },
    /// The sequence produced its last token; its blocks are free, and cached.
    Finished {
        /// The sequence.
        id: SequenceId,
    },
    /// The sequence lost its blocks to others and waits to be computed again.
    Preempted {
        /// The sequence.
        id: SequenceId,
    },
    /// Blocks became cached: a prompt that begins with the same names can use them.
    Stored {
        /// The sequence that filled them.
        id: SequenceId,
        /// The first of them, as an index into that sequence's chain.
        first_block: u32,
        /// Their number; they are consecutive.
        blocks: u32,
    },
    /// A cached block was evicted. A name that was stored twice is gone when it was removed twice.
    Removed {
        /// Its name.
        name: BlockName,
    },
    /// The same for the group with sliding-window attention.
    WindowStored {
        /// The sequence that filled them.
        id: SequenceId,
        /// The first of them, as an index into that sequence's chain.
        first_block: u32,
        /// Their number; they are consecutive.
        blocks: u32,
    },
    /// The group with sliding-window attention evicted a block.
    WindowRemoved {
        /// Its name.
        name: BlockName,
    },
    /// A slower memory now holds a cached block. The event has only the name, so it comes while the name is known.
    Kept {
        /// Its name.
        name: BlockName,
        /// The memory that holds it.
        memory: Memory,
    },
    /// The slower memory no longer holds the block.
    Dropped {
        /// Its name.
        name: BlockName,
        /// The memory that held it.
        memory: Memory,
    },
    /// The whole cache was emptied by [`clear_cache`](crate::Engine::clear_cache) since the last step.
    Cleared,
}

/// A memory behind the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// The engine's own host memory.
    Host,
    /// A pool that several engines share.
    Pool,
}

impl Happened {
    /// The evicted block.
    pub(crate) fn removed(&self) -> Option<BlockName> {
        match *self {
            Happened::Removed { name } => Some(name),
            _ => None,
        }
    }
}
