//! The probe against fake engines over sockets: what SGLang and TensorRT-LLM say about their load and caches.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warmroute_fleet::{Models, WorkerView};
use warmroute_policy::{LeastLoaded, Standard};
use warmroute_router::Router;
use warmroute_types::{Address, Micros, PrefixCache};

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#;
const WITHIN: Duration = Duration::from_secs(20);

/// The pages of a fake engine. Others are 404.
type Pages = Arc<Mutex<HashMap<&'static str, String>>>;

/// Serves the pages, each request on its own thread.
fn serve(pages: &[(&'static str, &str)]) -> (String, Pages) {
    let known = [("/health", ""), ("/v1/models", MODELS)];
    let pages = pages.iter().chain(&known).map(|(path, page)| (*path, (*page).to_owned())).collect();
    let pages: Pages = Arc::new(Mutex::new(pages));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, served) = (format!("http://{}", listener.local_addr().unwrap()), Arc::clone(&pages));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, served) = (stream.unwrap(), Arc::clone(&served));
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut chunk = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut chunk) {
                    bytes.extend_from_slice(&chunk[..read]);
                    if !bytes.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let head = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
                    let path = head.split(' ').nth(1).unwrap();
                    let page = served.lock().unwrap().get(path).cloned();
                    let status = if page.is_some() { "200 OK" } else { "404 Not Found" };
                    let page = page.unwrap_or_default();
                    let response =
                        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{page}", page.len());
                    _ = stream.write_all(response.as_bytes());
                }
            });
        }
    });
    (url, pages)
}

/// Probes one worker until what is known about it satisfies `is_known`.
async fn probed(address: Address, is_known: impl Fn(&WorkerView, u64) -> bool) {
    let policy = Standard::LeastLoaded(LeastLoaded::default());
    let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
    router.join(address, Models::Unknown).unwrap();
    let config = warmroute_probe::Config {
        load_interval: Duration::from_millis(20),
        recovery_interval: Duration::from_millis(20),
        ..warmroute_probe::Config::default()
    };
    let start = Instant::now();
    let now = move || Micros::from_secs(1) + start.elapsed().into();
    let probe = tokio::spawn(warmroute_probe::run(Arc::clone(&router), config, now, Arc::new(|_, _| {})));
    loop {
        let view = router.inspect().workers().remove(0);
        let tokens = router.inspect().cache_tokens(view.worker.id);
        if is_known(&view, tokens) {
            break;
        }
        assert!(start.elapsed() < WITHIN, "it never became known: {view:?}, cache {tokens}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    probe.abort();
}

fn load(view: &WorkerView) -> Option<(u32, u32)> {
    view.load.report.map(|report| (report.running, report.waiting))
}

#[tokio::test]
async fn sglang_with_metrics_tells_load_hits_and_cache_size() {
    let page = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 4.0\n\
        sglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 2.0\n\
        sglang:max_total_num_tokens{model_name=\"m\",tp_rank=\"0\"} 440000.0\n\
        sglang:page_size{model_name=\"m\",tp_rank=\"0\"} 64.0\n\
        sglang:prompt_tokens_total{is_streaming=\"True\",model_name=\"m\"} 330.0\n\
        sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 90.0\n";
    let (url, _pages) = serve(&[("/metrics", page)]);
    probed(Address::new(url), |view, tokens| {
        let counters = Some(PrefixCache { queries: 330, hits: 90 });
        load(view) == Some((4, 2)) && view.prefix_cache == counters && tokens == 440_000
    })
    .await;
}

#[tokio::test]
async fn sglang_without_metrics_is_read_from_its_other_pages() {
    let info = r#"{"page_size":64,"dp_size":2,"max_total_num_tokens":1000,"internal_states":[
        {"memory_usage":{"token_capacity":1000}},{"memory_usage":{"token_capacity":900}}]}"#;
    let loads = r#"{"loads":[{"dp_rank":0,"num_running_reqs":7,"num_waiting_reqs":3},
        {"dp_rank":1,"num_running_reqs":2,"num_waiting_reqs":1}]}"#;
    let (url, _pages) = serve(&[("/server_info", info), ("/v1/loads?include=core", loads)]);
    let whole = Address::new(url.clone());
    probed(whole, |view, tokens| load(view) == Some((9, 4)) && tokens == 1_900).await;
    let rank = Address { url, rank: Some(1) };
    probed(rank, |view, tokens| load(view) == Some((2, 1)) && tokens == 900).await;

    // Earlier versions have other names.
    let old = r#"[{"dp_rank":0,"num_reqs":10,"num_waiting_reqs":3}]"#;
    let info = r#"{"max_total_num_tokens":500}"#;
    let (url, _pages) = serve(&[("/get_server_info", info), ("/get_load", old)]);
    probed(Address::new(url), |view, tokens| load(view) == Some((7, 3)) && tokens == 500).await;
}

#[tokio::test]
async fn tensorrt_llm_tells_its_last_iteration_and_nothing_while_idle() {
    let page = r#"[{"iter":1,"numActiveRequests":12,"numQueuedRequests":4,"kvCacheStats":{"maxNumBlocks":100,
        "usedNumBlocks":50,"tokensPerBlock":32,"reusedBlocks":15,"missedBlocks":5}}]"#;
    let (url, pages) = serve(&[("/metrics", page)]);
    probed(Address::new(url), move |view, tokens| {
        let counters = Some(PrefixCache { queries: 640, hits: 480 });
        let is_known = load(view) == Some((12, 4)) && view.prefix_cache == counters && tokens == 3_200;
        if is_known {
            // The page was read and is empty until the next iteration.
            pages.lock().unwrap().insert("/metrics", "[]".to_owned());
        }
        is_known
    })
    .await;
}
