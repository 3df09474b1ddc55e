//! Precise routing end to end: simulated engines that publish events, with every fault of a stream.
//!
//! `cargo test -p warmroute-cli --test events precise -- --nocapture --test-threads 1` prints the table of faults.

mod announced;
mod faults;
mod hybrid;
mod last_block;
mod media;
mod restarts;
mod unrendered;

use crate::harness::client::{Call, Response, get, post};
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::{TIMEOUT, eventually, eventually_within};
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
const BLOCK: u64 = 16;

/// Engines that publish events, the model's files, and a gateway that follows them.
struct Cluster {
    engines: Vec<Process>,
    gateway: Gateway,
    /// Total number of blocks that the engines must have reported.
    told: u64,
}

impl Cluster {
    fn new(name: &str, engines: usize, engine_flags: &[&str], gateway_flags: &[&str]) -> Cluster {
        let flags = [&["--replay", "tcp://127.0.0.1:0"], engine_flags].concat();
        let cluster = Cluster::without_events(name, engines, &flags, gateway_flags);
        cluster.wait_for_view("reported");
        cluster
    }

    /// Starts engines that may not have published yet.
    fn without_events(name: &str, engines: usize, engine_flags: &[&str], gateway_flags: &[&str]) -> Cluster {
        let folder = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
        let mut flags = vec!["--events", "tcp://127.0.0.1:0", "--write-model", &folder];
        flags.extend_from_slice(engine_flags);
        let engines: Vec<Process> = (0..engines).map(|_| engine(&flags)).collect();
        let urls: Vec<&str> = engines.iter().map(Process::url).collect();
        let mut flags = vec!["--model-path", folder.as_str()];
        flags.extend_from_slice(gateway_flags);
        let gateway = Gateway::start(&urls, &flags);
        Cluster { engines, gateway, told: 0 }
    }

    /// On a busy machine the first comparison with an engine may time out, and the next one follows 15 s later.
    fn wait_for_view(&self, view: &str) {
        eventually_within(4 * TIMEOUT, &format!("all views are {view}"), || {
            self.gateway.workers().iter().all(|worker| worker["view"] == view).then_some(())
        });
    }

    fn stored(&self) -> u64 {
        let blocks = |worker: &Value| worker["events"]["blocks"]["stored"].as_u64().unwrap_or(0);
        self.gateway.workers().iter().map(blocks).sum()
    }

    /// Sends one turn, then waits until the engine has published what it stored, unless the stream is broken on
    /// purpose.
    fn ask(&mut self, messages: &Value) -> Prediction {
        let asked = Prediction::of(&chat(&self.gateway, messages));
        self.told += asked.prompt / BLOCK - asked.cached / BLOCK;
        asked
    }

    fn settle(&self) {
        let told = self.told;
        eventually(&format!("{told} blocks are reported"), || (self.stored() >= told).then_some(()));
    }
}

#[derive(Clone, Debug)]
struct Prediction {
    worker: String,
    predicted: u64,
    cached: u64,
    prompt: u64,
}

impl Prediction {
    fn of(response: &Response) -> Prediction {
        let usage = &response.json()["usage"];
        Prediction {
            worker: response.header("x-warmroute-worker").unwrap().to_owned(),
            predicted: response.header("x-warmroute-cached-tokens").unwrap().parse().unwrap(),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0),
            prompt: usage["prompt_tokens"].as_u64().unwrap(),
        }
    }
}

/// Only one token is generated, so that only prompts are stored.
fn chat(gateway: &Gateway, messages: &Value) -> Response {
    let body = json!({"model": MODEL, "max_tokens": 1, "messages": messages});
    let response = post(gateway.url(), "/v1/chat/completions", &body.to_string());
    assert_eq!(response.status, 200, "{}", response.text());
    response
}

/// A conversation under one of four system prompts, with text that is hard to tokenize.
fn conversation(number: usize, turns: usize) -> Value {
    let mut messages =
        vec![json!({"role": "system", "content": format!("You are assistant {}. ", number % 4).repeat(6)})];
    for turn in 0..turns {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        let text = format!("conversation {number}, turn {turn}: naïve <&> \"quoted\" 世界 e\u{301} {{}} ");
        messages.push(json!({"role": role, "content": text.repeat(2 + number % 3)}));
    }
    Value::Array(messages)
}

#[test]
fn what_engines_offload_is_restored_and_counts_as_cached() {
    let flags = ["--kv-tokens", "2048", "--host-kv-tokens", "100000"];
    let mut cluster = Cluster::new("model-tiers", 2, &flags, &["--policy", "expected_ttft"]);
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let mut round = Vec::new();
        for number in 0..24 {
            round.push(cluster.ask(&conversation(number, 7)));
            cluster.settle();
        }
        rounds.push(round);
    }
    let restored = rounds[1].iter().filter(|asked| asked.cached > asked.predicted + BLOCK).count();
    assert!(restored >= 12, "{rounds:?}");
    for (before, again) in rounds[0].iter().zip(&rounds[1]) {
        assert_eq!(before.worker, again.worker, "it goes where its blocks are: {before:?} {again:?}");
    }
    let blocks = |what: &str| -> u64 {
        let count = |worker: &Value| worker["events"]["blocks"][what].as_u64().unwrap();
        cluster.gateway.workers().iter().map(count).sum()
    };
    assert!(blocks("offloaded") > 0 && blocks("unknown") == 0);
    let metrics = get(cluster.gateway.admin(), "/metrics").text();
    let counted = |name: &str| -> f64 {
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let wrong = ["warmroute_missed_tokens_total", "warmroute_stale_tokens_total"].map(counted);
    assert_eq!(wrong, [0.0, 0.0], "what was restored had been expected");
}

