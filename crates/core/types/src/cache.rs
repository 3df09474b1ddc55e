//! Events of an engine's KV cache, in one form for all engines and wire formats.
//!
//! A block's name is the engine's own hash, opaque to us. A signed number is taken bit by bit, an unsigned number as
//! it is, a digest by its last eight bytes (vLLM's own number for it, which some of its events use and others do
//! not), and any other byte string by its xxh3. A name only resolves parents and removals of the worker that used it;
//! the content is the token ids.

/// One event, in the order in which the engine sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks became reusable.
    Stored(StoredBlocks),
    /// Blocks were evicted.
    Removed(RemovedBlocks),
    /// The whole cache was emptied.
    Cleared,
}

/// A chain of blocks, each the parent of the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The engine's names, in order. A name stored twice stays until it is removed twice.
    pub names: Vec<u64>,
    /// The block before the first; `None` where the chain begins a prompt.
    pub parent: Option<u64>,
    /// The tokens of all blocks in order: `names.len() * block_tokens`. Empty where the engine repeats known blocks
    /// [by name](StoredBlocks::is_by_name).
    pub tokens: Vec<u32>,
    /// Tokens in a block; 0 where the engine does not state it.
    pub block_tokens: u32,
    /// How many of the leading blocks contain only text. From the first block with an image (or another input that is
    /// not text) on, the tokens do not determine the content.
    pub text_blocks: u32,
    /// How many of the blocks after those are determined by their tokens and `media`.
    pub media_blocks: u32,
    /// The media that begin in these blocks, in order.
    pub media: Vec<MediumStart>,
    /// The LoRA adapter. An adapter that the engine only numbers is `#number`.
    pub lora: Option<Box<str>>,
    /// The cache salt. Engines send it with the first block of a prompt; a chain with a parent is in its parent's
    /// namespace.
    pub salt: Option<Box<str>>,
    /// The memory that holds the blocks.
    pub medium: Medium,
    /// The model's cache that holds them, and its kind of attention.
    pub group: Group,
}

/// Where an image, audio or video begins in a chain of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumStart {
    /// Its first token, as an index into the chain's tokens.
    pub token: u32,
    /// A hash of the engine's own hash of it.
    pub hash: u64,
}

impl StoredBlocks {
    /// Whether these are known blocks that the engine copied to a slower memory too. vLLM's offloading connector
    /// reports them so by default: names, no parent, and a block size of 0.
    pub fn is_by_name(&self) -> bool {
        self.tokens.is_empty() && self.medium != Medium::Gpu
    }
}

/// Evicted blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedBlocks {
    /// The engine's hashes, by which it stored them.
    pub names: Vec<u64>,
    /// The memory that held them.
    pub medium: Medium,
    /// The model's cache that held them. Engines state the kind of attention only when they store.
    pub group: u16,
}

/// The memory that holds a block. Everything but the GPU costs time to restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// The accelerator's memory: a hit costs nothing. The default where an engine names no medium.
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
    /// Its kind of attention.
    pub attention: Attention,
}

/// What a group must hold so that the engine can continue a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Every block from the start: each token sees all before it.
    #[default]
    Full,
    /// The blocks of the last tokens before the continuation.
    Window {
        /// Tokens that a token sees, itself included.
        tokens: u32,
    },
    /// The block at whose end the prefix is continued: a recurrent state.
    State,
    /// Blocks of full attention that the event names without their positions.
    Unplaced,
    /// A rule that is not known, or that events do not describe.
    Unfollowed(UnfollowedKind),
}

/// A kind of cache whose blocks do not show which prefixes the engine can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnfollowedKind {
    /// Attention within chunks; events do not state the size of a chunk.
    ChunkedLocal,
    /// A sliding window whose size the event does not state.
    WindowWithoutSize,
    /// A window of TensorRT-LLM, whose rule is not known.
    TensorRtWindow,
    /// A further group of an engine that states no kinds, as vLLM 0.20 and 0.21.
    Unstated,
    /// Blocks whose names depend on tokens after them, as vLLM 0.33 can report them.
    Lookahead,
    /// Any other kind.
    Unknown,
}

impl UnfollowedKind {
    /// The kind in the words of a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            UnfollowedKind::ChunkedLocal => {
                "chunked_local_attention, and its events do not state the chunk's size"
            }
            UnfollowedKind::WindowWithoutSize => {
                "sliding_window, and its events do not state the window's size"
            }
            UnfollowedKind::TensorRtWindow => {
                "a smaller window of TensorRT-LLM, whose rule for reuse is not known"
            }
            UnfollowedKind::Unstated => "not stated by the engine; vLLM states it from 0.22 on",
            UnfollowedKind::Lookahead => {
                "one whose blocks depend on tokens after them (lookahead_token_ids), which prompts are not compared with"
            }
            UnfollowedKind::Unknown => "not known to this router",
        }
    }
}

/// One message of an event stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// When the engine created the message, in seconds since 1970 by its own clock; 0 for an engine without a clock.
    pub at_unix_s: f64,
    /// The events, in order.
    pub events: Vec<CacheEvent>,
    /// The data-parallel rank that sent it, where stated.
    pub rank: Option<u16>,
    /// Events that could not be read and are not in `events`.
    pub unreadable: u32,
    /// A hash of the message, which identifies a repeated batch.
    pub print: u64,
}

impl EventBatch {
    /// Blocks stored, and blocks removed.
    pub fn blocks(&self) -> (u64, u64) {
        self.events.iter().fold((0, 0), |(stored, removed), event| match event {
            CacheEvent::Stored(blocks) => (stored + blocks.names.len() as u64, removed),
            CacheEvent::Removed(blocks) => (stored, removed + blocks.names.len() as u64),
            CacheEvent::Cleared => (stored, removed),
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
