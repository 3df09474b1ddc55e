//! An engine's load, read from its Prometheus page.
//!
//! Only a few numbers are wanted of a page of a thousand lines, so lines are judged by their first bytes and the rest is
//! never parsed. vLLM and SGLang are known; llama.cpp's names are too.

use warmroute_types::{CacheCapacity, LoadReport, Micros};

/// Which number a line gives.
#[derive(Clone, Copy)]
enum Number {
    Waiting,
    Running,
    KvUse,
    PrefixQueries,
    PrefixHits,
}

/// Metric names, older ones too.
const NAMES: [(&str, Number); 12] = [
    ("vllm:num_requests_waiting", Number::Waiting),
    ("vllm:num_requests_running", Number::Running),
    ("vllm:kv_cache_usage_perc", Number::KvUse),
    ("vllm:gpu_cache_usage_perc", Number::KvUse),
    ("vllm:prefix_cache_queries_total", Number::PrefixQueries),
    ("vllm:prefix_cache_hits_total", Number::PrefixHits),
    ("sglang:num_queue_reqs", Number::Waiting),
    ("sglang:num_running_reqs", Number::Running),
    ("sglang:token_usage", Number::KvUse),
    ("llamacpp:requests_deferred", Number::Waiting),
    ("llamacpp:requests_processing", Number::Running),
    ("llamacpp:kv_cache_usage_ratio", Number::KvUse),
];

/// The load of one rank (or, without a rank, of all of them together); `None` if the page names none of it.
pub fn read_load(page: &[u8], rank: Option<u16>, at: Micros) -> Option<LoadReport> {
    let mut report = LoadReport { at, ..LoadReport::default() };
    let mut known = false;
    for line in page.split(|&byte| byte == b'\n') {
        // Nearly every line is a comment or another metric: two bytes tell most of them apart.
        if !matches!(line.first(), Some(b'v' | b's' | b'l')) {
            continue;
        }
        let Some((number, labels, value)) = read_line(line) else { continue };
        if rank.is_some_and(|rank| !is_of_rank(labels, rank)) {
            continue;
        }
        known = true;
        match number {
            Number::Waiting => report.waiting = report.waiting.saturating_add(value as u32),
            Number::Running => report.running = report.running.saturating_add(value as u32),
            Number::KvUse => report.kv_use = report.kv_use.max(value as f32),
            Number::PrefixQueries => report.prefix_cache.get_or_insert_default().queries += value as u64,
            Number::PrefixHits => report.prefix_cache.get_or_insert_default().hits += value as u64,
        }
    }
    known.then_some(report)
}

/// Whether the engine says which ranks it has, and this is none of them: it would refuse every request for it.
pub fn lacks_rank(page: &[u8], rank: u16) -> bool {
    let (mut names_ranks, mut has_rank) = (false, false);
    for line in page.split(|&byte| byte == b'\n').filter(|line| matches!(line.first(), Some(b'v' | b's'))) {
        let Some((_, labels, _)) = read_line(line) else { continue };
        names_ranks |= labels.contains("engine=\"") || labels.contains("dp_rank=\"");
        has_rank |= is_of_rank(labels, rank);
    }
    names_ranks && !has_rank
}

/// How much the cache holds, from vLLM's `cache_config_info`; `None` if the page does not say.
pub fn read_capacity(page: &[u8]) -> Option<CacheCapacity> {
    let line = page.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"vllm:cache_config_info{"))?;
    let line = std::str::from_utf8(line).ok()?;
    let label = |name: &str| -> Option<u64> {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        rest.split('"').next()?.parse().ok()
    };
    let block_tokens = u32::try_from(label(",block_size").or(label("{block_size"))?).ok()?;
    Some(CacheCapacity { tokens: label("num_gpu_blocks")? * u64::from(block_tokens), block_tokens })
}

/// A known metric's number, its labels and its value.
fn read_line(line: &[u8]) -> Option<(Number, &str, f64)> {
    let line = std::str::from_utf8(line).ok()?;
    let end = line.find(['{', ' '])?;
    let (_, number) = NAMES.iter().find(|(name, _)| *name == &line[..end])?;
    let (labels, value) = line[end..].rsplit_once(' ')?;
    Some((*number, labels, value.parse().ok()?))
}

/// vLLM labels each rank's numbers with `engine`, SGLang with `dp_rank`.
fn is_of_rank(labels: &str, rank: u16) -> bool {
    labels.contains(&format!("engine=\"{rank}\"")) || labels.contains(&format!("dp_rank=\"{rank}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::PrefixCache;

    const VLLM: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
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
    fn vllms_page_is_understood_by_rank_and_in_all() {
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
    fn ranks_that_the_engine_does_not_have_are_known() {
        assert!(lacks_rank(VLLM.as_bytes(), 2));
        assert!(!lacks_rank(VLLM.as_bytes(), 1));
        assert!(!lacks_rank(b"sglang:num_running_reqs{model_name=\"m\"} 4\n", 2), "it does not say");
        assert!(!lacks_rank(b"", 2));
    }

    #[test]
    fn the_caches_size_is_read() {
        let page =
            b"# HELP x\nvllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"64\"} 1.0\n";
        assert_eq!(read_capacity(page).map(|capacity| capacity.tokens), Some(2_048));
        let other = b"vllm:cache_config_info{engine=\"0\",block_size=\"16\",hash_block_size=\"None\",num_gpu_blocks=\"10\"} 1.0";
        assert_eq!(read_capacity(other), Some(CacheCapacity { tokens: 160, block_tokens: 16 }));
        assert_eq!(read_capacity(b"vllm:cache_config_info{num_gpu_blocks=\"None\"} 1.0"), None);
    }

    #[test]
    fn sglangs_page_is_understood() {
        let page =
            b"sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 1\n";
        let load = read_load(page, None, Micros(1)).unwrap();
        assert_eq!((load.waiting, load.running), (1, 4));
    }

    #[test]
    fn a_page_without_load_is_unknown_not_zero() {
        assert_eq!(
            read_load(b"# nothing\nprocess_cpu_seconds_total 5\nvllm:\xff 1\n", None, Micros(1)),
            None
        );
    }
}
