//! `warmroute lab drive`: the lab's traffic as text, in real time, over real sockets.

use crate::harness::process::{Gateway, Process, run};
use serde_json::Value;

const TRAFFIC: [&str; 6] = ["--workload", "sharegpt", "--requests", "60", "--seed", "3"];
/// Fast, because the test only counts tokens.
const SPEED: &str = "50";

fn engine() -> Process {
    Process::start(&["engine", "--port", "0", "--speed", SPEED])
}

/// The single result of a lab command.
fn result(words: &[&str]) -> Value {
    let output = run(&[&["lab"], words, &TRAFFIC, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["results"][0].take()
}

#[test]
fn an_engine_finds_as_much_cached_text_as_the_model() {
    let engine = engine();
    let driven = result(&["drive", "--url", engine.url(), "--speed", SPEED]);
    let simulated = result(&["simulate", "--workers", "1", "--policies", "round_robin", "--bounds", "off"]);
    assert_eq!((&driven["requests"], &driven["failed"]), (&simulated["requests"], &simulated["failed"]));
    let figure = |result: &Value, name: &str| result[name].as_f64().unwrap();
    let output = figure(&simulated, "output_tokens_per_s") / figure(&simulated, "throughput_rps");
    assert!((figure(&driven, "output_tokens") / figure(&driven, "requests") - output).abs() < 0.01);
    // Text has one token in front that the lab's prompts lack, so block boundaries shift.
    let apart = figure(&driven, "token_hit_ratio") - figure(&simulated, "token_hit_ratio");
    assert!(apart.abs() < 0.02, "{driven}\n{simulated}");
    assert!(figure(&driven, "token_hit_ratio") > 0.5, "sessions find their own answers: {driven}");
}

#[test]
fn any_router_can_be_driven_and_only_client_figures_are_reported() {
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
fn engines_without_cached_tokens_have_no_hit_ratio() {
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
