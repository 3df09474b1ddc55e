//! What engines report about themselves.

use crate::Micros;

/// What an engine said about its load, and when we heard it. A correction to our own bookings, never the main signal:
/// it is old by the time it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Requests that wait for a place in the batch.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Share of KV blocks in use by running requests, 0 to 1.
    pub kv_use: f32,
    /// What the engine counts itself of its prefix cache, if it does.
    pub prefix_cache: Option<PrefixCache>,
    /// When it was heard.
    pub at: Micros,
}

/// An engine's own counters, since its start. Tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCache {
    /// Looked up.
    pub queries: u64,
    /// Found.
    pub hits: u64,
}

/// How much an engine's KV cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCapacity {
    /// In all.
    pub tokens: u64,
    /// In one block, the unit in which a prompt is found or not.
    pub block_tokens: u32,
}

/// What an engine reported about one finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Prompt tokens found in the cache; `None` when the engine did not say, which is not the same as zero.
    pub cached_tokens: Option<u32>,
}
