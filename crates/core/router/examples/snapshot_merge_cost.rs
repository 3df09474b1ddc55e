//! How long requests wait while the router merges a peer's snapshot of 8 MiB: one thread routes without a pause,
//! another merges. The second figure has a thread that is only busy in its place.
//!
//! `cargo run --release -p warmroute-router --example snapshot_merge_cost`

#![allow(clippy::unwrap_used, reason = "an example")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_peers::{Config as PeersConfig, Envelope};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_router::{Change, Config, Outcome, PromptChunks, Request, Router, Scratch};
use warmroute_types::{Address, Micros, RouterId};

const CHUNK: u32 = 256;
const WORKERS: usize = 8;
/// Prompts that the other router knows: 8 MiB of digests.
const PROMPTS: u64 = 512;
const CHUNKS: u64 = 2_048;
const ROUNDS: usize = 5;
const BEGIN: Micros = Micros::from_secs(1_000);
const TICK: Micros = Micros::from_millis(20);

fn router(id: u64) -> Router<Standard> {
    let index = warmroute_index::Config { presumed_tokens: 1 << 40, ..warmroute_index::Config::default() };
    let policy = Standard::StickyLeastLoaded(StickyLeastLoaded::default());
    let router = Router::new(policy, Config { index, ..Config::default() });
    for number in 0..WORKERS {
        let address = Address::new(format!("http://engine-{number}"));
        router.join(address, Models::Any).unwrap();
    }
    for view in router.inspect().workers() {
        let (worker, result) = (view.worker, ProbeResult::Answered);
        router.apply(Change::Probed { worker, result, at: BEGIN });
    }
    router.peering().start(RouterId(id), PeersConfig::default());
    router
}

fn request(router: &Router<Standard>, scratch: &mut Scratch, conversation: u64, chunks: u64, now: Micros) {
    let digest = |at: u64| (conversation << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let digests: Vec<u64> = (0..chunks).map(digest).collect();
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let bytes = chunks as u32 * CHUNK;
    let prompt = PromptChunks { root: RootKey::of(&namespace), digests: &digests, chunk_bytes: CHUNK, bytes };
    let request = Request { prompt: Some(prompt), ..Request::default() };
    let mut decision = router.route(&request, scratch, now, conversation).unwrap();
    router.observe(&mut decision, Outcome::FirstToken { at: now });
}

/// Routes and answers until stopped; returns each duration.
fn work(router: &Router<Standard>, is_over: &AtomicBool) -> Vec<Duration> {
    let (mut scratch, mut took) = (Scratch::default(), Vec::new());
    for conversation in (1_u64 << 24).. {
        let since = Instant::now();
        request(router, &mut scratch, conversation, 4, BEGIN);
        took.push(since.elapsed());
        if is_over.load(Relaxed) {
            break;
        }
        // The next message arrives a moment later.
        std::thread::yield_now();
    }
    took
}

/// Two routers exchange messages; returns the bytes that the first sent.
fn exchange(known: &Router<Standard>, newcomer: &Router<Standard>) -> usize {
    let (mut sent, mut now) = (0, BEGIN);
    for _ in 0..400 {
        now = now + TICK;
        let mut to_known: VecDeque<Envelope> = newcomer.peering().compose_messages(now).into();
        let mut to_newcomer: VecDeque<Envelope> = known.peering().compose_messages(now).into();
        while let Some(envelope) = to_known.pop_front() {
            to_newcomer.extend(known.peering().receive(&envelope.bytes, now).unwrap());
        }
        while let Some(envelope) = to_newcomer.pop_front() {
            sent += envelope.bytes.len();
            newcomer.peering().receive(&envelope.bytes, now).unwrap();
        }
    }
    sent
}

fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: f64| took[(took.len() as f64 * part) as usize % took.len()].as_secs_f64() * 1e3;
    println!(
        "{what:<12} {:>8} requests  p50 {:.3} ms  p99 {:.3} ms  p99.9 {:.3} ms  longest {:.1} ms",
        took.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        took[took.len() - 1].as_secs_f64() * 1e3
    );
}

fn main() {
    let known = router(1);
    let (mut scratch, mut now) = (Scratch::default(), BEGIN);
    for conversation in 0..PROMPTS {
        request(&known, &mut scratch, conversation, CHUNKS, now);
        now = Micros(now.0 + 1_000);
        known.peering().compose_messages(now);
    }
    let (mut beside, mut merging, mut sent, mut longest) = (Vec::new(), Vec::new(), 0, Vec::new());
    for round in 0..ROUNDS {
        let newcomer = router(10 + round as u64);
        let is_over = AtomicBool::new(false);
        let (took, bytes, lasted) = std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(&newcomer, &is_over));
            let since = Instant::now();
            let bytes = exchange(&known, &newcomer);
            let lasted = since.elapsed();
            is_over.store(true, Relaxed);
            (worker.join().unwrap(), bytes, lasted)
        });
        longest.push(*took.iter().max().unwrap());
        merging.extend(took);
        sent += bytes;
        let is_over = AtomicBool::new(false);
        let quiet = router(100 + round as u64);
        beside.extend(std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(&quiet, &is_over));
            // As busy as the merging thread: both have the same cores.
            let since = Instant::now();
            while since.elapsed() < lasted {
                std::hint::spin_loop();
            }
            is_over.store(true, Relaxed);
            worker.join().unwrap()
        }));
    }
    println!("{:.1} MiB sent to each newcomer", sent as f64 / ROUNDS as f64 / f64::from(1 << 20));
    show("beside", beside);
    show("merging", merging);
    longest.sort_unstable();
    println!("the longest wait of a round: median {:.1} ms", longest[ROUNDS / 2].as_secs_f64() * 1e3);
}
