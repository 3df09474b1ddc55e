//! Cost of saving and restoring a million chunks: bytes, and milliseconds per step.
//!
//! `cargo run --release -p warmroute-router --example saved_state_cost`

#![allow(clippy::unwrap_used, reason = "an example")]

use std::time::Instant;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_router::{Change, Config, Outcome, PromptChunks, Request, Router, SavedState, Scratch};
use warmroute_types::{Address, Micros};

const CHUNK: u32 = 256;
const WORKERS: usize = 8;
const CONVERSATIONS: u64 = 10_000;
/// Of which this many are a head that all share.
const CHUNKS: u64 = 110;
const SHARED: u64 = 10;
const NOW: Micros = Micros::from_secs(100_000);

fn router() -> Router<Standard> {
    let index = warmroute_index::Config { presumed_tokens: 1 << 40, ..warmroute_index::Config::default() };
    let policy = Standard::StickyLeastLoaded(StickyLeastLoaded::default());
    Router::new(policy, Config { index, ..Config::default() })
}

fn join(router: &Router<Standard>) {
    for number in 0..WORKERS {
        let address = Address::new(format!("http://engine-{number}"));
        router.join(address, Models::named(&["m"])).unwrap();
    }
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: NOW });
    }
}

fn request(router: &Router<Standard>, conversation: u64) {
    let own = (SHARED..CHUNKS).map(|at| conversation << 32 | at);
    let digests: Vec<u64> = (0..SHARED).chain(own).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let prompt =
        PromptChunks { root: RootKey::of(&namespace), digests: &digests, chunk_bytes: CHUNK, bytes: 28_160 };
    let request = Request { model: Some("m"), prompt: Some(prompt), ..Request::default() };
    let mut decision = router.route(&request, &mut Scratch::default(), NOW, conversation).unwrap();
    router.observe(&mut decision, Outcome::FirstToken { at: NOW });
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let result = work();
    println!("{what:<28} {:>8.1} ms", since.elapsed().as_secs_f64() * 1e3);
    result
}

fn main() {
    let old = router();
    join(&old);
    timed("request", || (0..CONVERSATIONS).for_each(|conversation| request(&old, conversation)));
    let memory = timed("save", || old.inspect().saved_state(NOW, 0));
    let bytes = timed("encode", || memory.encode());
    let (requests, spans, workers) = memory.extent();
    println!("{requests} requests, {spans} chunks, {workers} workers: {} bytes", bytes.len());
    let memory = timed("decode", || SavedState::decode(&bytes).unwrap());
    let new = router();
    new.apply(Change::Restored { state: Box::new(memory), age: Micros(0), at: NOW });
    timed("bring back, as workers join", || join(&new));
    assert_eq!(new.inspect().index_stats().held, old.inspect().index_stats().held, "nothing is lost");
}
