//! Events of the simulated engine, read by the production subscriber: they describe the engine's cache
//! despite losses, delays and restarts.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod client;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use client::{PATIENCE, ask, fast, get, post, start};
use serde_json::{Value, json};
use warmroute_engine::Tier;
use warmroute_events::{
    Config as Following, Counters, EventSink, Step, Subscriber, View, read_vllm_sources, subscribe,
};
use warmroute_replica::{Config, EventEncoding, EventsConfig, Replica, Tokenizer};
use warmroute_types::{Address, CacheEvent, Micros, StoredBlocks};

/// Reported blocks as counted names, and every store.
#[derive(Default)]
struct Mirror {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    held: BTreeMap<u64, u32>,
    stores: Vec<StoredBlocks>,
    forgotten: u32,
}

impl EventSink for Mirror {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        let mut known = self.known();
        for step in steps.drain(..) {
            match step {
                Step::Apply(events) => events.into_iter().for_each(|event| known.apply(event)),
                Step::Forget => {
                    known.held.clear();
                    known.forgotten += 1;
                }
                Step::View(_) | Step::AskReplay { .. } => {}
            }
        }
    }
}

impl Known {
    fn apply(&mut self, event: CacheEvent) {
        match event {
            CacheEvent::Stored(stored) => {
                stored.names.iter().for_each(|name| *self.held.entry(*name).or_default() += 1);
                self.stores.push(stored);
            }
            CacheEvent::Removed(removed) => {
                for name in removed.names {
                    let count = self.held.get_mut(&name).expect("only what is held is removed");
                    *count -= 1;
                }
                self.held.retain(|_, count| *count > 0);
            }
            CacheEvent::Cleared => self.held.clear(),
        }
    }
}

impl Mirror {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    fn blocks(&self) -> u32 {
        self.known().held.values().sum()
    }
}

fn telling(encoding: EventEncoding) -> Config {
    let free = || "tcp://127.0.0.1:0".parse().unwrap();
    let events =
        EventsConfig { topic: "kv@here".to_owned(), encoding, ..EventsConfig::bind(free(), Some(free())) };
    let mut config = Config { tokenizer: Tokenizer::Pairs, events: Some(events), ..fast() };
    config.engine.kv_tokens = 64 * 16;
    config
}

/// Follows a rank by the sources that the replica announces.
async fn follow(replica: &Replica, rank: usize) -> (Arc<Mirror>, Subscriber) {
    let body = get(replica, "/kv_event_sources").await.body;
    let source = read_vllm_sources(body.as_bytes(), replica.url()).unwrap().swap_remove(rank);
    let mirror = Arc::new(Mirror::default());
    let following = Following { tick: Duration::from_millis(20), ..Following::default() };
    let worker = Address { url: replica.url().to_owned(), rank: Some(rank as u16) };
    let subscriber = subscribe(worker, source, Arc::clone(&mirror) as Arc<dyn EventSink>, following);
    (mirror, subscriber)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    client::until(what, &mut is_so).await;
}

/// Sends more prompts than the cache holds, so that blocks are stored and evicted.
async fn churn(replica: &Replica, from: u32, count: u32) {
    for n in from..from + count {
        let prompt = format!("Prompt number {n}. {}", "Some words that fill blocks. ".repeat(8));
        let body = json!({"prompt": prompt, "max_tokens": 20});
        assert_eq!(post(replica, "/v1/completions", &body).await.status, 200);
    }
}

/// Waits until the mirror equals the engine's cache.
async fn until_true(mirror: &Mirror, replica: &Replica, subscriber: &Subscriber) {
    let wait = until("the view is what the engine holds", || {
        mirror.blocks() == replica.stats().blocks_cached && subscriber.view() == View::Reported
    });
    if tokio::time::timeout(PATIENCE / 2, wait).await.is_err() {
        let (told, held) = (mirror.blocks(), replica.stats().blocks_cached);
        panic!("{told} told, {held} held, {}: {:?}", subscriber.view(), subscriber.counters());
    }
}

#[tokio::test]
async fn events_equal_the_cache_in_both_encodings() {
    for encoding in [EventEncoding::Map, EventEncoding::Array] {
        let replica = start(telling(encoding)).await;
        churn(&replica, 0, 3).await;
        let (mirror, subscriber) = follow(&replica, 0).await;
        until_true(&mirror, &replica, &subscriber).await;
        churn(&replica, 3, 20).await;
        until_true(&mirror, &replica, &subscriber).await;
        let counters = subscriber.counters();
        assert!(counters.blocks_removed > 0, "blocks were evicted: {counters:?}");
        assert_eq!((counters.unreadable, counters.gaps, counters.lost), (0, 0, 0));
        let cleared = ask(&replica, "POST", "/reset_prefix_cache", "", "").await.json();
        assert_eq!(cleared["success"], true);
        churn(&replica, 90, 1).await;
        until_true(&mirror, &replica, &subscriber).await;
    }
}

