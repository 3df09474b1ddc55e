//! What an engine says happened to its KV cache.
//!
//! One word for all engines and wire formats. A block's name is the engine's own hash, opaque to us: a signed number is
//! taken bit by bit, a number as it is, a digest by its last eight bytes (vLLM's own number for it, which some of its events
//! use and others do not), and any other byte string by its xxh3. It only resolves parents and removals of the worker that
//! used it; content is the token ids.

use std::sync::Arc;

/// One thing that happened, in the order in which the engine tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks became reusable.
    Stored(StoredBlocks),
    /// Blocks were evicted.
    Removed(RemovedBlocks),
    /// The whole cache was emptied.
    Cleared,
    /// No engine says this, but another router: all that it knows of the cache at this moment.
    Restored(Restored),
}

/// All that a router knows of a worker's cache, for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// As the other router's index wrote it. It means nothing but to an index.
    pub bytes: Arc<[u8]>,
    /// Which of the model's caches it is of, where that was told.
    pub group: Option<u16>,
    /// The first batch of which it knows; what the cache held before may be missing.
    pub floor_seq: u64,
}

/// A run of blocks, each the parent of the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The engine's names, in order. A name that is stored twice is there until it was removed twice.
    pub names: Vec<u64>,
    /// The block before the first; none where the run begins a prompt.
    pub parent: Option<u64>,
    /// The tokens of all blocks, one after another: `names.len() * block_tokens` of them. None where blocks that were told
    /// before are told [by name](StoredBlocks::is_by_name).
    pub tokens: Vec<u32>,
    /// What another router has made of the tokens, which are not passed on: then there are none here.
    pub cut: Option<Cut>,
    /// Tokens in a block; 0 where the engine does not say.
    pub block_tokens: u32,
    /// How many of the leading blocks are nothing but text. From the first block with an image (or another input that is
    /// no text) on, the tokens do not tell the content.
    pub text_blocks: u32,
    /// The LoRA adapter; an engine that only gives it a number is quoted as `#number`.
    pub lora: Option<Box<str>>,
    /// The cache salt. Engines say it with the first block of a prompt; a run with a parent is in its parent's namespace.
    pub salt: Option<Box<str>>,
    /// Where the blocks lie.
    pub medium: Medium,
    /// Which of the model's caches holds them, and what a hit there is worth.
    pub group: Group,
}

impl StoredBlocks {
    /// Whether these are blocks that the engine told before with their tokens, and has now put into a slower memory too. So
    /// does vLLM's offloading connector unless it is asked for more: names, no parent, and a block size of 0.
    pub fn is_by_name(&self) -> bool {
        self.tokens.is_empty() && self.cut.is_none() && self.medium != Medium::Gpu
    }
}

/// The content of blocks as routers with one secret digest it: without a token of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Where their prompts begin: model, adapter and salt, as a number.
    pub root: u64,
    /// By block, its digest and its length in bytes.
    pub spans: Vec<(u64, u32)>,
}

/// Blocks that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedBlocks {
    /// Their names.
    pub names: Vec<u64>,
    /// Where they lay.
    pub medium: Medium,
    /// Which of the model's caches held them. What kind of attention that is, engines say only when they store.
    pub group: u16,
}

/// Where a block lies. Everything but the GPU costs time to restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// The accelerator's memory: a hit costs nothing. What an engine that names no medium means.
    #[default]
    Gpu,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// Another machine, or a store shared by several.
    External,
}

/// One of the caches of a model that mixes several kinds of attention. Most models have only group 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The engine's number for it.
    pub index: u16,
    /// What it caches.
    pub attention: Attention,
}

/// Whether a prefix that is held can be continued from any of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// Every token sees all before it.
    #[default]
    Full,
    /// A sliding window, a recurrent state or anything else whose blocks alone make no prefix.
    Other,
}

/// What one message of an event stream carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// When the engine made it, in seconds since 1970 by its own clock. For one that does not say, the number of its life, from 1 on: it
    /// tells which of two lives is the later one, and no router's clock does.
    pub at_unix_s: f64,
    /// What happened.
    pub events: Vec<CacheEvent>,
    /// The data-parallel rank that speaks, where it says so.
    pub rank: Option<u16>,
    /// Events that could not be read and are not in `events`.
    pub unreadable: u32,
    /// A hash of the message, by which the same batch is known again.
    pub print: u64,
}

impl EventBatch {
    /// Blocks stored, and blocks removed.
    pub fn blocks(&self) -> (u64, u64) {
        self.events.iter().fold((0, 0), |(stored, removed), event| match event {
            CacheEvent::Stored(blocks) => (stored + blocks.names.len() as u64, removed),
            CacheEvent::Removed(blocks) => (stored, removed + blocks.names.len() as u64),
            CacheEvent::Cleared | CacheEvent::Restored(_) => (stored, removed),
        })
    }
}

impl Medium {
    /// The word used in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Medium::Gpu => "gpu",
            Medium::Host => "host",
            Medium::Disk => "disk",
            Medium::External => "external",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_over_all_events() {
        let stored = |names| CacheEvent::Stored(StoredBlocks { names, ..StoredBlocks::default() });
        let removed = |names| CacheEvent::Removed(RemovedBlocks { names, ..RemovedBlocks::default() });
        let events = vec![stored(vec![1, 2]), removed(vec![9]), CacheEvent::Cleared, stored(vec![3])];
        assert_eq!(EventBatch { events, ..EventBatch::default() }.blocks(), (3, 1));
    }
}
