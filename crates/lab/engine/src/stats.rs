//! The engine's own statistics, as in vLLM's metrics.

use warmroute_types::Micros;

/// Present gauges, and counters since the start. A [`restart`](crate::Engine::restart) resets the counters, as a new
/// process would.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Sequences that wait for a slot in the batch (`vllm:num_requests_waiting`).
    pub waiting: u32,
    /// Sequences in the batch (`vllm:num_requests_running`).
    pub running: u32,
    /// Share of blocks that a running sequence holds, 0 to 1 (`vllm:kv_cache_usage_perc`). As in vLLM, cached blocks
    /// without a holder do not count.
    pub kv_use: f64,
    /// All blocks.
    pub blocks_total: u32,
    /// Blocks that a running sequence holds.
    pub blocks_used: u32,
    /// Blocks with a name, which can be hit, held or not.
    pub blocks_cached: u32,
    /// Prompt tokens looked up (`vllm:prefix_cache_queries_total`).
    pub prefix_queries_tokens: u64,
    /// Prompt tokens found (`vllm:prefix_cache_hits_total`).
    pub prefix_hits_tokens: u64,
    /// Found tokens that were fetched from host memory.
    pub host_hits_tokens: u64,
    /// Found tokens that were fetched from the pool.
    pub pool_hits_tokens: u64,
    /// Times a sequence lost its blocks (`vllm:num_preemptions_total`).
    pub preemptions: u64,
    /// Time from submission to first scheduling, summed over the sequences that got that far
    /// (`vllm:request_queue_time_seconds_sum`).
    pub queued: Micros,
    /// Steps finished.
    pub steps: u64,
    /// Sequences that produced their last token.
    pub finished: u64,
    /// Tokens that finished steps computed, prompt and output, including recomputed ones.
    pub computed_tokens: u64,
}
