//! Reads an engine's load from its Prometheus page.
//!
//! Only a few of about a thousand lines matter, so a line's first bytes decide whether it is parsed. The metrics of
//! vLLM, SGLang and llama.cpp are known.

use warmroute_types::{CacheCapacity, LoadReport, Micros};

/// The field that a metric fills.
#[derive(Clone, Copy)]
enum LoadField {
    Waiting,
    Running,
    KvUse,
    PrefixQueries,
    PrefixHits,
}

/// Known metrics, including names of older engine versions.
const NAMES: [(&str, LoadField); 12] = [
    ("vllm:num_requests_waiting", LoadField::Waiting),
    ("vllm:num_requests_running", LoadField::Running),
    ("vllm:kv_cache_usage_perc", LoadField::KvUse),
    ("vllm:gpu_cache_usage_perc", LoadField::KvUse),
    ("vllm:prefix_cache_queries_total", LoadField::PrefixQueries),
    ("vllm:prefix_cache_hits_total", LoadField::PrefixHits),
    ("sglang:num_queue_reqs", LoadField::Waiting),
    ("sglang:num_running_reqs", LoadField::Running),
    ("sglang:token_usage", LoadField::KvUse),
    ("llamacpp:requests_deferred", LoadField::Waiting),
    ("llamacpp:requests_processing", LoadField::Running),
    ("llamacpp:kv_cache_usage_ratio", LoadField::KvUse),
];

/// The load of one rank, or the sum of all ranks; `None` if the page has no known metric.
pub fn read_load(page: &[u8], rank: Option<u16>, at: Micros) -> Option<LoadReport> {
    let mut report = LoadReport { at, ..LoadReport::default() };
    let mut known = false;
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
            LoadField::KvUse => report.kv_use = report.kv_use.max(value as f32),
            LoadField::PrefixQueries => {
                let queries = &mut report.prefix_cache.get_or_insert_default().queries;
                *queries = queries.saturating_add(value as u64);
            }
            LoadField::PrefixHits => {
                let hits = &mut report.prefix_cache.get_or_insert_default().hits;
                *hits = hits.saturating_add(value as u64);
            }
        }
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

/// The cache size, from vLLM's `cache_config_info`; `None` if the page does not have it.
pub fn read_capacity(page: &[u8]) -> Option<CacheCapacity> {
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
    let line = std::str::from_utf8(line).ok()?;
    let end = line.find(['{', ' '])?;
    let (_, field) = NAMES.iter().find(|(name, _)| *name == &line[..end])?;
    let (labels, value) = line[end..].rsplit_once(' ')?;
    Some((*field, labels, value.parse().ok()?))
}

/// vLLM labels each rank's metrics with `engine`, SGLang with `dp_rank`.
fn is_of_rank(labels: &str, rank: u16) -> bool {
    labels.contains(&format!("engine=\"{rank}\"")) || labels.contains(&format!("dp_rank=\"{rank}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::PrefixCache;

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
                kv_use: 0.25,
                prefix_cache: Some(PrefixCache { queries: 3_660, hits: 640 }),
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
        assert_eq!(read_capacity(page).map(|capacity| capacity.tokens), Some(2_048));
        let other = b"vllm:cache_config_info{engine=\"0\",block_size=\"16\",hash_block_size=\"None\",num_gpu_blocks=\"10\"} 1.0";
        assert_eq!(read_capacity(other), Some(CacheCapacity { tokens: 160, block_tokens: 16 }));
        assert_eq!(read_capacity(b"vllm:cache_config_info{num_gpu_blocks=\"None\"} 1.0"), None);
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
        assert_eq!(read_capacity(format!("vllm:cache_config_info{blocks}").as_bytes()), None);
    }

    #[test]
    fn sglang_load_is_read() {
        let page =
            b"sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 1\n";
        let load = read_load(page, None, Micros(1)).unwrap();
        assert_eq!((load.waiting, load.running), (1, 4));
    }

    #[test]
    fn a_page_without_load_means_unknown_not_zero() {
        assert_eq!(
            read_load(b"# nothing\nprocess_cpu_seconds_total 5\nvllm:\xff 1\n", None, Micros(1)),
            None
        );
    }
}
