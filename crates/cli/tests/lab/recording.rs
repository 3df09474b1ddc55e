//! Traffic recorded by the gateway and replayed in the lab.

use std::fs;
use std::path::Path;

use crate::harness::client::{Call, Response};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
/// Not a multiple of the number of engines; otherwise round robin would keep every user on one engine.
const USERS: usize = 21;
const TURNS: usize = 9;
const ENGINES: usize = 4;

/// A user's turn: a prompt shared by a third of all users, then questions of their own.
fn opening(user: usize) -> Vec<Value> {
    let shared = format!("walrus {} are the rules of this house. ", user % 3).repeat(120);
    vec![json!({"role": "system", "content": shared})]
}

fn question(user: usize, turn: usize) -> Value {
    json!({"role": "user", "content": format!("zebra {user} asks in turn {turn} why. ").repeat(40)})
}

fn ask(gateway: &Gateway, user: usize, messages: &[Value], output_tokens: usize) -> Response {
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": output_tokens, "ignore_eos": true});
    let session = format!("x-session-id: giraffe-{user}");
    let headers = ["content-type: application/json", &session];
    let body = body.to_string();
    let answer =
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, body.as_bytes()).finish();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// Sends every user's conversation, users in turn. Returns the share of prompt tokens found in caches.
fn converse(gateway: &Gateway) -> f64 {
    let mut talks: Vec<Vec<Value>> = (0..USERS).map(opening).collect();
    let (mut asked, mut cached) = (0, 0);
    for turn in 0..TURNS {
        for (user, messages) in talks.iter_mut().enumerate() {
            messages.push(question(user, turn));
            let answer = ask(gateway, user, messages, 90).json();
            messages.push(answer["choices"][0]["message"].clone());
            asked += answer["usage"]["prompt_tokens"].as_u64().unwrap();
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
    }
    cached as f64 / asked as f64
}

/// Runs all conversations on fresh engines and a gateway, recorded to this file if any.
fn live(policy: &str, kv_tokens: &str, record: Option<&str>) -> f64 {
    let engines: Vec<Process> = (0..ENGINES).map(|_| engine(&["--kv-tokens", kv_tokens])).collect();
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let mut flags = vec!["--policy", policy];
    flags.extend(record.into_iter().flat_map(|file| ["--record", file]));
    let gateway = Gateway::over(&urls, &flags);
    let found = converse(&gateway);
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    found
}

/// The same share in the lab, with engines of the same speed.
fn replayed(file: &str, policy: &str, kv_tokens: &str) -> f64 {
    let workers = ENGINES.to_string();
    let args = ["lab", "simulate", "--trace", file, "--workers", &workers, "--policies", policy];
    let more = ["--kv-tokens", kv_tokens, "--speed-percent", "5000", "--bounds", "off", "--json", "-"];
    let output = run(&[&args[..], &more[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["results"][0]["requests"], USERS * TURNS);
    report["results"][0]["token_hit_ratio"].as_f64().unwrap()
}

#[test]
fn the_lab_replays_a_record_with_another_policy_and_cache() {
    let folder = TempFolder::new("replay");
    let file = folder.file("trace.jsonl");
    // The caches hold a part of the prompts, so that eviction is tested too.
    let (small, large) = ("12000", "846000");
    let cases = [("round_robin", small), ("round_robin", large), ("cache_aware", large)];
    let found = [
        live("round_robin", small, Some(&file)),
        live("round_robin", large, None),
        live("cache_aware", large, None),
    ];
    assert!(found.is_sorted_by(|less, more| less + 0.1 < *more), "policy and cache matter: {found:?}");
    pace_evenly(&file);
    for ((policy, kv_tokens), live) in cases.into_iter().zip(found) {
        let replayed = replayed(&file, policy, kv_tokens);
        assert!((replayed - live).abs() < 0.03, "{policy} {kv_tokens}: live {live}, replayed {replayed}");
    }
    says_nothing(Path::new(&file));
}

/// Sets one second between requests. The lab repeats users' pauses, so a delay of this machine would change the order
/// of later requests.
fn pace_evenly(file: &str) {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(str::to_owned);
    let head = lines.next().unwrap();
    let paced = lines.enumerate().map(|(place, line)| {
        let mut line: Value = serde_json::from_str(&line).unwrap();
        line["at_us"] = json!(place * 1_000_000);
        line["took_us"] = json!(20_000);
        line.to_string()
    });
    let paced: Vec<String> = std::iter::once(head).chain(paced).collect();
    fs::write(file, paced.join("\n") + "\n").unwrap();
}

/// The record contains no prompts, answers, session names or model names.
fn says_nothing(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.lines().count(), 1 + USERS * TURNS, "a line for each request, and one before them");
    for word in ["walrus", "zebra", "giraffe", "llama", "assistant", "rules of"] {
        assert!(!text.contains(word), "{word}");
    }
    let letters = text.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| !word.is_empty());
    let known = [
        "warmroute_trace",
        "at_us",
        "took_us",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "model",
        "session",
        "spans",
    ];
    let other: Vec<&str> = letters.filter(|word| !known.contains(word) && *word != "null").collect();
    assert_eq!(other, Vec::<&str>::new());
}

#[test]
fn a_full_disk_fails_no_request_and_is_counted() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &["--record", "/dev/full"]);
    (0..5).for_each(|user| _ = ask(&gateway, user, &[question(user, 0)], 2));
    let failed = || gateway.metric("warmroute_record_lines_total{result=\"failed\"}");
    eventually("five lines are lost", || (failed() == 5.0).then_some(()));
    assert_eq!(gateway.metric("warmroute_record_lines_total{result=\"written\"}"), 0.0);
}

