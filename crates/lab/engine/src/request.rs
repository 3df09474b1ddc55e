//! What a caller asks of the engine: counts of tokens and the names of the blocks they fill.
//!
//! A real engine hashes tokens into block names; the model is given the names. So a simulator can invent prompts of a
//! hundred thousand tokens for the price of a few thousand numbers.

use thiserror::Error;

/// The name of a full block. It stands for everything from the sequence's start to the end of the block: a chained
/// hash, made by the caller. Names must be spread over all but the last 4 bits, as hashes are. Names that differ only in
/// those are kept together, which is fast for names that follow each other in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName(pub u64);

/// One request, with the length of its answer already decided: the model generates nothing, so someone must.
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

/// The engine's own number for a request. Never used twice by one engine, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl SequenceId {
    /// A small number that no other sequence in the engine has at the same time: a driver's own notes can be an array.
    pub fn slot(self) -> usize {
        (self.0 % Self::USE) as usize
    }

    /// The uses of a slot are counted above its number.
    pub(crate) const USE: u64 = 1 << 32;
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// It could never run, not even alone.
    #[error("{tokens} tokens do not fit into the cache of {kv_tokens}")]
    TooLong {
        /// Prompt and output together.
        tokens: u64,
        /// What the whole cache holds.
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
