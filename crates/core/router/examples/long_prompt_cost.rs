//! CPU time of routing a prompt by its size, without KV events: `cargo run --release -p warmroute-router --example long_prompt_cost`.
//!
//! Each prompt is read, written canonically, cut into chunks and digested; then it is looked up, placed on one of eight workers and
//! presumed there; then its first token confirms it. The conversation grows by a kilobyte each time, as an agent's does. Wall time of
//! one thread: on a busy machine the best is nearer to the truth.

use std::time::Instant;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::Standard;
use warmroute_prompt::{Body, CHUNK_BYTES, Chunks};
use warmroute_router::{Change, Config, Outcome, PromptChunks, Request, Router, Scratch};
use warmroute_types::{Address, CacheCapacity, Micros};

const ROUNDS: usize = 41;

fn main() {
    println!("{:>10} {:>8} {:>12} {:>12} {:>10}", "bytes", "chunks", "median µs", "best µs", "found");
    for bytes in [100_000, 1 << 20, 4 << 20] {
        let (chunks, mut times_us, found) = measure(bytes);
        times_us.sort_by(f64::total_cmp);
        println!("{bytes:>10} {chunks:>8} {:>12.0} {:>12.0} {found:>10}", times_us[ROUNDS / 2], times_us[0]);
    }
}

/// Chunks of the last prompt, the times of all, and the tokens of the last one that were presumed to be cached.
fn measure(bytes: usize) -> (usize, Vec<f64>, u32) {
    let router = router();
    let root =
        RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Presumed });
    let (mut chunks, mut scratch, mut times_us, mut found) =
        (Chunks::default(), Scratch::default(), Vec::new(), 0);
    for round in 0..ROUNDS {
        let body = chat(bytes + round * 1_024);
        let since = Instant::now();
        let read = Body::read(body.as_bytes()).expect("it is JSON");
        chunks.cut(&read, |bytes| router.inspect().digester().digest(bytes));
        let prompt = PromptChunks {
            root,
            digests: chunks.digests(),
            chunk_bytes: CHUNK_BYTES as u32,
            bytes: chunks.bytes() as u32,
        };
        let request = Request { model: Some("m"), prompt: Some(prompt), ..Request::default() };
        let now = Micros::from_secs(round as u64 + 1);
        let mut decision = router.route(&request, &mut scratch, now, 7).expect("workers are ready");
        router.observe(&mut decision, Outcome::FirstToken { at: now });
        times_us.push(since.elapsed().as_nanos() as f64 / 1e3);
        found = decision.cached_tokens.unwrap_or(0);
    }
    (chunks.digests().len(), times_us, found)
}

fn router() -> Router<Standard> {
    let router = Router::new("expected_ttft".parse::<Standard>().expect("it is a policy"), Config::default());
    for i in 0..8 {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::named(&["m"])).expect("there is room");
    }
    for view in router.inspect().workers() {
        let worker = view.worker;
        let capacity = CacheCapacity { tokens: 2_000_000, block_tokens: 16 };
        let changes = [
            Change::Probed { worker: worker.clone(), result: ProbeResult::Answered, at: Micros(1) },
            Change::Capacity { worker, capacity },
        ];
        changes.into_iter().for_each(|change| router.apply(change));
    }
    router
}

fn chat(bytes: usize) -> String {
    let line = "the quick brown fox jumps over the lazy dog and asks about caching of prefixes ";
    let text: String = line.chars().cycle().take(bytes).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}
