//! Cache-aware routing end to end, with simulated engines that really cache.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::harness::client::{Response, post};
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::script::Scripted;
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";

/// A prompt of some thousand tokens, different for each user. Its first turn is longer than a prefix key.
fn prompt(user: usize, turns: usize) -> Value {
    let text = |turn: usize| format!("user {user} turn {turn} asks about caches. ").repeat(150);
    (0..turns)
        .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": text(turn)}))
        .collect()
}

fn chat(gateway: &Gateway, messages: &Value, more: &Value) -> Response {
    let mut body = json!({"model": MODEL, "max_tokens": 4, "messages": messages});
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    post(gateway.url(), "/v1/chat/completions", &body.to_string())
}

fn engines(n: usize) -> (Vec<Process>, Vec<String>) {
    let engines: Vec<Process> = (0..n).map(|_| engine(&[])).collect();
    let urls = engines.iter().map(|engine| engine.url().to_owned()).collect();
    (engines, urls)
}

fn over(urls: &[String], more: &[&str]) -> Gateway {
    Gateway::over(&urls.iter().map(String::as_str).collect::<Vec<_>>(), more)
}

/// The sum of a metric over all workers.
fn total(gateway: &Gateway, metric: &str) -> f64 {
    gateway.metric_sum(metric)
}

#[test]
fn conversations_stay_where_they_are_cached_and_spread_over_the_fleet() {
    let (_engines, urls) = engines(4);
    let policies =
        ["expected_ttft", "cache_aware", "sticky_least_loaded", "weighted_score", "product", "dual_choice"];
    for (turn, policy) in policies.into_iter().enumerate() {
        let gateway = over(&urls, &["--policy", policy]);
        let mut homes = BTreeSet::new();
        for user in 0..12 {
            // Each policy gets users of its own, because the engines still hold the previous policy's prompts.
            let user = user + 100 * turn;
            let first = chat(&gateway, &prompt(user, 1), &json!({}));
            let home = first.header("x-warmroute-worker").unwrap().to_owned();
            assert_eq!(first.header("x-warmroute-cached-tokens"), Some("0"), "{policy}");
            for turns in [3, 5] {
                let next = chat(&gateway, &prompt(user, turns), &json!({}));
                assert_eq!(next.header("x-warmroute-worker"), Some(home.as_str()), "{policy}");
                let predicted: u32 = next.header("x-warmroute-cached-tokens").unwrap().parse().unwrap();
                let found =
                    next.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as u32;
                assert!(predicted.abs_diff(found) <= 80, "{policy}: predicted {predicted}, found {found}");
            }
            homes.insert(home);
        }
        assert!(homes.len() >= 3, "{policy} keeps new users on {} of 4 workers", homes.len());
    }
}

#[test]
fn predictions_are_compared_with_cached_tokens() {
    let (engines, urls) = engines(1);
    let gateway = over(&urls, &[]);
    chat(&gateway, &prompt(1, 3), &json!({}));
    chat(&gateway, &prompt(1, 3), &json!({}));
    assert_eq!(total(&gateway, "warmroute_answers_total"), 2.0);
    assert_eq!(total(&gateway, "warmroute_answers_hit_total"), 1.0);
    let said = total(&gateway, "warmroute_answers_with_cached_total");
    assert_eq!(said, 2.0, "the first said nothing, and since the second spoke that is known to mean zero");
    assert_eq!(total(&gateway, "warmroute_stale_tokens_total"), 0.0);
    let (predicted, cached) = (
        total(&gateway, "warmroute_predicted_cached_tokens_total"),
        total(&gateway, "warmroute_cached_tokens_total"),
    );
    assert!(cached > 1_000.0 && (predicted - cached).abs() <= 80.0, "predicted {predicted}, found {cached}");
    assert!(gateway.metric("warmroute_index_bytes") > 0.0 && gateway.metric("warmroute_index_spans") > 10.0);
    assert_eq!(gateway.workers()[0]["cached_tokens"], "reported");

    // The engine's cache is reset without an event: the prediction fails once and is corrected.
    assert_eq!(post(engines[0].url(), "/reset_prefix_cache", "{}").status, 200);
    chat(&gateway, &prompt(1, 3), &json!({}));
    assert!(total(&gateway, "warmroute_stale_tokens_total") > 1_000.0);
    assert_eq!(total(&gateway, "warmroute_answers_stale_total"), 1.0);
    chat(&gateway, &prompt(1, 3), &json!({}));
    assert_eq!(total(&gateway, "warmroute_answers_stale_total"), 1.0, "it was computed again, and is there");
}

