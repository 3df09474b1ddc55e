//! Reads SGLang's JSON: the size of its cache from `/server_info`, and its load from `/v1/loads` or `/get_load`.
//!
//! SGLang has a Prometheus page only with `--enable-metrics`. These pages always exist.

use serde::Deserialize;
use warmroute_types::{CacheCapacity, LoadReport, Micros};

/// `GET /server_info`, earlier `/get_server_info`: the server's settings and what its schedulers said at startup.
#[derive(Deserialize)]
struct ServerInfo {
    /// Tokens that fit into the cache of one rank.
    max_total_num_tokens: Option<u64>,
    page_size: Option<u32>,
    dp_size: Option<u64>,
    #[serde(default)]
    internal_states: Vec<InternalState>,
}

#[derive(Deserialize)]
struct InternalState {
    memory_usage: Option<MemoryUsage>,
}

#[derive(Deserialize)]
struct MemoryUsage {
    token_capacity: Option<u64>,
}

/// The size of one rank's cache, or of all ranks' together; `None` if the page does not say.
pub fn read_sglang_capacity(page: &[u8], rank: Option<u16>) -> Option<CacheCapacity> {
    let info: ServerInfo = serde_json::from_slice(page).ok()?;
    let of_state = |state: &InternalState| state.memory_usage.as_ref()?.token_capacity;
    let each: Vec<u64> = info.internal_states.iter().filter_map(of_state).collect();
    let tokens = match (rank, each.is_empty()) {
        (Some(rank), false) => each.get(usize::from(rank)).copied().or(info.max_total_num_tokens)?,
        (Some(_), true) => info.max_total_num_tokens?,
        (None, false) => each.iter().try_fold(0_u64, |sum, tokens| sum.checked_add(*tokens))?,
        (None, true) => info.max_total_num_tokens?.checked_mul(info.dp_size.unwrap_or(1).max(1))?,
    };
    let block_tokens = info.page_size.unwrap_or(1).max(1);
    (tokens > 0).then_some(CacheCapacity { tokens, block_tokens })
}

/// `GET /v1/loads`, or a bare list of earlier versions (`/get_load`).
#[derive(Deserialize)]
#[serde(untagged)]
enum Loads {
    Listed { loads: Vec<RankLoad> },
    Bare(Vec<RankLoad>),
}

#[derive(Deserialize)]
struct RankLoad {
    dp_rank: Option<u16>,
    /// `/v1/loads`
    num_running_reqs: Option<u32>,
    /// `/get_load`: running and waiting requests.
    num_reqs: Option<u32>,
    #[serde(default)]
    num_waiting_reqs: u32,
    token_usage: Option<f32>,
    /// `/v1/loads`
    max_running_requests: Option<u32>,
}

/// The load of one rank, or the sum of all ranks; `None` if the page is something else.
pub fn read_sglang_load(page: &[u8], rank: Option<u16>, at: Micros) -> Option<LoadReport> {
    let loads = match serde_json::from_slice(page).ok()? {
        Loads::Listed { loads } | Loads::Bare(loads) => loads,
    };
    let mut report = LoadReport { at, ..LoadReport::default() };
    let ours = |load: &&RankLoad| rank.is_none_or(|rank| load.dp_rank == Some(rank));
    let (mut is_known, mut places) = (false, Some(0_u32));
    for load in loads.iter().filter(ours) {
        is_known |= load.num_running_reqs.is_some() || load.num_reqs.is_some();
        let running =
            load.num_running_reqs.or(load.num_reqs.map(|all| all.saturating_sub(load.num_waiting_reqs)));
        report.waiting = report.waiting.saturating_add(load.num_waiting_reqs);
        report.running = report.running.saturating_add(running.unwrap_or(0));
        load.token_usage.into_iter().for_each(|used| report.add_kv_use(used));
        places = places.zip(load.max_running_requests).and_then(|(sum, more)| sum.checked_add(more));
    }
    report.places = places.filter(|&places| places > 0);
    is_known.then_some(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields of a real page's shape (SGLang 0.5), most of its two hundred settings left out.
    const SERVER_INFO: &str = r#"{"model_path":"meta-llama/Llama-3.1-8B-Instruct","page_size":64,"dp_size":2,
        "tp_size":2,"enable_metrics":false,"schedule_policy":"fcfs","status":"ready","max_total_num_tokens":440000,
        "max_req_input_len":131066,"startup_time":31.5,"internal_states":[
        {"page_size":64,"last_gen_throughput":0.0,"memory_usage":{"weight":15.0,"kvcache":53.7,"token_capacity":440000,"graph":0.4}},
        {"page_size":64,"last_gen_throughput":0.0,"memory_usage":{"weight":15.0,"kvcache":53.6,"token_capacity":439000,"graph":0.4}}],
        "version":"0.5.6","kv_events":null}"#;

    #[test]
    fn the_cache_size_is_that_of_one_rank_or_of_all() {
        let read = |rank| read_sglang_capacity(SERVER_INFO.as_bytes(), rank);
        assert_eq!(read(None), Some(CacheCapacity { tokens: 879_000, block_tokens: 64 }));
        assert_eq!(read(Some(1)), Some(CacheCapacity { tokens: 439_000, block_tokens: 64 }));
        let old = br#"{"max_total_num_tokens":1000,"dp_size":4,"page_size":1}"#;
        assert_eq!(read_sglang_capacity(old, None).unwrap().tokens, 4_000);
        assert_eq!(read_sglang_capacity(old, Some(2)).unwrap().tokens, 1_000);
        for none in ["{}", "[]", r#"{"max_total_num_tokens":0}"#, r#"{"detail":"Not Found"}"#] {
            assert_eq!(read_sglang_capacity(none.as_bytes(), None), None, "{none}");
        }
    }

    #[test]
    fn loads_of_both_versions_are_read() {
        let new = br#"{"timestamp":"2026-08-23T01:24:58+00:00","version":"0.5.20","dp_rank_count":2,"loads":[
            {"dp_rank":0,"num_running_reqs":7,"num_waiting_reqs":3,"num_used_tokens":9000,"token_usage":0.25,"max_running_requests":128},
            {"dp_rank":1,"num_running_reqs":2,"num_waiting_reqs":0,"num_used_tokens":100,"token_usage":0.01,"max_running_requests":96}]}"#;
        let load = read_sglang_load(new, None, Micros(5)).unwrap();
        assert_eq!((load.running, load.waiting, load.kv_use, load.at), (9, 3, Some(0.25), Micros(5)));
        assert_eq!(load.places, Some(224));
        let rank = read_sglang_load(new, Some(1), Micros(5)).unwrap();
        assert_eq!((rank.running, rank.places), (2, Some(96)));
        assert_eq!(read_sglang_load(new, Some(2), Micros(5)), None);
        let old = br#"[{"dp_rank":0,"num_reqs":10,"num_waiting_reqs":3,"num_tokens":9000}]"#;
        let load = read_sglang_load(old, None, Micros(5)).unwrap();
        assert_eq!((load.running, load.waiting, load.kv_use, load.places), (7, 3, None, None));
        for none in ["[]", "{}", r#"{"loads":[{}]}"#, "not found"] {
            assert_eq!(read_sglang_load(none.as_bytes(), None, Micros(5)), None, "{none}");
        }
    }
}