#[tokio::test]
async fn tokens_are_the_text_and_chains_begin_where_prompts_begin() {
    let replica = start(Config { adapters: vec!["poet".to_owned()], ..telling(EventEncoding::Map) }).await;
    let (mirror, subscriber) = follow(&replica, 0).await;
    until("connected", || subscriber.view() == View::Reported).await;
    let text = "Some shared words to begin with. ".repeat(4);
    let body = json!({"model": "poet", "prompt": text, "max_tokens": 40, "cache_salt": "tenant"});
    let answer = post(&replica, "/v1/completions", &body).await.json();
    let said = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    // The last token is never computed, so its block is not full.
    until("prompt and answer are told", || {
        mirror.known().stores.iter().map(|s| s.names.len()).sum::<usize>() == 6
    })
    .await;
    let tokens: Vec<u32> = {
        let known = mirror.known();
        let first = &known.stores[0];
        let names = (first.salt.as_deref(), first.lora.as_deref());
        assert_eq!((first.parent, names), (None, (Some("tenant"), Some("poet"))));
        assert!(known.stores.windows(2).all(|pair| pair[1].parent == pair[0].names.last().copied()));
        known.stores.iter().flat_map(|stored| stored.tokens.iter().copied()).collect()
    };
    let text_of = post(&replica, "/detokenize", &json!({"tokens": tokens})).await.json();
    let expected = format!("{text}{said}");
    assert_eq!(
        text_of["prompt"].as_str().unwrap(),
        &expected[..tokens.len() * 2 - 2],
        "without its first token"
    );
}

#[tokio::test]
async fn every_rank_publishes_its_own_cache() {
    let replica = start(Config { ranks: 2, ..telling(EventEncoding::Map) }).await;
    let (zero, follows_zero) = follow(&replica, 0).await;
    let (one, follows_one) = follow(&replica, 1).await;
    let body = json!({"prompt": "Some words that fill blocks. ".repeat(8), "max_tokens": 1}).to_string();
    ask(&replica, "POST", "/v1/completions", "x-data-parallel-rank: 1\r\n", &body).await;
    until("rank 1 tells", || one.blocks() == 7).await;
    until("rank 0 is followed", || follows_zero.view() == View::Reported).await;
    assert_eq!((zero.blocks(), follows_one.misdirected()), (0, 0));
}

#[tokio::test]
async fn lost_late_repeated_and_reordered_batches_are_corrected() {
    let leaves = |counters: Counters| [counters.gaps > 0, counters.duplicates > 0, counters.lag_s > 0.02];
    for (fault, traces) in [
        (json!({"kind": "events", "loss": 0.5}), [true, false, false]),
        (json!({"kind": "events", "reorder": 0.5}), [true, true, false]),
        (json!({"kind": "events", "duplicate": 0.7}), [false, true, false]),
        (json!({"kind": "events", "lag_ms": 30}), [false, false, true]),
        (
            json!({"kind": "events", "loss": 0.3, "reorder": 0.3, "duplicate": 0.3, "lag_ms": 50}),
            [true, true, true],
        ),
    ] {
        let replica = start(telling(EventEncoding::Map)).await;
        let (mirror, subscriber) = follow(&replica, 0).await;
        until("connected", || subscriber.view() == View::Reported).await;
        assert_eq!(post(&replica, "/fault", &fault).await.status, 200, "{fault}");
        churn(&replica, 0, 40).await;
        until("the fault shows", || {
            leaves(subscriber.counters()).iter().zip(traces).all(|(is, must)| *is || !must)
        })
        .await;
        post(&replica, "/fault", &json!({"kind": "none"})).await;
        // One batch reveals a loss at the very end, and one releases an overtaken batch.
        churn(&replica, 100, 2).await;
        until_true(&mirror, &replica, &subscriber).await;
        assert_eq!(subscriber.counters().lost, 0, "{fault}");
        assert_eq!(mirror.known().forgotten, 0, "{fault}");
    }
}

