//! Cost of reading a prompt: `cargo run --release -p warmroute-prompt --example read_cost`.
//!
//! For a chat of the given size, with a line break every 80 bytes: parsing the body, then cutting and
//! digesting its prompt, compared with serde_json parsing the body into a tree. Medians of 201 rounds.

use std::hint::black_box;
use std::time::Instant;

use warmroute_prompt::{Body, Chunks};
use xxhash_rust::xxh3::xxh3_64;

fn main() {
    println!(
        "{:>10}{:>12}{:>18}{:>12}{:>16}",
        "bytes", "read µs", "chunk+digest µs", "both µs", "serde tree µs"
    );
    for bytes in [1_000, 10_000, 100_000, 1_000_000] {
        let body = chat(bytes);
        let mut chunks = Chunks::default();
        let read = median_us(|| _ = black_box(Body::read(black_box(body.as_bytes()))));
        let parsed = Body::read(body.as_bytes()).expect("it is JSON");
        let cut = median_us(|| chunks.cut(black_box(&parsed), xxh3_64));
        let tree = median_us(|| _ = black_box(serde_json::from_str::<serde_json::Value>(black_box(&body))));
        println!("{:>10}{read:>12.1}{cut:>18.1}{:>12.1}{tree:>16.1}", body.len(), read + cut);
    }
}

fn chat(bytes: usize) -> String {
    let line = "the quick brown fox jumps over the lazy dog and asks about caching of prefixes\n";
    let turn = line.repeat(bytes.div_ceil(4 * line.len()));
    let messages: Vec<_> = ["system", "user", "assistant", "user"]
        .iter()
        .map(|role| serde_json::json!({"role": role, "content": turn}))
        .collect();
    serde_json::json!({"model": "m", "messages": messages, "stream": true}).to_string()
}

fn median_us(mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..201)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}