#[test]
fn predictions_equal_cached_tokens_in_both_encodings() {
    for encoding in ["map", "array"] {
        let mut cluster = Cluster::new(&format!("model-{encoding}"), 3, &["--event-encoding", encoding], &[]);
        for turns in [1, 3, 5, 7] {
            for number in 0..12 {
                let asked = cluster.ask(&conversation(number, turns));
                assert_eq!(
                    asked.predicted, asked.cached,
                    "{encoding}, conversation {number}, {turns} turns: {asked:?}"
                );
                cluster.settle();
            }
        }
        let counted = |name: &str| cluster.gateway.metric_sum(name);
        assert_eq!(
            (counted("warmroute_stale_tokens_total"), counted("warmroute_missed_tokens_total")),
            (0.0, 0.0)
        );
        assert!(counted("warmroute_cached_tokens_total") > 10_000.0);
    }
}

#[test]
fn each_rank_has_a_view_of_its_own() {
    let folder = format!("{}/model-ranks", env!("CARGO_TARGET_TMPDIR"));
    let flags = ["--ranks", "2", "--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"];
    let one = engine(&[&flags[..], &["--write-model", &folder]].concat());
    let gateway = Gateway::start(&[one.url()], &["--dp-size", "2", "--model-path", &folder]);
    let mut cluster = Cluster { engines: vec![one], gateway, told: 0 };
    cluster.wait_for_view("reported");
    for turns in [1, 3, 5] {
        for number in 0..8 {
            let asked = cluster.ask(&conversation(number, turns));
            assert_eq!(asked.predicted, asked.cached, "{asked:?}");
            cluster.settle();
        }
    }
    // Blocks credited to the wrong rank would have been predicted there.
    assert_eq!(cluster.gateway.metric_sum("warmroute_stale_tokens_total"), 0.0);
}

#[test]
fn tokens_can_be_compared_instead_of_bytes() {
    let mut cluster = Cluster::new("model-tokens", 2, &[], &["--matching", "tokens"]);
    for turns in [1, 3, 5] {
        for number in 0..6 {
            let asked = cluster.ask(&conversation(number, turns));
            assert_eq!(asked.predicted, asked.cached, "{asked:?}");
            cluster.settle();
        }
    }
}

#[test]
fn a_missing_model_leaves_the_view_presumed_with_a_reason() {
    let one = engine(&["--events", "tcp://127.0.0.1:0"]);
    let gateway = Gateway::over(&[one.url()], &["--model-path", "/nowhere/at/all"]);
    chat(&gateway, &conversation(1, 3));
    let again = Prediction::of(&chat(&gateway, &conversation(1, 3)));
    assert!(again.predicted > 0, "presumed all the same");
    assert_eq!(gateway.workers()[0]["view"], "presumed");
}

#[test]
fn reporters_need_the_token_a_known_worker_and_the_right_number() {
    let folder = format!("{}/model-posts", env!("CARGO_TARGET_TMPDIR"));
    let one = engine(&["--write-model", &folder]);
    let gateway = Gateway::over(&[one.url()], &["--model-path", &folder, "--events-token", "secret"]);
    let tell = |worker: &str, token: &str, seq: u64| {
        let body = json!({"source": "test", "seq": seq, "events": [
            {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": vec![300; 32], "block_size": 16}]});
        let path = format!("/events?worker={}", worker.replace(':', "%3A").replace('/', "%2F"));
        let bearer = format!("authorization: Bearer {token}");
        let headers = ["content-type: application/json", bearer.as_str()];
        Call::send(gateway.admin(), "POST", &path, &headers, body.to_string().as_bytes()).finish()
    };
    assert_eq!(tell(one.url(), "wrong", 0).status, 401);
    assert_eq!(tell("http://127.0.0.1:1", "secret", 0).status, 404);
    eventually("the worker is aligned", || gateway.workers()[0]["events"].is_object().then_some(()));
    let early = tell(one.url(), "secret", 5);
    assert_eq!((early.status, early.json()["expected"].as_u64()), (409, Some(0)));
    assert_eq!(tell(one.url(), "secret", 0).json()["next_seq"], 1);
    eventually("its view is reported", || (gateway.workers()[0]["view"] == "reported").then_some(()));
    assert_eq!(gateway.workers()[0]["events"]["blocks"]["stored"], 2);
    let config = get(gateway.admin(), "/config").text();
    assert!(!config.contains("secret"), "{config}");
    let closed = Gateway::over(&[one.url()], &[]);
    assert_eq!(post(closed.admin(), "/events?worker=x", "{}").status, 403);
}