#[tokio::test]
async fn a_restart_clears_the_view() {
    let replica = start(telling(EventEncoding::Map)).await;
    churn(&replica, 0, 10).await;
    let (mirror, subscriber) = follow(&replica, 0).await;
    until_true(&mirror, &replica, &subscriber).await;
    let before: Vec<u64> = mirror.known().held.keys().copied().collect();
    post(&replica, "/fault", &json!({"kind": "restart"})).await;
    churn(&replica, 50, 1).await;
    until("forgotten", || mirror.known().forgotten > 0).await;
    until_true(&mirror, &replica, &subscriber).await;
    assert!(before.iter().all(|name| !mirror.known().held.contains_key(name)));
}

#[tokio::test]
async fn a_truncated_replay_gives_late_subscribers_a_lower_bound() {
    let replica = start(telling(EventEncoding::Map)).await;
    churn(&replica, 0, 3).await;
    post(&replica, "/fault", &json!({"kind": "events", "replay_batches": 2})).await;
    let (mirror, subscriber) = follow(&replica, 0).await;
    until("joined", || subscriber.view() == View::Reported).await;
    let floor = subscriber.counters().floor_seq.unwrap();
    assert!(floor > 0, "it begins late");
    assert!(mirror.blocks() < replica.stats().blocks_cached, "and knows less than there is");
}

#[tokio::test]
async fn the_lying_fault_claims_more_than_the_cache_holds() {
    for fault in
        [json!({"kind": "events", "removals": "hidden"}), json!({"kind": "events", "stores": "ahead"})]
    {
        let replica = start(telling(EventEncoding::Map)).await;
        post(&replica, "/fault", &fault).await;
        // This mirror only counts stores, because it would reject removals of blocks never stored.
        let (mirror, subscriber) = follow(&replica, 0).await;
        until("connected", || subscriber.view() == View::Reported).await;
        churn(&replica, 0, 12).await;
        until("it lies", || mirror.blocks() > replica.stats().blocks_cached).await;
    }
}

/// Raw body: tools are printed in its order of keys.
#[derive(serde::Deserialize)]
struct Golden<'a> {
    #[serde(borrow)]
    body: &'a serde_json::value::RawValue,
    tokens: Vec<u32>,
}

/// Compares with transformers 5 on the model folder that `write_model` writes: texts, chats, tools.
#[tokio::test]
async fn tokens_are_those_of_the_model_folder_as_transformers_reads_it() {
    let replica = start(telling(EventEncoding::Map)).await;
    let golden: Vec<Golden<'_>> =
        include_str!("golden/pairs.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(golden.len() > 40);
    for case in &golden {
        let answer = ask(&replica, "POST", "/tokenize", "", case.body.get()).await.json();
        assert_eq!(answer["tokens"], json!(case.tokens), "{}", case.body);
    }
}

#[tokio::test]
async fn nonsense_faults_are_refused_and_silent_engines_have_no_sources() {
    let replica = start(fast()).await;
    assert_eq!(post(&replica, "/fault", &json!({"kind": "events", "loss": 2})).await.status, 400);
    assert_eq!(get(&replica, "/kv_event_sources").await.json(), Value::Object(serde_json::Map::new()));
}

#[tokio::test]
async fn blocks_moved_to_the_host_are_reported_by_a_known_name() {
    for encoding in [EventEncoding::Map, EventEncoding::Array] {
        let mut config = telling(encoding);
        config.engine.host = Some(Tier { tokens: 1 << 20, megabytes_per_s: 25_000, latency: Micros(100) });
        let replica = start(config).await;
        let (mirror, subscriber) = follow(&replica, 0).await;
        churn(&replica, 0, 12).await;
        // No prompt repeats and the host has room for all, so every block put there stays.
        let by_name = || -> Vec<u64> {
            let known = mirror.known();
            let kept = known.stores.iter().filter(|stored| stored.is_by_name());
            kept.flat_map(|stored| stored.names.clone()).collect()
        };
        until("the view is what the GPU and the host hold", || {
            let on_host = by_name().len() as u32;
            on_host > 0 && mirror.blocks() == replica.stats().blocks_cached + on_host
        })
        .await;
        assert_eq!((subscriber.view(), subscriber.counters().unreadable), (View::Reported, 0));
        let known = mirror.known();
        let told: Vec<u64> =
            known.stores.iter().filter(|s| !s.is_by_name()).flat_map(|s| s.names.clone()).collect();
        drop(known);
        assert!(by_name().iter().all(|name| told.contains(name)));
    }
}
