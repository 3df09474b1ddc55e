//! `warmroute lab drive`: the lab's traffic as text, in real time, against real sockets.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod world;

use serde_json::Value;
use world::process::{Gateway, Process, run};

const TRAFFIC: [&str; 6] = ["--workload", "sharegpt", "--requests", "60", "--seed", "3"];
/// Fast, because nothing here is measured but counts.
const SPEED: &str = "50";

fn engine() -> Process {
    Process::start(&["engine", "--port", "0", "--speed", SPEED])
}

/// The only result of a command of the lab.
fn result(words: &[&str]) -> Value {
    let output = run(&[&["lab"], words, &TRAFFIC, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["results"][0].take()
}

#[test]
fn an_engine_finds_of_the_text_what_the_model_finds_of_the_traffic() {
    let engine = engine();
    let driven = result(&["drive", "--url", engine.url(), "--speed", SPEED]);
    let simulated = result(&["simulate", "--workers", "1", "--policies", "round_robin", "--bounds", "off"]);
    assert_eq!((&driven["requests"], &driven["failed"]), (&simulated["requests"], &simulated["failed"]));
    let figure = |result: &Value, name: &str| result[name].as_f64().unwrap();
    let output = figure(&simulated, "output_tokens_per_s") / figure(&simulated, "throughput_rps");
    assert!((figure(&driven, "output_tokens") / figure(&driven, "requests") - output).abs() < 0.01);
    // Text has a token in front of it that the lab's prompts do not, so that blocks are cut elsewhere.
    let apart = figure(&driven, "token_hit_ratio") - figure(&simulated, "token_hit_ratio");
    assert!(apart.abs() < 0.02, "{driven}\n{simulated}");
    assert!(figure(&driven, "token_hit_ratio") > 0.5, "sessions find their own answers: {driven}");
}

#[test]
fn any_router_can_be_driven_and_only_what_clients_see_is_told() {
    let engines = [engine(), engine()];
    let gateway = Gateway::over(&engines.each_ref().map(Process::url), &["--policy", "cache_aware"]);
    let driven = result(&["drive", "--url", gateway.url(), "--speed", SPEED, "--name", "ours"]);
    assert_eq!((driven["policy"].as_str(), driven["failed"].as_u64()), (Some("ours"), Some(0)));
    for spread in ["ttft_ms", "e2e_ms"] {
        assert!(driven[spread]["p50"].as_f64().unwrap() > 0.0, "{driven}");
    }
    assert!(driven["token_hit_ratio"].as_f64().unwrap() > 0.4, "{driven}");
    assert!(driven.get("load_cv").is_none() && driven.get("stale_ratio").is_none(), "{driven}");
}

#[test]
fn engines_that_do_not_tell_what_they_found_have_no_hit_ratio() {
    let engine =
        Process::start(&["engine", "--port", "0", "--speed", SPEED, "--prompt-tokens-details", "off"]);
    let driven = result(&["drive", "--url", engine.url(), "--speed", SPEED]);
    assert!(driven["requests"].as_u64().unwrap() >= 60, "{driven}");
    assert!(driven.get("token_hit_ratio").is_none(), "{driven}");
}

#[test]
fn failures_are_told() {
    let words = |url| ["lab", "drive", "--url", url, "--workload", "short", "--requests", "3"];
    let output = run(&words("http://127.0.0.1:1"));
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("3 requests failed") && said.contains("no connection"), "{said}");
    assert!(!run(&words("https://127.0.0.1:1")).status.success());
}
