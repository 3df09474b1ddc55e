//! Reads an engine's load from its Prometheus page.
//!
//! Only a few of about a thousand lines matter, so a line's first bytes decide whether it is parsed. The metrics of
//! vLLM, SGLang and llama.cpp are known.

use warmroute_types::{CacheCapacity, LoadReport, Micros, PrefixCache};

/// The field that a metric fills.
#[derive(Clone, Copy)]
enum LoadField {
    Waiting,
    Running,
    KvUse,
    PrefixQueries,
    PrefixHits,
    /// Prompt tokens of a rank, computed or cached by the label `mode`.
    RankTokens,
}

/// Known metrics, including names of older engine versions.
const NAMES: [(&str, LoadField); 15] = [
    ("vllm:num_requests_waiting", LoadField::Waiting),
    ("vllm:num_requests_running", LoadField::Running),
    ("vllm:kv_cache_usage_perc", LoadField::KvUse),
    ("vllm:gpu_cache_usage_perc", LoadField::KvUse),
    ("vllm:prefix_cache_queries_total", LoadField::PrefixQueries),
    ("vllm:prefix_cache_hits_total", LoadField::PrefixHits),
    ("sglang:num_queue_reqs", LoadField::Waiting),
    ("sglang:num_running_reqs", LoadField::Running),
    ("sglang:token_usage", LoadField::KvUse),
    ("sglang:prompt_tokens_total", LoadField::PrefixQueries),
    ("sglang:cached_tokens_total", LoadField::PrefixHits),
    ("sglang:realtime_tokens_total", LoadField::RankTokens),
    ("llamacpp:requests_deferred", LoadField::Waiting),
    ("llamacpp:requests_processing", LoadField::Running),
    ("llamacpp:kv_cache_usage_ratio", LoadField::KvUse),
];

/// The load of one rank, or the sum of all ranks; `None` if the page has no known metric.
pub fn read_load(page: &[u8], rank: Option<u16>, at: Micros) -> Option<LoadReport> {
    let mut report = LoadReport { at, ..LoadReport::default() };
    let (mut known, mut rank_tokens) = (false, None::<PrefixCache>);
    for line in page.split(|&byte| byte == b'\n') {
        // Nearly every line is a comment or another metric. The first byte rules most of them out.
        if !matches!(line.first(), Some(b'v' | b's' | b'l')) {
            continue;
        }
        let Some((field, labels, value)) = read_line(line) else { continue };
        if rank.is_some_and(|rank| !is_of_rank(labels, rank)) {
            continue;
        }
        known = true;
        match field {
            LoadField::Waiting => report.waiting = report.waiting.saturating_add(value as u32),
            LoadField::Running => report.running = report.running.saturating_add(value as u32),
            LoadField::KvUse => report.add_kv_use(value as f32),
            LoadField::PrefixQueries => {
                let queries = &mut report.prefix_cache.get_or_insert_default().queries;
                *queries = queries.saturating_add(value as u64);
            }
            LoadField::PrefixHits => {
                let hits = &mut report.prefix_cache.get_or_insert_default().hits;
                *hits = hits.saturating_add(value as u64);
            }
            LoadField::RankTokens => {
                let is_cached = labels.contains("mode=\"prefill_cache\"");
                if is_cached || labels.contains("mode=\"prefill_compute\"") {
                    let counters = rank_tokens.get_or_insert_default();
                    counters.queries = counters.queries.saturating_add(value as u64);
                    counters.hits = counters.hits.saturating_add(if is_cached { value as u64 } else { 0 });
                }
            }
        }
    }
    // SGLang counts prompts and cached tokens for the whole server when a request ends, and for each rank as they are
    // computed. The two must not be mixed: a count that is smaller than before means that the engine was restarted.
    if rank.is_some() {
        report.prefix_cache = report.prefix_cache.or(rank_tokens);
    }
    known.then_some(report)
}

/// Whether the page lists ranks and this one is missing. The engine would refuse all requests for it.
pub fn lacks_rank(page: &[u8], rank: u16) -> bool {
    let (mut names_ranks, mut has_rank) = (false, false);
    for line in page.split(|&byte| byte == b'\n').filter(|line| matches!(line.first(), Some(b'v' | b's'))) {
        let Some((_, labels, _)) = read_line(line) else { continue };
        names_ranks |= labels.contains("engine=\"") || labels.contains("dp_rank=\"");
        has_rank |= is_of_rank(labels, rank);
    }
    names_ranks && !has_rank
}

