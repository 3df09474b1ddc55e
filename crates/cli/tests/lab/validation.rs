//! Compares the lab with reality: the same workload through `warmroute serve` with simulated engines, and in virtual
//! time.
//!
//! The engines run at half speed, so that modelled times are long compared with a busy machine's delays. No placement
//! is left to chance: two heads on one engine double its queue, and the test would compare placements instead of
//! times. Both cases run at once, because they mostly sleep.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Call;
use crate::harness::process::{Gateway, Process, run};
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
const ENGINES: usize = 3;
const SPEED: &str = "0.5";
const SPEED_PERCENT: &str = "50";
const ANSWER_TOKENS: u32 = 40;
/// Wall time between an answer and the next question.
const THINK: Duration = Duration::from_millis(500);

/// A policy and its workload.
#[derive(Clone, Copy)]
struct Case {
    policy: &'static str,
    users: u32,
    turns: u32,
    /// Wall time between users' first questions.
    between: Duration,
}

const CASES: [Case; 2] = [
    // The first three users are in flight at once, so that each of the three heads gets its own engine.
    Case { policy: "cache_aware", users: 16, turns: 3, between: Duration::from_millis(240) },
    // One turn each at fixed times, so that the order of turns is the same in every run.
    Case { policy: "round_robin", users: 30, turns: 1, between: Duration::from_millis(160) },
];

/// Mean milliseconds to the first token, and the share of prompt tokens found in caches.
#[derive(Clone, Copy, Debug)]
struct Measured {
    ttft_ms: f64,
    hit: f64,
}

/// A user's conversation. Every third user shares a head of 4,000 tokens; a question has 2,000.
fn converse(url: &str, case: Case, user: u32) -> Vec<Duration> {
    thread::sleep(case.between * user);
    let head = format!("these are the rules of house number {:>3} ", user % 3).repeat(400);
    let mut messages = vec![json!({"role": "system", "content": head})];
    let mut waited = Vec::new();
    for turn in 0..case.turns {
        let question = format!("user number {user:>3} asks in turn {turn} ").repeat(250);
        messages.push(json!({"role": "user", "content": question}));
        let (ttft, answer) = ask(url, &messages);
        waited.push(ttft);
        messages.push(json!({"role": "assistant", "content": answer}));
        thread::sleep(THINK);
    }
    waited
}

fn ask(url: &str, messages: &[Value]) -> (Duration, String) {
    let body = json!({
        "model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": true, "stream": true,
    });
    let headers = ["content-type: application/json"];
    let sent = Instant::now();
    let mut call = Call::send(url, "POST", "/v1/chat/completions", &headers, body.to_string().as_bytes());
    call.read_until("data: ");
    let ttft = sent.elapsed();
    (ttft, text_of(&call.finish().text()))
}

fn text_of(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    let text = |event: &str| {
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    events.map(text).collect()
}

/// Runs in real time, and records the requests.
fn live(case: Case, record: &str) -> Measured {
    let start = |_| Process::start(&["engine", "--port", "0", "--speed", SPEED]);
    let engines: Vec<Process> = (0..ENGINES).map(start).collect();
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let gateway = Gateway::over(&urls, &["--policy", case.policy, "--record", record]);
    let url = gateway.url();
    let waited: Vec<Duration> = thread::scope(|scope| {
        let users: Vec<_> =
            (0..case.users).map(|user| scope.spawn(move || converse(url, case, user))).collect();
        users.into_iter().flat_map(|user| user.join().unwrap()).collect()
    });
    let sum = |metric: &str| gateway.metric_sum(metric);
    let hit = sum("warmroute_cached_tokens_total") / sum("warmroute_prompt_tokens_total");
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    let ttft_ms = waited.iter().sum::<Duration>().as_secs_f64() * 1_000.0 / waited.len() as f64;
    Measured { ttft_ms, hit }
}

/// Runs the same requests in virtual time, averaged over seeds.
fn simulated(case: Case, record: &str) -> Measured {
    let workers = ENGINES.to_string();
    let args = ["lab", "simulate", "--trace", record, "--workers", &workers, "--policies", case.policy];
    let more = ["--speed-percent", SPEED_PERCENT, "--seeds", "5", "--bounds", "off", "--json", "-"];
    let output = run(&[&args[..], &more[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let mean = |of: &dyn Fn(&Value) -> f64| results.iter().map(of).sum::<f64>() / results.len() as f64;
    assert!(results.iter().all(|result| result["requests"] == case.users * case.turns));
    Measured {
        ttft_ms: mean(&|result| result["ttft_ms"]["mean"].as_f64().unwrap()),
        hit: mean(&|result| result["token_hit_ratio"].as_f64().unwrap()),
    }
}

/// A busy machine makes real times longer, but never right by chance: one good run of three suffices.
#[test]
fn virtual_time_predicts_real_time() {
    let first = (1..=3).map(compared).find(|differences| differences.is_empty());
    assert!(first.is_some(), "three runs differ, the last by {:?}", compared(4));
}

/// The differences between a live run and the lab's.
fn compared(attempt: u32) -> Vec<String> {
    let folder = TempFolder::new(&format!("validation-{attempt}"));
    let cases = CASES.map(|case| (case, folder.file(case.policy)));
    let measured: Vec<Measured> = thread::scope(|scope| {
        let runs = cases.each_ref().map(|(case, file)| scope.spawn(move || live(*case, file)));
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let runs = cases.into_iter().zip(measured);
    let differences = runs.filter_map(|((case, file), live)| {
        let lab = simulated(case, &file);
        let ratio = lab.ttft_ms / live.ttft_ms;
        let is_equal = (0.9..=1.1).contains(&ratio) && (live.hit - lab.hit).abs() <= 0.02;
        (!is_equal).then(|| format!("{}: live {live:?}, lab {lab:?}", case.policy))
    });
    differences.collect()
}
