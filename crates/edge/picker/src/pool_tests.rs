//! Several pools in one process: a listener each, whose requests stay in their pool.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use warmroute_fleet::Models;
use warmroute_router::Change;

use crate::Config;
use crate::request::tests::metadata;
use crate::test_client::{Call, Fixture};

const DUPLEX: u64 = 4;
const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/chat/completions")];
const WORKERS: [&str; 3] = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"];

/// Workers 0 and 1 in the pool llama, workers 1 and 2 in the pool qwen.
async fn two_pools(settings: warmroute_gateway::Config) -> Fixture {
    let fixture = Fixture::with_pools(&WORKERS, &["llama", "qwen"], Config::default(), settings).await;
    for (worker, pools) in [&["llama"][..], &["llama", "qwen"], &["qwen"]].into_iter().enumerate() {
        fixture.assign(worker, pools);
    }
    fixture
}

async fn ask(at: SocketAddr) -> Call {
    let mut call = Fixture::proxy_to(at).await.call().await;
    call.request_headers(Some((DUPLEX, 0)), &POST, false);
    // One model for all: the body does not tell the pools apart.
    call.request_body(br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#, true);
    call
}

async fn chosen(at: SocketAddr, times: usize) -> Vec<String> {
    let mut chosen = Vec::new();
    for _ in 0..times {
        chosen.push(ask(at).await.reply().await.destination());
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

#[tokio::test]
async fn a_request_gets_a_worker_of_its_listeners_pool_also_for_one_model() {
    let fixture = two_pools(warmroute_gateway::Config::default()).await;
    assert_eq!(chosen(fixture.pools[0], 8).await, ["10.0.0.1:8000", "10.0.0.2:8000"]);
    assert_eq!(chosen(fixture.pools[1], 8).await, ["10.0.0.2:8000", "10.0.0.3:8000"]);
    assert_eq!(chosen(fixture.address, 30).await.len(), 3, "the common port gives any worker");
    let mut get = Fixture::proxy_to(fixture.pools[1]).await.call().await;
    get.request_headers(Some((DUPLEX, 0)), &[(":method", "GET"), (":path", "/v1/models")], true);
    assert_ne!(get.reply().await.destination(), "10.0.0.1:8000", "without a body, too");
}

#[tokio::test]
async fn pods_change_their_pool_and_an_empty_pool_is_answered_with_503() {
    let fixture = two_pools(warmroute_gateway::Config::default()).await;
    fixture.assign(2, &["llama"]);
    assert_eq!(chosen(fixture.pools[1], 4).await, ["10.0.0.2:8000"]);
    fixture.assign(1, &[]);
    assert_eq!(ask(fixture.pools[1]).await.reply().await.immediate().0, 503);
    assert_eq!(chosen(fixture.pools[0], 8).await, ["10.0.0.1:8000", "10.0.0.3:8000"]);
}

#[tokio::test]
async fn a_subset_hint_restricts_the_choice_within_the_pool() {
    let fixture = two_pools(warmroute_gateway::Config::default()).await;
    for (subset, expected) in
        [("10.0.0.1:8000,10.0.0.3:8000", Some("10.0.0.1:8000")), ("10.0.0.3:8000", None)]
    {
        let hint = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", |value| {
            value.bytes(3, subset.as_bytes());
        });
        let mut call = Fixture::proxy_to(fixture.pools[0]).await.call().await;
        call.request_headers_with(Some((DUPLEX, 0)), &POST, true, &hint);
        let reply = call.reply().await;
        match expected {
            Some(expected) => assert_eq!(reply.destination(), expected),
            None => assert_eq!(reply.immediate().0, 503),
        }
    }
}

/// The picker has just started and knows no worker of the pool llama, so it does not know the pool's model either.
#[tokio::test]
async fn a_pool_without_workers_since_the_start_is_awaited_while_another_pool_serves_another_model() {
    let settings = waking(Duration::from_secs(60));
    let fixture = Fixture::with_pools(&[], &["llama", "qwen"], Config::default(), settings).await;
    fixture.join(WORKERS[0], Models::named(&["qwen"]));
    fixture.assign(0, &["qwen"]);
    assert_eq!(ask(fixture.pools[1]).await.reply().await.immediate().0, 404, "qwen's pool does not serve m");
    let mut waiting = ask(fixture.pools[0]).await;
    fixture.wait_until(|| fixture.awaiting_worker() == 1, "a request that waits").await;
    fixture.join(WORKERS[1], Models::named(&["m"]));
    fixture.assign(1, &["llama"]);
    fixture.gateway.admit_next();
    assert_eq!(waiting.reply().await.destination(), "10.0.0.2:8000");
}

/// A pool that scales from zero: the request waits for a worker of its own pool, while the other pool has workers.
#[tokio::test]
async fn a_request_waits_for_its_own_pool_to_wake_up() {
    let fixture = two_pools(waking(Duration::from_secs(60))).await;
    fixture.assign(0, &[]);
    fixture.assign(1, &["qwen"]);
    let mut waiting = ask(fixture.pools[0]).await;
    assert!(waiting.has_no_reply().await);
    assert_eq!(chosen(fixture.pools[1], 4).await.len(), 2, "the other pool goes on");
    fixture.gateway.admit_next();
    assert!(waiting.has_no_reply().await, "a worker of another pool is none");
    fixture.assign(0, &["llama"]);
    fixture.gateway.admit_next();
    assert_eq!(waiting.reply().await.destination(), "10.0.0.1:8000");
}

/// Asks with a subset hint, for a worker at one of these addresses.
async fn ask_within(at: SocketAddr, subset: &str) -> Call {
    let hint = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", |value| {
        value.bytes(3, subset.as_bytes());
    });
    let mut call = Fixture::proxy_to(at).await.call().await;
    call.request_headers_with(Some((DUPLEX, 0)), &POST, true, &hint);
    call
}

