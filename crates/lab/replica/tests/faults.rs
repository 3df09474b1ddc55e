//! Injected faults, and clients that disconnect.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod client;

use std::io::ErrorKind;
use std::time::Duration;

use client::{PATIENCE, Wire, ask, fast, get, post, start, until};
use serde_json::json;
use tokio::net::TcpStream;
use warmroute_replica::{Config, Fault, Replica};

/// A replica so slow that no request ends during a test.
fn endless() -> Config {
    Config { speed: 1.0, ..fast() }
}

fn short() -> String {
    json!({"prompt": "hello", "max_tokens": 8, "stream": true}).to_string()
}

fn long() -> String {
    json!({"prompt": "hello", "max_tokens": 100_000, "stream": true}).to_string()
}

async fn stream(replica: &Replica, body: &str) -> Wire {
    Wire::send(replica, "POST", "/v1/completions", "", body).await
}

/// Whether a new request gets a correct answer.
async fn is_well(replica: &Replica) -> bool {
    let answer = post(replica, "/v1/completions", &json!({"prompt": "hello", "max_tokens": 2})).await;
    answer.status == 200 && answer.json()["usage"]["completion_tokens"] == 2
}

async fn is_reset(wire: &mut Wire) -> bool {
    matches!(wire.read_to_end().await, Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_its_sequence() {
    let replica = start(endless()).await;
    let mut wire = stream(&replica, &long()).await;
    wire.read_until("data: ").await.unwrap();
    assert_eq!(replica.stats().running, 1);
    drop(wire);
    until("the sequence is gone", || replica.stats().running == 0 && replica.stats().aborted == 1).await;
    let metrics = get(&replica, "/metrics").await.body;
    assert!(metrics.contains(r#"finished_reason="abort",model_name="llama-3.1-8b"} 1.0"#));
}

#[tokio::test]
async fn a_client_that_leaves_before_a_whole_answer_frees_its_sequence() {
    let replica = start(endless()).await;
    let body = json!({"prompt": "hello", "max_tokens": 100_000, "n": 2}).to_string();
    let wire = Wire::send(&replica, "POST", "/v1/completions", "", &body).await;
    until("both sequences run", || replica.stats().running == 2).await;
    drop(wire);
    until("both are gone", || replica.stats().running == 0 && replica.stats().aborted == 2).await;
    assert_eq!(get(&replica, "/load").await.json(), json!({"server_load": 0}));
}

#[tokio::test]
async fn die_resets_connections_and_refuses_new_ones() {
    let replica = start(endless()).await;
    let mut running = stream(&replica, &long()).await;
    running.read_until("data: ").await.unwrap();
    let ordered = post(&replica, "/fault", &json!({"kind": "die"})).await;
    assert_eq!((ordered.status, ordered.json()), (200, json!({"fault": {"kind": "die"}})));
    assert!(is_reset(&mut running).await);
    tokio::time::timeout(PATIENCE, replica.died()).await.expect("it has died");
    let refused = async {
        while TcpStream::connect(replica.address()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("nothing listens any more");
}

#[tokio::test]
async fn hang_accepts_and_says_nothing_until_healed() {
    let replica = start(fast()).await;
    post(&replica, "/fault", &json!({"kind": "hang"})).await;
    let mut health = Wire::send(&replica, "GET", "/health", "", "").await;
    let mut asked = stream(&replica, &short()).await;
    for wire in [&mut health, &mut asked] {
        let silence = tokio::time::timeout(Duration::from_millis(50), wire.read_until("HTTP")).await;
        assert!(silence.is_err(), "it answered {}", wire.so_far());
    }
    let healed = post(&replica, "/fault", &json!({"kind": "none"})).await;
    assert_eq!(healed.status, 200);
    health.read_until("200 OK").await.unwrap();
    asked.read_until("[DONE]").await.unwrap();
}

#[tokio::test]
async fn status_refuses_generation_and_nothing_else() {
    let replica = start(fast()).await;
    post(&replica, "/fault", &json!({"kind": "status", "code": 429, "retry_after_s": 7})).await;
    let body =
        json!({"prompt": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "input": "x"});
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        let refused = post(&replica, path, &body).await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")), "{path}");
        assert!(refused.json()["error"]["type"].is_string());
    }
    assert_eq!(get(&replica, "/health").await.status, 200);
    post(&replica, "/fault", &json!({"kind": "none"})).await;
    assert!(is_well(&replica).await);
}

#[tokio::test]
async fn reset_cuts_a_stream_after_exactly_that_many_tokens() {
    let replica = start(fast()).await;
    post(&replica, "/fault", &json!({"kind": "reset", "after_tokens": 3, "times": 2})).await;
    for _ in 0..2 {
        let mut wire = stream(&replica, &short()).await;
        assert!(is_reset(&mut wire).await);
        assert_eq!(wire.so_far().matches("data: ").count(), 3, "{}", wire.so_far());
    }
    assert!(is_well(&replica).await, "two were ordered");
    until("the cut ones are gone", || replica.stats().running == 0).await;
}

#[tokio::test]
async fn reset_before_the_first_byte_sends_no_byte() {
    let replica = start(fast()).await;
    replica.fault(Fault::Reset { after_tokens: 0, times: Some(1) }).await.unwrap();
    let mut wire = stream(&replica, &short()).await;
    assert!(is_reset(&mut wire).await);
    assert_eq!(wire.so_far(), "");
    assert!(is_well(&replica).await);
}

#[tokio::test]
async fn reset_cuts_whole_answers_too() {
    let replica = start(fast()).await;
    replica.fault(Fault::Reset { after_tokens: 3, times: None }).await.unwrap();
    let body = json!({"prompt": "hello", "max_tokens": 8}).to_string();
    let mut wire = Wire::send(&replica, "POST", "/v1/completions", "", &body).await;
    assert!(is_reset(&mut wire).await);
    assert_eq!(wire.so_far(), "");
    assert!(is_well(&replica).await, "an answer of two tokens ends before the third");
}

#[tokio::test]
async fn restart_cuts_streams_and_empties_the_cache() {
    let replica = start(endless()).await;
    let mut running = stream(&replica, &long()).await;
    running.read_until("data: ").await.unwrap();
    let mut idle = Wire::send(&replica, "GET", "/health", "", "").await;
    idle.read_until("200 OK").await.unwrap();
    let prompt = json!({"prompt": "four".repeat(64), "max_tokens": 1});
    post(&replica, "/v1/completions", &prompt).await;
    assert_eq!(post(&replica, "/fault", &json!({"kind": "restart"})).await.status, 200);
    assert!(is_reset(&mut running).await);
    assert!(is_reset(&mut idle).await, "connections that wait for a request are the old process's, too");
    let stats = replica.stats();
    assert_eq!((stats.running, stats.prefix_queries_tokens), (0, 0), "a new process counts from zero");
    let cold = post(&replica, "/v1/completions", &prompt).await.json();
    assert!(cold["usage"].get("prompt_tokens_details").is_none(), "{cold}");
}

#[tokio::test]
async fn slow_is_slower_in_wall_time_only() {
    let replica = start(Config { speed: 100.0, ..fast() }).await;
    replica.fault(Fault::Slow { factor: 2_000.0 }).await.unwrap();
    let began = tokio::time::Instant::now();
    assert!(is_well(&replica).await);
    let wall_s = began.elapsed().as_secs_f64();
    // An 8B model's first token takes some milliseconds of engine time, which now runs at 100 / 2,000 of wall
    // time.
    let engine_s = replica.stats().ttft_sum.as_secs_f64();
    assert!(engine_s < 0.1, "engine time does not know that it is slow: {engine_s}");
    assert!(wall_s > engine_s * 19.0, "{wall_s} s for {engine_s} s of engine time");
}

#[tokio::test]
async fn unknown_and_invalid_faults_are_refused() {
    let replica = start(fast()).await;
    let unknown = post(&replica, "/fault", &json!({"kind": "explode"})).await;
    assert_eq!(unknown.status, 400);
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    for kind in ["none", "die", "hang", "slow", "status", "reset", "restart"] {
        assert!(message.contains(&format!("`{kind}`")), "{message}");
    }
    assert_eq!(post(&replica, "/fault", &json!({"kind": "slow", "factor": -1})).await.status, 400);
    assert!(replica.fault(Fault::Status { code: 200, retry_after_s: None }).await.is_err());
    assert!(is_well(&replica).await);
}

#[tokio::test]
async fn shutdown_finishes_accepted_requests() {
    let replica = start(Config { speed: 10.0, ..fast() }).await;
    let body = json!({"prompt": "hello", "max_tokens": 50, "stream": true}).to_string();
    let mut wire = stream(&replica, &body).await;
    wire.read_until("data: ").await.unwrap();
    let mut idle = Wire::send(&replica, "GET", "/health", "", "").await;
    idle.read_until("200 OK").await.unwrap();
    tokio::time::timeout(PATIENCE, replica.shutdown()).await.expect("it ends");
    wire.read_to_end().await.unwrap();
    assert_eq!(wire.so_far().matches("data: ").count(), 50 + 1);
    idle.read_to_end().await.unwrap();
}

#[tokio::test]
async fn dropping_a_replica_resets_its_connections() {
    let replica = start(endless()).await;
    let mut wire = stream(&replica, &long()).await;
    wire.read_until("data: ").await.unwrap();
    drop(replica);
    assert!(is_reset(&mut wire).await);
}

#[tokio::test]
async fn eight_replicas_live_side_by_side() {
    let mut replicas = Vec::new();
    for _ in 0..8 {
        replicas.push(start(fast()).await);
    }
    replicas[3].fault(Fault::Die).await.unwrap();
    for (number, replica) in replicas.iter().enumerate().filter(|(number, _)| *number != 3) {
        assert!(is_well(replica).await, "{number}");
    }
    let one = ask(&replicas[0], "GET", "/v1/models", "", "").await;
    assert_eq!(one.status, 200);
}
