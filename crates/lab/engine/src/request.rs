//! A request to the engine: token counts and the names of the blocks that they fill.
//!
//! A real engine hashes tokens into block names; the model receives the names. So a simulator can invent prompts of a
//! hundred thousand tokens for the cost of a few thousand numbers.

use thiserror::Error;

/// The name of a full block. It stands for everything from the sequence's start to the end of the block: a chained
/// hash, computed by the caller. Names must be spread over all but the last 4 bits, as hashes are. Names that differ
/// only in those bits are stored together, which is fast for consecutive names of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName(pub u64);

/// One request, with the length of its answer given: the model generates no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The name of every full block of prompt and output together, `(prompt_tokens + output_tokens) / block_size` of
    /// them.
    pub chain: Vec<BlockName>,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
}

/// The engine's id of a request. An engine never reuses an id, even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl SequenceId {
    /// A small number that is unique among the engine's present sequences, for arrays of the driver.
    pub fn slot(self) -> usize {
        (self.0 % Self::USE) as usize
    }

    /// The number of uses of a slot is stored above the slot.
    pub(crate) const USE: u64 = 1 << 32;
}

/// Why a request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// The request could never run, not even alone.
    #[error("{tokens} tokens do not fit into the cache of {kv_tokens}")]
    TooLong {
        /// Prompt and output together.
        tokens: u64,
        /// Capacity of the whole cache.
        kv_tokens: u64,
    },
    /// The chain does not name exactly the full blocks.
    #[error("the chain names {given} blocks where {expected} are full")]
    ChainLength {
        /// Names given.
        given: usize,
        /// Names needed.
        expected: usize,
    },
    /// There is no prompt to prefill.
    #[error("a prompt needs at least one token")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("an answer needs at least one token")]
    EmptyOutput,
}