/// The cache size, from vLLM's `cache_config_info` or SGLang's gauges; `None` if the page does not have it.
pub fn read_capacity(page: &[u8], rank: Option<u16>) -> Option<CacheCapacity> {
    read_vllm_capacity(page).or_else(|| read_sglang_capacity(page, rank))
}

/// From `sglang:max_total_num_tokens` and `sglang:page_size`: of one rank, or of all together.
fn read_sglang_capacity(page: &[u8], rank: Option<u16>) -> Option<CacheCapacity> {
    let (mut tokens, mut block_tokens) = (0_u64, 1);
    for line in page.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"sglang:")) {
        let Some((name, labels, value)) = split_line(line) else { continue };
        let has_rank = labels.contains("dp_rank=\"");
        if has_rank && rank.is_some_and(|rank| !is_of_rank(labels, rank)) {
            continue;
        }
        match name {
            "sglang:max_total_num_tokens" => tokens = tokens.checked_add(value as u64)?,
            "sglang:page_size" => block_tokens = (value as u32).max(1),
            _ => {}
        }
    }
    (tokens > 0).then_some(CacheCapacity { tokens, block_tokens })
}

fn read_vllm_capacity(page: &[u8]) -> Option<CacheCapacity> {
    let line = page.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"vllm:cache_config_info{"))?;
    let line = std::str::from_utf8(line).ok()?;
    let label = |name: &str| -> Option<u64> {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        rest.split('"').next()?.parse().ok()
    };
    let block_tokens = u32::try_from(label(",block_size").or(label("{block_size"))?).ok()?;
    let tokens = label("num_gpu_blocks")?.checked_mul(u64::from(block_tokens))?;
    Some(CacheCapacity { tokens, block_tokens })
}

/// A known metric's field, labels and value.
fn read_line(line: &[u8]) -> Option<(LoadField, &str, f64)> {
    let (name, labels, value) = split_line(line)?;
    let (_, field) = NAMES.iter().find(|(known, _)| *known == name)?;
    Some((*field, labels, value))
}

/// A line's name, labels and value.
fn split_line(line: &[u8]) -> Option<(&str, &str, f64)> {
    let line = std::str::from_utf8(line).ok()?;
    let end = line.find(['{', ' '])?;
    let (labels, value) = line[end..].rsplit_once(' ')?;
    Some((&line[..end], labels, value.parse().ok()?))
}

