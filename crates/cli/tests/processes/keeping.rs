//! Saved state with real processes and engines that really cache.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::harness::client::{Call, chat, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
const CONVERSATIONS: usize = 24;
const ENGINES: usize = 4;

fn ask(gateway: &Gateway, conversation: usize, turns: usize) -> Value {
    let text = |turn: usize| format!("conversation {conversation} turn {turn} about restarts. ").repeat(60);
    let role = |turn: usize| if turn.is_multiple_of(2) { "user" } else { "assistant" };
    let messages: Value = (0..turns).map(|turn| json!({"role": role(turn), "content": text(turn)})).collect();
    let body = json!({"model": MODEL, "max_tokens": 2, "messages": messages}).to_string();
    let response = post(gateway.url(), "/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["usage"].clone()
}

/// The share of prompt tokens that engines found in their caches.
fn hit_ratio(gateway: &Gateway, turns: usize) -> f64 {
    hit_ratio_of(0..CONVERSATIONS, gateway, turns)
}

fn hit_ratio_of(numbers: impl Iterator<Item = usize>, gateway: &Gateway, turns: usize) -> f64 {
    let usages: Vec<Value> = numbers.map(|number| ask(gateway, number, turns)).collect();
    let sum =
        |of: fn(&Value) -> &Value| usages.iter().map(|usage| of(usage).as_f64().unwrap_or(0.0)).sum::<f64>();
    sum(|usage| &usage["prompt_tokens_details"]["cached_tokens"]) / sum(|usage| &usage["prompt_tokens"])
}

fn ended(gateway: Gateway) {
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
}

fn logged(urls: &[&str], more: &[&str], log: &str) -> Gateway {
    let flags = [&["--worker-urls"], urls, more].concat();
    let log = Stdio::from(std::fs::File::create(log).unwrap());
    let gateway = Gateway { process: Process::serve(&flags, log) };
    gateway.wait_for_ready(urls.len());
    gateway
}

#[test]
fn after_a_restart_conversations_are_found_where_they_were() {
    let engines = [(); ENGINES].map(|()| engine(&[]));
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let folder = TempFolder::new("state");
    let state = folder.file("state");
    let kept = ["--state", state.as_str()];
    let gateway = Gateway::over(&urls, &kept);
    hit_ratio(&gateway, 1);
    hit_ratio(&gateway, 3);
    ended(gateway);
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600, "private");
    let saved = std::fs::read(&state).unwrap();
    assert!(!saved.windows(12).any(|window| window == b"conversation"), "no text");

    let warm = Gateway::over(&urls, &kept);
    let with = hit_ratio(&warm, 5);
    ended(warm);
    std::fs::remove_file(&state).unwrap();
    let cold = Gateway::over(&urls, &kept);
    // A cold router alternates between engines. The order groups conversations of one engine, so that a cold router
    // cannot find them again by chance.
    let numbers = (0..ENGINES).flat_map(|first| (first..CONVERSATIONS).step_by(ENGINES));
    let without = hit_ratio_of(numbers, &cold, 7);
    // Three of five turns were cached before, or five of seven.
    let (with, without) = (with / (3.0 / 5.0), without / (5.0 / 7.0));
    println!("found of what caches held: {with:.2} after a restart with the state, {without:.2} without");
    assert!(with > 0.9 && without < 0.8, "{with} against {without}");
}

#[test]
fn state_is_saved_when_draining_starts() {
    let engine = engine(&[]);
    let folder = TempFolder::new("state-killed");
    let (state, log) = (folder.file("state"), folder.file("log"));
    let kept = ["--state", state.as_str()];
    let mut gateway = Gateway::over(&[engine.url()], &kept);
    ask(&gateway, 1, 3);
    assert_eq!(post(engine.url(), "/fault", r#"{"kind":"hang"}"#).status, 200);
    let waiting = Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat(MODEL).as_bytes());
    eventually("a request is under way", || (gateway.workers()[0]["in_flight"] == 1).then_some(()));
    gateway.process.signal("-TERM");
    eventually("the state is written", || std::fs::metadata(&state).ok());
    assert!(!gateway.process.has_ended(), "the request is still under way");
    // SIGKILL, as systemd sends after its stop timeout.
    drop((gateway, waiting));
    assert_eq!(post(engine.url(), "/fault", r#"{"kind":"none"}"#).status, 200);
    let next = logged(&[engine.url()], &kept, &log);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("state read from") && !log.contains("requests=0 "), "{log}");
    drop(next);
}

#[test]
fn an_unusable_state_file_costs_a_log_line_and_nothing_else() {
    let engine = engine(&[]);
    let folder = TempFolder::new("state-bad");
    let (state, log) = (folder.file("state"), folder.file("log"));
    let kept = ["--state", state.as_str()];
    let gateway = Gateway::over(&[engine.url()], &kept);
    ask(&gateway, 1, 3);
    ended(gateway);
    let good = std::fs::read(&state).unwrap();
    let mut spoiled = good.clone();
    spoiled[good.len() / 2] ^= 1;
    let mut newer = good.clone();
    newer[8] = 99;
    let cases = [
        (spoiled, "the checksum does not match"),
        (good[..good.len() / 2].to_vec(), "the checksum does not match"),
        (newer, "the file has format version 99"),
        (b"what is this?".to_vec(), "the file is not a saved state"),
        (vec![0; 70_000_000], "larger than the index limit"),
        (good.clone(), "state read from"),
    ];
    for (bytes, said) in cases {
        std::fs::write(&state, bytes).unwrap();
        let gateway = logged(&[engine.url()], &[&kept[..], &["--max-tree-size", "2000000"]].concat(), &log);
        ask(&gateway, 1, 1);
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(log.contains(said), "{said}: {log}");
        drop(gateway);
    }
    std::fs::write(&state, &good).unwrap();
    let other = logged(&[engine.url()], &[&kept[..], &["--block-hash", "sha256"]].concat(), &log);
    assert!(std::fs::read_to_string(&log).unwrap().contains("written with another block-hash"));
    drop(other);
    let folder = folder.file("folder");
    std::fs::create_dir(&folder).unwrap();
    let gateway = logged(&[engine.url()], &["--state", &format!("{folder}/state")], &log);
    std::fs::remove_dir(&folder).unwrap();
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success(), "what cannot be kept is no reason to fail");
    assert!(std::fs::read_to_string(&log).unwrap().contains("cannot write the state"));
}

#[test]
fn a_successor_knows_what_its_predecessor_knew() {
    let engines = [(); 4].map(|()| engine(&[]));
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let folder = TempFolder::new("state-handover");
    let (state, path) = (folder.file("state"), folder.file("sock"));
    let flags = ["--state", state.as_str(), "--handover", path.as_str()];
    let old = Gateway::over(&urls, &flags);
    hit_ratio(&old, 1);
    let new = Gateway::start(&urls, &flags);
    assert!(old.process.wait().success());
    let found = hit_ratio(&new, 3);
    println!("found in caches after a handover: {found:.2}");
    assert!(found > 0.25, "{found}");
    assert_eq!(get(new.admin(), "/readyz").status, 200);
    ended(new);
    assert!(std::fs::metadata(&state).unwrap().len() > 1_000);
}
