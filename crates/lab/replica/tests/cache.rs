//! Cached tokens and how they are reported.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod client;

use client::{ask, fast, get, post, start};
use serde_json::{Value, json};
use warmroute_replica::{Config, Replica};

const BLOCK: u64 = 16;

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

/// Tokens up to the end of the first answer, in whole blocks.
fn first_turn(usage: &Value) -> u64 {
    let tokens = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    tokens / BLOCK * BLOCK
}

#[tokio::test]
async fn an_answer_repeated_in_the_next_turn_hits_the_cache() {
    let replica = start(fast()).await;
    let mut messages = vec![
        json!({"role": "system", "content": "You are a careful assistant. ".repeat(10)}),
        json!({"role": "user", "content": "Tell me about rivers."}),
    ];
    for max_tokens in [json!(64), Value::Null] {
        let body = json!({"messages": messages, "max_tokens": max_tokens});
        let answer = post(&replica, "/v1/chat/completions", &body).await.json();
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": "And lakes?"}));
        let body = json!({"messages": messages, "max_tokens": 1});
        let next = post(&replica, "/v1/chat/completions", &body).await.json();
        assert_eq!(cached(&next), first_turn(&answer["usage"]), "prompt and answer, to the last full block");
    }
}

#[tokio::test]
async fn the_other_apis_hit_what_the_chat_api_cached() {
    let replica = start(fast()).await;
    let text = "Some shared words to begin with. ".repeat(20);
    let messages = json!([{"role": "user", "content": text}]);
    let chat =
        post(&replica, "/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1})).await.json();
    let expected = (chat["usage"]["prompt_tokens"].as_u64().unwrap() - 1) / BLOCK * BLOCK;
    let response = post(&replica, "/v1/responses", &json!({"input": text})).await.json();
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], expected);
    let message =
        post(&replica, "/v1/messages", &json!({"messages": messages, "max_tokens": 1})).await.json();
    assert_eq!(message["usage"]["cache_read_input_tokens"], expected);
    let stream =
        post(&replica, "/v1/messages", &json!({"messages": messages, "max_tokens": 1, "stream": true})).await;
    assert_eq!(stream.events()[0]["message"]["usage"]["cache_read_input_tokens"], expected);
}

#[tokio::test]
async fn the_last_chunk_of_a_stream_reports_cached_tokens() {
    let replica = start(fast()).await;
    let body = json!({"prompt": "four".repeat(64), "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true}});
    for expected in [0, 64] {
        let events = post(&replica, "/v1/completions", &body).await.events();
        assert_eq!(cached(events.last().unwrap()), expected);
    }
}

#[tokio::test]
async fn salts_and_adapters_do_not_share() {
    let replica = start(Config { adapters: vec!["poet".to_owned()], ..fast() }).await;
    let request = |more: &[(&str, &str)]| {
        let mut body = json!({"prompt": "four".repeat(64), "max_tokens": 1});
        more.iter().for_each(|(key, value)| body[*key] = json!(value));
        body
    };
    for more in [&[][..], &[("cache_salt", "tenant-1")], &[("model", "poet")]] {
        let first = post(&replica, "/v1/completions", &request(more)).await.json();
        let second = post(&replica, "/v1/completions", &request(more)).await.json();
        assert_eq!((cached(&first), cached(&second)), (0, 64), "{more:?}");
    }
    let message = |salt: &str| json!({"messages": [{"role": "user", "content": "five".repeat(64)}], "max_tokens": 1, "cache_salt": salt});
    for salt in ["tenant-1", "tenant-2"] {
        let first = post(&replica, "/v1/messages", &message(salt)).await.json();
        let second = post(&replica, "/v1/messages", &message(salt)).await.json();
        let read =
            |answer: &serde_json::Value| answer["usage"]["cache_read_input_tokens"].as_u64().unwrap_or(0);
        assert_eq!((read(&first), read(&second) > 0), (0, true), "{salt}: {first} {second}");
    }
    let named = post(&replica, "/v1/completions", &request(&[("model", "llama-3.1-8b")])).await.json();
    assert_eq!(cached(&named), 64, "the base model by its name or by default");
}

async fn on_rank(replica: &Replica, rank: &str, prompt: &str) -> client::Answer {
    let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    ask(replica, "POST", "/v1/completions", &format!("X-data-parallel-rank: {rank}\r\n"), &body).await
}

#[tokio::test]
async fn ranks_share_only_the_address() {
    let replica = start(Config { ranks: 2, ..fast() }).await;
    let prompt = "four".repeat(64);
    assert_eq!(cached(&on_rank(&replica, "0", &prompt).await.json()), 0);
    assert_eq!(cached(&on_rank(&replica, "1", &prompt).await.json()), 0);
    assert_eq!(cached(&on_rank(&replica, "1", &prompt).await.json()), 64);
    let metrics = get(&replica, "/metrics").await.body;
    let hits =
        |rank| format!("vllm:prefix_cache_hits_total{{engine=\"{rank}\",model_name=\"llama-3.1-8b\"}}");
    assert!(metrics.contains(&format!("{} 0.0\n", hits(0))), "{metrics}");
    assert!(metrics.contains(&format!("{} 64.0\n", hits(1))), "{metrics}");
    for rank in ["2", "-1", "first"] {
        let refused = on_rank(&replica, rank, &prompt).await;
        assert_eq!(refused.status, 400);
        let message = format!("data_parallel_rank {rank} is out of range [0, 2).");
        assert_eq!(refused.json()["error"]["message"], message);
    }
}

#[tokio::test]
async fn without_a_rank_the_least_busy_one_is_taken() {
    let replica = start(Config { ranks: 2, speed: 1.0, ..fast() }).await;
    let endless = json!({"prompt": "x", "max_tokens": 100_000, "stream": true}).to_string();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = client::Wire::send(&replica, "POST", "/v1/completions", "", &endless).await;
        stream.read_until("data: ").await.unwrap();
        streams.push(stream);
    }
    let metrics = get(&replica, "/metrics").await.body;
    for rank in 0..2 {
        let running =
            format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"llama-3.1-8b\"}} 1.0\n");
        assert!(metrics.contains(&running), "{metrics}");
    }
}