/// vLLM labels each rank's metrics with `engine`, SGLang with `dp_rank`.
fn is_of_rank(labels: &str, rank: u16) -> bool {
    labels.contains(&format!("engine=\"{rank}\"")) || labels.contains(&format!("dp_rank=\"{rank}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "\
# HELP vllm:num_requests_running LoadField of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 3.0
vllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 5.0
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2.0
vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} 9.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25
vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"tiny\"} 3660.0
vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 640.0
";

    #[test]
    fn vllm_load_is_read_for_one_rank_and_for_all() {
        let all = read_load(VLLM.as_bytes(), None, Micros(7)).unwrap();
        assert_eq!(
            all,
            LoadReport {
                waiting: 2,
                running: 8,
                kv_use: Some(0.25),
                prefix_cache: Some(PrefixCache { queries: 3_660, hits: 640 }),
                places: None,
                at: Micros(7),
            }
        );
        let rank = read_load(VLLM.as_bytes(), Some(1), Micros(7)).unwrap();
        assert_eq!((rank.waiting, rank.running), (0, 5));
    }

    #[test]
    fn a_missing_rank_is_noticed() {
        assert!(lacks_rank(VLLM.as_bytes(), 2));
        assert!(!lacks_rank(VLLM.as_bytes(), 1));
        assert!(!lacks_rank(b"sglang:num_running_reqs{model_name=\"m\"} 4\n", 2), "the page lists no ranks");
        assert!(!lacks_rank(b"", 2));
    }

    #[test]
    fn the_cache_size_is_read() {
        let page =
            b"# HELP x\nvllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"64\"} 1.0\n";
        assert_eq!(read_capacity(page, None).map(|capacity| capacity.tokens), Some(2_048));
        let other = b"vllm:cache_config_info{engine=\"0\",block_size=\"16\",hash_block_size=\"None\",num_gpu_blocks=\"10\"} 1.0";
        assert_eq!(read_capacity(other, None), Some(CacheCapacity { tokens: 160, block_tokens: 16 }));
        assert_eq!(read_capacity(b"vllm:cache_config_info{num_gpu_blocks=\"None\"} 1.0", None), None);
    }

    #[test]
    fn absurd_numbers_are_bounded() {
        let huge = "vllm:prefix_cache_queries_total{engine=\"0\"} 1e300\n".repeat(2)
            + &"vllm:prefix_cache_hits_total{engine=\"0\"} 1.9e19\n".repeat(2)
            + &"vllm:num_requests_waiting{engine=\"0\"} 1e99\n".repeat(2);
        let load = read_load(huge.as_bytes(), None, Micros(1)).unwrap();
        assert_eq!(load.prefix_cache, Some(PrefixCache { queries: u64::MAX, hits: u64::MAX }));
        assert_eq!(load.waiting, u32::MAX);
        let blocks = format!("{{block_size=\"16\",num_gpu_blocks=\"{}\"}} 1.0", u64::MAX / 2);
        assert_eq!(read_capacity(format!("vllm:cache_config_info{blocks}").as_bytes(), None), None);
    }

    #[test]
    fn sglang_load_is_read() {
        let page =
            b"sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 1\n";
        let load = read_load(page, None, Micros(1)).unwrap();
        assert_eq!((load.waiting, load.running), (1, 4));
    }

    /// Lines of a server with two ranks, in the order of its source (SGLang 0.5.20, `--enable-metrics`).
    const SGLANG: &str = "\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"} 4.0
sglang:num_running_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"1\"} 6.0
sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"0\"} 1.0
sglang:num_queue_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"1\"} 2.0
sglang:token_usage{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"0\"} 0.5
sglang:realtime_tokens_total{dp_rank=\"0\",mode=\"prefill_compute\",model_name=\"m\",tp_rank=\"0\"} 300.0
sglang:realtime_tokens_total{dp_rank=\"0\",mode=\"prefill_cache\",model_name=\"m\",tp_rank=\"0\"} 100.0
sglang:realtime_tokens_total{dp_rank=\"0\",mode=\"decode\",model_name=\"m\",tp_rank=\"0\"} 9000.0
sglang:realtime_tokens_total{dp_rank=\"1\",mode=\"prefill_compute\",model_name=\"m\",tp_rank=\"1\"} 50.0
sglang:max_total_num_tokens{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"0\"} 440000.0
sglang:max_total_num_tokens{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"1\"} 439936.0
sglang:max_total_num_tokens_swa{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"0\"} 7.0
sglang:page_size{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"0\"} 64.0
sglang:page_size{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",tp_rank=\"1\"} 64.0
sglang:prompt_tokens_total{is_streaming=\"True\",model_name=\"m\"} 330.0
sglang:prompt_tokens_total{is_streaming=\"False\",model_name=\"m\"} 120.0
sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 90.0
sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 10.0
sglang:cache_hit_rate{dp_rank=\"0\",model_name=\"m\"} 0.25
";

    #[test]
    fn sglangs_hits_and_cache_size_are_read_for_one_rank_and_for_all() {
        let load = |rank| read_load(SGLANG.as_bytes(), rank, Micros(1)).unwrap();
        let all = load(None);
        assert_eq!((all.waiting, all.running, all.kv_use), (3, 10, Some(0.5)));
        assert_eq!(all.prefix_cache, Some(PrefixCache { queries: 450, hits: 100 }));
        assert_eq!(load(Some(0)).prefix_cache, Some(PrefixCache { queries: 400, hits: 100 }));
        assert_eq!(load(Some(1)).prefix_cache, Some(PrefixCache { queries: 50, hits: 0 }));
        assert_eq!((load(Some(1)).waiting, load(Some(1)).running), (2, 6));
        let capacity = |rank| read_capacity(SGLANG.as_bytes(), rank).unwrap();
        assert_eq!(capacity(None), CacheCapacity { tokens: 879_936, block_tokens: 64 });
        assert_eq!(capacity(Some(1)), CacheCapacity { tokens: 439_936, block_tokens: 64 });
    }

    #[test]
    fn a_page_without_load_means_unknown_not_zero() {
        assert_eq!(
            read_load(b"# nothing\nprocess_cpu_seconds_total 5\nvllm:\xff 1\n", None, Micros(1)),
            None
        );
    }
}
