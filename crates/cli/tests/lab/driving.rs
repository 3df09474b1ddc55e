//! `warmroute lab drive`: the lab's traffic as text, in real time, over real sockets.

use crate::harness::process::{Gateway, Process, run};
use serde_json::Value;

const TRAFFIC: [&str; 6] = ["--workload", "sharegpt", "--requests", "60", "--seed", "3"];
/// Fast, because the test only counts tokens.
const SPEED: &str = "50";

fn engine() -> Process {
    Process::start(&["engine", "--port", "0", "--speed", SPEED])
}

/// The single result of a lab command on this traffic.
fn result(words: &[&str]) -> Value {
    result_of(&[words, &TRAFFIC].concat())
}

/// The single result of a lab command.
fn result_of(words: &[&str]) -> Value {
    let output = run(&[&["lab"], words, &["--json", "-"]].concat());
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
fn engines_measure_what_clients_see() {
    let engines = [engine(), engine()];
    let urls = engines.each_ref().map(Process::url);
    // Earlier requests count in both readings, and so in no figure.
    result(&["drive", "--url", urls[0], "--speed", SPEED]);
    let gateway = Gateway::over(&urls, &["--policy", "round_robin"]);
    let (url, metrics) = (gateway.url(), urls.join(","));
    let driven = result(&["drive", "--url", url, "--speed", SPEED, "--engine-metrics", &metrics]);
    let (sum, each) = (&driven["engines"]["sum"], driven["engines"]["each"].as_array().unwrap());
    assert_eq!(each.len(), 2);
    assert!(
        each.iter().chain([sum]).all(|engine| engine["problems"] == Value::Array(Vec::new())),
        "{driven}"
    );
    assert_eq!(sum["requests"], driven["requests"], "{driven}");
    assert_eq!(sum["prefill_tokens_computed"], driven["prefill_tokens_computed"], "{driven}");
    assert_eq!(sum["preemptions"], 0, "{driven}");
    assert_eq!(sum["waiting"]["last"], 0.0, "{driven}");
    let figure = |from: &Value, name: &str| from[name].as_f64().unwrap();
    assert!((figure(sum, "token_hit_ratio") - figure(&driven, "token_hit_ratio")).abs() < 1e-9, "{driven}");
    let of_each = |name: &str| each.iter().map(|engine| figure(engine, name)).sum::<f64>();
    for name in ["requests", "prefill_tokens_computed", "prefix_queries_tokens", "prefix_hits_tokens"] {
        assert!((of_each(name) - figure(sum, name)).abs() < 1e-9, "{name}: {driven}");
    }
    // Clients see the network and the router besides, fifty times as long in engine time.
    let (inside, outside) = (&sum["ttft_ms"], &driven["ttft_ms"]);
    assert!(figure(inside, "mean") > 0.0 && figure(inside, "mean") <= figure(outside, "mean"), "{driven}");
    let shares = ["p50", "p95", "p99"].map(|share| figure(inside, share));
    assert!(shares.is_sorted() && shares[0] > 0.0, "{driven}");
}

#[test]
fn engines_without_metrics_are_named() {
    let engine = engine();
    let router = Gateway::over(&[engine.url()], &[]);
    let (gone, other) = ("http://127.0.0.1:1", router.url());
    let words =
        ["drive", "--url", engine.url(), "--speed", SPEED, "--engine-metrics", engine.url(), gone, other];
    let driven = result(&words);
    let problem = |index: usize| driven["engines"]["each"][index]["problems"][0].as_str().unwrap();
    assert!(problem(1).contains("no metrics before the run"), "{driven}");
    assert!(problem(2).contains("no metrics before the run"), "{driven}");
    assert_eq!(driven["engines"]["each"][1]["preemptions"], Value::Null, "{driven}");
    let sum = &driven["engines"]["sum"];
    assert_eq!(sum["requests"], driven["requests"], "{driven}");
    assert!(sum["problems"].to_string().contains("figures of 1 of 3 engines"), "{driven}");
    let output = run(&[&["lab"][..], &words, &TRAFFIC].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("clients") && table.contains("3 engines") && table.contains(&format!("{gone}: no")),
        "{table}"
    );
}

#[test]
fn a_closed_loop_keeps_its_number_of_requests_in_flight() {
    let engine = engine();
    let words = |clients| ["drive", "--url", engine.url(), "--speed", SPEED, "--concurrency", clients];
    let traffic = ["--workload", "unique", "--requests", "40"];
    let figure = |from: &Value, name: &str| from[name].as_f64().unwrap();
    let [one, four] = ["1", "4"].map(|clients| result_of(&[&words(clients)[..], &traffic].concat()));
    for driven in [&one, &four] {
        let closed = &driven["closed_loop"];
        assert_eq!((driven["requests"].as_u64(), driven["failed"].as_u64()), (Some(40), Some(0)), "{driven}");
        // Little's law: requests in flight are the throughput times the time that a request takes.
        let in_flight = figure(closed, "throughput_rps") * figure(&driven["e2e_ms"], "mean") / 1e3;
        let clients = figure(closed, "concurrency");
        assert!((0.5..1.2).contains(&(in_flight / clients)), "{in_flight}: {driven}");
        let per_answer = figure(closed, "output_tokens_per_s") / figure(closed, "throughput_rps");
        assert!((per_answer - figure(driven, "output_tokens") / 40.0).abs() < 1e-6, "{driven}");
    }
}

#[test]
fn a_closed_loop_ends_after_its_duration() {
    let engine = engine();
    let words =
        ["drive", "--url", engine.url(), "--speed", SPEED, "--workload", "unique", "--requests", "5000"];
    let driven = result_of(&[&words[..], &["--concurrency", "2", "--duration", "20"]].concat());
    let closed = &driven["closed_loop"];
    assert_eq!(closed["full_s"], 20.0, "{driven}");
    assert!(closed["throughput_rps"].as_f64().unwrap() > 0.0, "{driven}");
    assert!(driven["requests"].as_u64().unwrap() < 5_000, "{driven}");
    let unused = run(&["lab", "drive", "--url", engine.url(), "--workload", "unique", "--duration", "3"]);
    assert!(!unused.status.success(), "--duration is for --concurrency");
}

#[test]
fn failures_are_reported() {
    let words = |url| ["lab", "drive", "--url", url, "--workload", "short", "--requests", "3"];
    let output = run(&words("http://127.0.0.1:1"));
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("3 requests failed") && said.contains("no connection"), "{said}");
    assert!(!run(&words("https://127.0.0.1:1")).status.success());
}
