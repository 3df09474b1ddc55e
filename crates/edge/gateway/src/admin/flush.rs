//! `POST /flush_cache`: empties the caches of all engines.
//!
//! SGLang has `/flush_cache`, vLLM has `/reset_prefix_cache` (with `VLLM_SERVER_DEV_MODE=1`). Engines refuse while
//! requests run. What the router presumes about an emptied cache is dropped; engines with events report it themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use warmroute_fleet::Worker;
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};
use warmroute_types::mask_url;
use warmroute_wire::{Dialer, HttpClient};

use super::{AdminResult, as_json};

/// How long an engine may take.
const TIMEOUT: Duration = Duration::from_secs(30);

const PATHS: [&str; 2] = ["/flush_cache", "/reset_prefix_cache"];

/// Empties the cache of every engine. The answer is 200 if all did so, else 502 with each engine's reason.
pub(super) async fn flush_all(router: &Arc<Router<Standard>>, dialer: &Dialer) -> AdminResult {
    let mut engines: BTreeMap<String, Vec<Arc<Worker>>> = BTreeMap::new();
    for view in router.inspect().workers() {
        engines.entry(view.worker.address.url.clone()).or_default().push(view.worker);
    }
    let mut flushing = JoinSet::new();
    for (url, ranks) in engines {
        let client = HttpClient::new(&url, TIMEOUT, dialer.clone());
        flushing.spawn(flush(Arc::clone(router), client, url, ranks));
    }
    let mut flushed: Vec<(String, Result<(), String>)> = flushing.join_all().await;
    flushed.sort();
    let is_done = flushed.iter().all(|(_, result)| result.is_ok());
    let rows: Vec<Value> = flushed.into_iter().map(|(url, result)| describe(&url, result)).collect();
    let mut response = as_json(&json!({"flushed": is_done, "engines": rows}));
    if !is_done {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    }
    Ok(response)
}

fn describe(url: &str, result: Result<(), String>) -> Value {
    json!({"url": mask_url(url), "flushed": result.is_ok(), "error": result.err()})
}

async fn flush(
    router: Arc<Router<Standard>>,
    mut client: HttpClient,
    url: String,
    ranks: Vec<Arc<Worker>>,
) -> (String, Result<(), String>) {
    let result = flush_engine(&mut client).await;
    if result.is_ok() {
        ranks.into_iter().for_each(|worker| router.apply(Change::Emptied { worker }));
        tracing::info!(worker = %mask_url(&url), "cache flushed by the admin API");
    }
    (url, result)
}

/// Tries the names of this request one after another.
async fn flush_engine(client: &mut HttpClient) -> Result<(), String> {
    for path in PATHS {
        let (status, body) = client.post(path, Bytes::new()).await.map_err(|error| error.to_string())?;
        match status {
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {}
            status if status.is_success() && !says_failure(&body) => return Ok(()),
            status if status.is_success() => return Err(format!("{path}: refused while requests run")),
            status => return Err(format!("{path}: {status}")),
        }
    }
    Err(format!("the engine has neither {} nor {} (vLLM: set VLLM_SERVER_DEV_MODE=1)", PATHS[0], PATHS[1]))
}

/// Whether an answer with status 200 says that nothing was flushed.
fn says_failure(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer["success"] == json!(false))
}
