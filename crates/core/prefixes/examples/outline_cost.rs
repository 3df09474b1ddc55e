//! Prints what observing a prompt costs: reading the body, outlining it, and comparing it with the one before.
//!
//! `cargo run --release -p warmroute-prefixes --example outline_cost`

use std::time::Instant;

use warmroute_prefixes::{PrefixWatch, WatchedPrompt};
use warmroute_prompt::{Api, Attribution, Body};
use warmroute_types::Micros;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const RUNS: usize = 301;

fn main() {
    println!("{:>10} {:>12} {:>12}", "bytes", "kept, µs", "broken, µs");
    for kilobytes in [1, 10, 100, 1_000] {
        let kept = best_us(kilobytes, |_| "at noon".to_owned());
        let broken =
            best_us(kilobytes, |run| format!("at 2026-11-17T08:{:02}:{:02}Z", run / 60 % 60, run % 60));
        println!("{:>10} {kept:>12.1} {broken:>12.1}", kilobytes * 1_000);
    }
}

/// The best time of a request with `beginning` at the beginning of its prompt.
fn best_us(kilobytes: usize, beginning: impl Fn(usize) -> String) -> f64 {
    let line = "The quick brown fox jumps over the lazy dog, and 17 others watch it from afar.\\n";
    let text = line.repeat(kilobytes * 1_000 / line.len());
    let mut watch = PrefixWatch::new(7);
    let mut best = f64::INFINITY;
    for run in 0..RUNS {
        let request = format!(r#"{{"prompt":"It is {}. {text}"}}"#, beginning(run));
        let start = Instant::now();
        let Ok(body) = Body::read(request.as_bytes()) else { return f64::NAN };
        let prompt = WatchedPrompt {
            model: "m",
            api: Api::Completions,
            body: &body,
            session: Some(1),
            salt: 0,
            attribution: Attribution::Dropped,
        };
        watch.see(prompt, xxh3_64_with_seed, Micros::ZERO);
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    best
}