#[test]
fn an_engine_that_reports_no_cached_tokens_is_shown_as_unknown() {
    let engine = engine(&["--prompt-tokens-details", "off"]);
    let gateway = over(&[engine.url().to_owned()], &[]);
    chat(&gateway, &prompt(1, 3), &json!({}));
    chat(&gateway, &prompt(1, 3), &json!({}));
    assert_eq!(total(&gateway, "warmroute_answers_total"), 2.0);
    assert_eq!(total(&gateway, "warmroute_answers_with_cached_total"), 0.0);
    assert_eq!(total(&gateway, "warmroute_stale_tokens_total"), 0.0, "unknown is not zero");
    let hint = gateway.workers()[0]["cached_tokens"].as_str().unwrap().to_owned();
    assert!(hint.contains("--enable-prompt-tokens-details"), "{hint}");
}

#[test]
fn stream_usage_is_requested_and_removed_for_clients_that_did_not_ask() {
    let (_engines, urls) = engines(1);
    let gateway = over(&urls, &[]);
    let plain = chat(&gateway, &prompt(1, 1), &json!({"stream": true}));
    assert!(plain.complete && plain.text().ends_with("data: [DONE]\n\n"));
    assert!(!plain.text().contains("\"usage\""), "{}", plain.text());
    let asked =
        chat(&gateway, &prompt(1, 1), &json!({"stream": true, "stream_options": {"include_usage": true}}));
    assert!(asked.text().contains("\"usage\""));
    assert_eq!(total(&gateway, "warmroute_answers_total"), 2.0, "both were heard");
    assert!(total(&gateway, "warmroute_cached_tokens_total") > 0.0);
    // Several answers to one prompt are no evidence about the cache.
    chat(&gateway, &prompt(1, 1), &json!({"n": 2}));
    assert_eq!(total(&gateway, "warmroute_answers_total"), 2.0);
}

#[test]
fn with_injection_off_streams_pass_unchanged() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let engine = Scripted::new(move |mut asked| {
        *kept.lock().unwrap() = asked.body.clone();
        asked.begin_events();
        asked.chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n");
        asked.end_chunks();
    });
    let body = crate::harness::client::chat_stream("m", 3);
    let on = Gateway::over(&[&engine.url], &[]);
    assert_eq!(post(on.url(), "/v1/chat/completions", &body).text(), "data: [DONE]\n\n");
    let sent: Value = serde_json::from_slice(&seen.lock().unwrap()).unwrap();
    assert_eq!(sent["stream_options"]["include_usage"], true);
    let off = Gateway::over(&[&engine.url], &["--usage-injection", "off"]);
    assert!(post(off.url(), "/v1/chat/completions", &body).text().contains("usage"));
    assert_eq!(*seen.lock().unwrap(), body.as_bytes());
}

#[test]
fn a_stream_whose_length_the_engine_tells_is_whole_without_the_injected_usage() {
    let engine = Scripted::new(|mut asked| {
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
        let rest = "data: [DONE]\n\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ";
        asked.write(&format!("{head}{}\r\n\r\n{usage}", usage.len() + rest.len()));
        if asked.turn % 2 == 1 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        asked.write(rest);
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    for _ in 0..4 {
        let body = crate::harness::client::chat_stream("m", 3);
        let stream = post(gateway.url(), "/v1/chat/completions", &body);
        assert_eq!((stream.status, stream.complete, &*stream.text()), (200, true, "data: [DONE]\n\n"));
        assert_eq!(stream.header("content-length").unwrap_or("14"), "14");
    }
    engine.check();
}

#[test]
fn salts_and_models_share_nothing() {
    let (_engines, urls) = engines(1);
    let gateway = over(&urls, &[]);
    chat(&gateway, &prompt(1, 3), &json!({}));
    let salted = chat(&gateway, &prompt(1, 3), &json!({"cache_salt": "mine"}));
    assert_eq!(salted.header("x-warmroute-cached-tokens"), Some("0"));
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    let with_tools = chat(&gateway, &prompt(1, 3), &tools);
    assert_eq!(with_tools.header("x-warmroute-cached-tokens"), Some("0"), "tools stand before everything");
    assert_eq!(total(&gateway, "warmroute_stale_tokens_total"), 0.0);
}
