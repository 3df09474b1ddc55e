//! What the engine reports about itself, as vLLM's metrics do.

use warmroute_types::Micros;

/// Gauges of this moment and counters since the start (counters survive [`restart`](crate::Engine::restart) no more
/// than a process's would).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Sequences that wait for a place in the batch (`vllm:num_requests_waiting`).
    pub waiting: u32,
    /// Sequences in the batch (`vllm:num_requests_running`).
    pub running: u32,
    /// Share of blocks that a running sequence holds, 0 to 1 (`vllm:kv_cache_usage_perc`). Cached blocks that nobody
    /// holds do not count, as in vLLM.
    pub kv_use: f64,
    /// Blocks there are.
    pub blocks_total: u32,
    /// Blocks that a running sequence holds.
    pub blocks_used: u32,
    /// Blocks that carry a name and so can be hit, held or not.
    pub blocks_cached: u32,
    /// Prompt tokens that were looked up (`vllm:prefix_cache_queries_total`).
    pub prefix_queries_tokens: u64,
    /// Prompt tokens that were found (`vllm:prefix_cache_hits_total`).
    pub prefix_hits_tokens: u64,
    /// Those of them that were fetched from host memory.
    pub host_hits_tokens: u64,
    /// Those of them that were fetched from the pool.
    pub pool_hits_tokens: u64,
    /// Times a sequence lost its blocks (`vllm:num_preemptions_total`).
    pub preemptions: u64,
    /// Time from submission to first scheduling, summed over the sequences that got that far
    /// (`vllm:request_queue_time_seconds_sum`).
    pub queued: Micros,
    /// Steps finished.
    pub steps: u64,
    /// Sequences that gave their last token.
    pub finished: u64,
    /// Tokens the finished steps have computed, prompt and output, recomputed ones again.
    pub computed_tokens: u64,
}
