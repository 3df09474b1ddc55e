//! Engines' own reports.

use crate::Micros;

/// An engine's report of its load. It corrects our own bookings and is never the main signal, because it is old by
/// the time it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Requests that wait for a slot in the batch.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// Share of KV blocks in use by running requests, 0 to 1, where the engine tells.
    pub kv_use: Option<f32>,
    /// The engine's own counters of its prefix cache, where it has them.
    pub prefix_cache: Option<PrefixCache>,
    /// Requests that the engine computes at once at most, where it tells.
    pub places: Option<u32>,
    /// When the report arrived.
    pub at: Micros,
}

impl LoadReport {
    /// Adds one rank's share of KV blocks in use: the fullest rank's counts.
    pub fn add_kv_use(&mut self, used: f32) {
        self.kv_use = Some(self.kv_use.unwrap_or(0.0).max(used));
    }
}

/// An engine's prefix cache counters since its start, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCache {
    /// Tokens looked up.
    pub queries: u64,
    /// Tokens found.
    pub hits: u64,
}

/// The capacity of an engine's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCapacity {
    /// Total tokens.
    pub tokens: u64,
    /// Tokens in one block, the unit of a cache hit.
    pub block_tokens: u32,
}

/// What an engine reported about one finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Prompt tokens found in the cache; `None` when the engine did not report it, which differs from zero.
    pub cached_tokens: Option<u32>,
}