fn waking(wake_max: Duration) -> warmroute_gateway::Config {
    let admission = warmroute_gateway::AdmissionConfig { wake_max, ..Default::default() };
    warmroute_gateway::Config { admission, ..Default::default() }
}

#[tokio::test]
async fn a_subset_hint_also_holds_for_workers_that_join_while_the_request_waits() {
    let fixture = Fixture::with(&WORKERS[..1], Config::default(), waking(Duration::from_secs(60))).await;
    let mut waiting = ask_within(fixture.address, "10.0.0.3:8000").await;
    fixture.wait_until(|| fixture.awaiting_worker() == 1, "a request that waits").await;
    fixture.join(WORKERS[1], Models::Any);
    fixture.gateway.admit_next();
    assert!(waiting.has_no_reply().await, "the newcomer is not in the subset");
    assert_eq!(fixture.awaiting_worker(), 1, "a request that queues again is counted, too");
    fixture.join(WORKERS[2], Models::Any);
    fixture.gateway.admit_next();
    assert_eq!(waiting.reply().await.destination(), "10.0.0.3:8000");
}

/// Ids are used again: the list of excluded workers must not exclude their successors.
#[tokio::test]
async fn a_waiting_request_gets_a_worker_in_the_slot_of_one_that_it_could_not_use() {
    let fixture = Fixture::with(&WORKERS[..2], Config::default(), waking(Duration::from_secs(60))).await;
    let mut waiting = ask_within(fixture.address, "10.0.0.3:8000").await;
    fixture.wait_until(|| fixture.awaiting_worker() == 1, "a request that waits").await;
    let left = Arc::clone(&fixture.workers()[1].worker);
    fixture.gateway.router().apply(Change::Leave { address: left.address.clone() });
    fixture.join(WORKERS[2], Models::Any);
    assert_eq!(fixture.workers()[1].worker.id, left.id);
    fixture.gateway.admit_next();
    assert_eq!(waiting.reply().await.destination(), "10.0.0.3:8000");
}

#[tokio::test]
async fn an_empty_subset_gets_503_at_once_and_an_unmet_one_after_the_wait() {
    let fixture = Fixture::with(&WORKERS[..1], Config::default(), waking(Duration::from_secs(60))).await;
    assert_eq!(ask_within(fixture.address, "").await.reply().await.immediate().0, 503);
    let fixture = Fixture::with(&WORKERS[..1], Config::default(), waking(Duration::from_millis(20))).await;
    assert_eq!(ask_within(fixture.address, "10.0.0.3:8000").await.reply().await.immediate().0, 503);
}