/// The contents of the dated files beside a record, oldest first.
fn earlier(file: &str) -> Vec<String> {
    let folder = Path::new(file).parent().unwrap();
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut dated: Vec<_> =
        paths.filter(|path| path.to_str().unwrap().starts_with(&format!("{file}."))).collect();
    dated.sort();
    dated.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn a_record_is_rotated_and_includes_abandoned_requests() {
    let folder = TempFolder::new("rotation");
    let file = folder.file("trace.jsonl");
    fs::write(&file, "of yesterday\n").unwrap();
    let engine = engine(&[]);
    let flags = ["--record", &file, "--record-max-bytes", "4096", "--record-models", "named"];
    let gateway = Gateway::over(&[engine.url()], &flags);
    assert_eq!(earlier(&file), ["of yesterday\n"]);
    let written = || gateway.metric("warmroute_record_lines_total{result=\"written\"}");
    (0..20).for_each(|user| _ = ask(&gateway, user, &[question(user, 0)], 2));
    eventually("twenty lines are written", || (written() == 20.0).then_some(()));
    let body =
        json!({"model": MODEL, "prompt": "on and on", "max_tokens": 100_000, "stream": true}).to_string();
    let headers = ["content-type: application/json"];
    let mut call = Call::send(gateway.url(), "POST", "/v1/completions", &headers, body.as_bytes());
    call.read_until("data: ");
    call.hang_up();
    eventually("its line is written", || (written() == 21.0).then_some(()));
    let (new, old) = (fs::read_to_string(&file).unwrap(), earlier(&file));
    assert_eq!(old[0], "of yesterday\n", "rotation replaces nothing");
    assert!(new.len() <= 4_096 && old.len() > 1);
    assert!(old[1..].iter().all(|old| old.len() <= 4_096 && old.starts_with("{\"warmroute_trace\":1}\n")));
    let last: Value = serde_json::from_str(new.lines().last().unwrap()).unwrap();
    assert_eq!((&last["output_tokens"], &last["model"]), (&Value::Null, &json!(MODEL)));
}
