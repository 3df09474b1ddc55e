//! Reads TensorRT-LLM's `/metrics`: a JSON list with an object for each iteration since the page was last read.
//!
//! It has entries only with `enable_iter_perf_stats`. Reading takes them away, so the page should have one reader. Between
//! requests the list is empty, which says nothing.

use serde::Deserialize;
use warmroute_types::{CacheCapacity, LoadReport, Micros, PrefixCache};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Iteration {
    attention_dp_rank: Option<u16>,
    num_active_requests: Option<u32>,
    max_num_active_requests: Option<u32>,
    #[serde(default)]
    num_queued_requests: u32,
    kv_cache_stats: Option<KvCacheStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KvCacheStats {
    #[serde(default)]
    max_num_blocks: u64,
    #[serde(default)]
    used_num_blocks: u64,
    #[serde(default)]
    tokens_per_block: u32,
    /// Since the start.
    reused_blocks: Option<u64>,
    missed_blocks: Option<u64>,
}

/// What a page of iterations says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorRtReport {
    /// The load after the last iteration.
    pub load: LoadReport,
    /// The size of the cache, if the page has it.
    pub capacity: Option<CacheCapacity>,
}

/// Whether the page is such a list, and not text in Prometheus' format.
pub fn is_iteration_list(page: &[u8]) -> bool {
    page.trim_ascii_start().starts_with(b"[")
}

/// The last iteration of one rank, or of all ranks together; `None` if there was none.
pub fn read_iterations(page: &[u8], rank: Option<u16>, at: Micros) -> Option<TensorRtReport> {
    let iterations: Vec<Iteration> = serde_json::from_slice(page).ok()?;
    let mut last: Vec<&Iteration> = Vec::new();
    for iteration in iterations.iter().rev() {
        let of = iteration.attention_dp_rank;
        let is_ours = rank.is_none_or(|rank| of.unwrap_or(0) == rank);
        if is_ours && !last.iter().any(|known| known.attention_dp_rank == of) {
            last.push(iteration);
        }
    }
    let mut report = TensorRtReport { load: LoadReport { at, ..LoadReport::default() }, capacity: None };
    last.iter().for_each(|iteration| iteration.add_to(&mut report));
    // A rank that was idle is not in the list. Sums over the others would seem to shrink, as after a restart.
    if rank.is_none() && last.iter().any(|iteration| iteration.attention_dp_rank.is_some()) {
        (report.load.prefix_cache, report.capacity, report.load.places) = (None, None, None);
    }
    (!last.is_empty()).then_some(report)
}

impl Iteration {
    fn add_to(&self, report: &mut TensorRtReport) {
        let load = &mut report.load;
        load.waiting = load.waiting.saturating_add(self.num_queued_requests);
        load.running = load.running.saturating_add(self.num_active_requests.unwrap_or(0));
        let places = self.max_num_active_requests.filter(|&places| places > 0);
        load.places = places.map(|places| load.places.unwrap_or(0).saturating_add(places));
        let Some(stats) = &self.kv_cache_stats else { return };
        if stats.max_num_blocks > 0 {
            load.add_kv_use(stats.used_num_blocks as f32 / stats.max_num_blocks as f32);
        }
        let block_tokens = u64::from(stats.tokens_per_block);
        if let (Some(reused), Some(missed)) = (stats.reused_blocks, stats.missed_blocks) {
            let counters = load.prefix_cache.get_or_insert(PrefixCache::default());
            let hits = reused.saturating_mul(block_tokens);
            counters.hits = counters.hits.saturating_add(hits);
            counters.queries =
                counters.queries.saturating_add(hits.saturating_add(missed.saturating_mul(block_tokens)));
        }
        let tokens = stats.max_num_blocks.checked_mul(block_tokens).filter(|&tokens| tokens > 0);
        if let Some(tokens) = tokens {
            let before = report.capacity.map_or(0, |capacity| capacity.tokens);
            let tokens = before.saturating_add(tokens);
            report.capacity = Some(CacheCapacity { tokens, block_tokens: stats.tokens_per_block });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two iterations of the documented shape.
    const PAGE: &str = r#"[{"cpuMemUsage":0,"gpuMemUsage":56401920000,
        "inflightBatchingStats":{"microBatchId":0,"numContextRequests":1,"numCtxTokens":6,"numGenRequests":0,"numPausedRequests":0,"numScheduledRequests":1},
        "iter":1,"iterLatencyMS":16.5,
        "kvCacheStats":{"allocNewBlocks":1,"allocTotalBlocks":1,"cacheHitRate":0.0,"freeNumBlocks":101255,"maxNumBlocks":101256,"missedBlocks":1,"reusedBlocks":0,"tokensPerBlock":32,"usedNumBlocks":1},
        "maxNumActiveRequests":2048,"newActiveRequestsQueueLatencyMS":0.0007,"numActiveRequests":1,"numQueuedRequests":0},
        {"iter":2,"iterLatencyMS":9.1,
        "kvCacheStats":{"allocNewBlocks":1,"allocTotalBlocks":9,"cacheHitRate":0.75,"freeNumBlocks":50628,"maxNumBlocks":101256,"missedBlocks":5,"reusedBlocks":15,"tokensPerBlock":32,"usedNumBlocks":50628},
        "maxNumActiveRequests":2048,"numActiveRequests":12,"numQueuedRequests":4,"numCompletedRequests":1}]"#;

    #[test]
    fn the_last_iteration_counts() {
        assert!(is_iteration_list(PAGE.as_bytes()) && !is_iteration_list(b"# HELP x\n"));
        let report = read_iterations(PAGE.as_bytes(), None, Micros(3)).unwrap();
        let expected = LoadReport {
            waiting: 4,
            running: 12,
            kv_use: Some(0.5),
            prefix_cache: Some(PrefixCache { queries: 640, hits: 480 }),
            places: Some(2_048),
            at: Micros(3),
        };
        assert_eq!(report.load, expected);
        assert_eq!(report.capacity, Some(CacheCapacity { tokens: 101_256 * 32, block_tokens: 32 }));
    }

    #[test]
    fn ranks_are_told_apart_and_an_empty_list_says_nothing() {
        let page =
            br#"[{"attentionDpRank":0,"numActiveRequests":1},{"attentionDpRank":1,"numActiveRequests":5},
            {"attentionDpRank":0,"numActiveRequests":2,"numQueuedRequests":7}]"#;
        let running = |rank| read_iterations(page, rank, Micros(3)).map(|report| report.load.running);
        assert_eq!(
            (running(None), running(Some(0)), running(Some(1)), running(Some(2))),
            (Some(7), Some(2), Some(5), None)
        );
        for nothing in ["[]", "[1]", "{}", ""] {
            assert_eq!(read_iterations(nothing.as_bytes(), None, Micros(3)), None, "{nothing}");
        }
    }
}