#[tokio::test]
async fn the_cache_can_be_cleared_when_it_is_not_in_use() {
    let replica = start(fast()).await;
    let body = json!({"prompt": "four".repeat(64), "max_tokens": 1});
    post(&replica, "/v1/completions", &body).await;
    assert_eq!(post(&replica, "/reset_prefix_cache", &json!(null)).await.json(), json!({"success": true}));
    assert_eq!(cached(&post(&replica, "/v1/completions", &body).await.json()), 0);
    assert_eq!(cached(&post(&replica, "/v1/completions", &body).await.json()), 64);
}

#[tokio::test]
async fn metrics_have_vllms_names_and_count_in_engine_time() {
    let replica = start(fast()).await;
    let body = json!({"prompt": "four".repeat(64), "max_tokens": 10});
    for _ in 0..3 {
        post(&replica, "/v1/completions", &body).await;
    }
    let metrics = get(&replica, "/metrics").await.body;
    let value = |name: &str| -> f64 {
        let start = format!("vllm:{name}{{");
        let line =
            metrics.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    for (name, expected) in [
        ("prompt_tokens_total", 3.0 * 65.0),
        ("generation_tokens_total", 30.0),
        ("prefix_cache_queries_total", 3.0 * 65.0),
        ("prefix_cache_hits_total", 2.0 * 64.0),
        ("prompt_tokens_cached_total", 2.0 * 64.0),
        ("num_preemptions_total", 0.0),
        ("num_requests_running", 0.0),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", 0.0),
        ("time_to_first_token_seconds_count", 3.0),
        ("inter_token_latency_seconds_count", 27.0),
        ("request_queue_time_seconds_count", 3.0),
        ("request_prefill_kv_computed_tokens_count", 3.0),
        ("request_prefill_kv_computed_tokens_sum", 65.0 + 1.0 + 1.0),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert!(metrics.contains(r#"finished_reason="length",model_name="llama-3.1-8b"} 3.0"#));
    assert!(metrics.contains(r#"vllm:cache_config_info{block_size="16","#));
    assert!(metrics.contains(r#"num_gpu_blocks="52875""#));
    // A decode step of an 8B model on an H200 takes some milliseconds of engine time, however fast the clock
    // runs here.
    let step_s = value("inter_token_latency_seconds_sum") / 27.0;
    assert!((0.002..0.050).contains(&step_s), "{step_s}");
    let stats = replica.stats();
    assert_eq!((stats.prefix_hits_tokens, stats.finished, stats.ttft_count), (128, 3, 3));
}
