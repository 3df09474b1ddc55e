//! What tokenizing a prompt would have cost: `cargo run --release -p warmroute-tokens --example tokenize_cost -- [tokenizer.json]...`
//!
//! A prompt of 100 KB of text, as `align_cost` of the prompt crate renders it. Without a path the small tokenizer of the
//! tests is used, whose few merges make it faster than a real one. Medians of 21 rounds, one thread.

use std::hint::black_box;
use std::time::Instant;

use warmroute_prompt::{Around, Reading};
use warmroute_tokens::{Encoder, ModelText};

const LINE: &str = "the quick brown fox jumps over the lazy dog and asks about caching of prefixes\n";

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    println!("{:<60}{:>9}{:>9}{:>11}", "tokenizer", "bytes", "tokens", "ms");
    if paths.is_empty() {
        report("the tests' own", include_bytes!("../tests/data/tiny/tokenizer.json").to_vec());
    }
    for path in paths {
        match std::fs::read(&path) {
            Ok(file) => report(&path, file),
            Err(problem) => eprintln!("{path}: {problem}"),
        }
    }
}

fn report(name: &str, tokenizer: Vec<u8>) {
    let text = prose(100_000);
    let encoder = Encoder::new(&ModelText { tokenizer, ..ModelText::default() }, Reading::AsFiled)
        .expect("a tokenizer.json");
    let mut tokens = 0;
    let mut rounds: Vec<f64> = (0..21)
        .map(|_| {
            let begin = Instant::now();
            let ids = encoder.encode(black_box(&text), Around::Nothing).expect("text has tokens");
            tokens = black_box(ids).len();
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<60}{:>9}{tokens:>9}{:>11.1}", text.len(), rounds[rounds.len() / 2]);
}

/// Lines that differ, so that no cache of words lowers the cost.
fn prose(bytes: usize) -> String {
    let mut text = String::new();
    let mut n = 0_u64;
    while text.len() < bytes {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&LINE[..30 + (n >> 33) as usize % 40]);
        text.push_str(&format!(" {:x}, ", n >> 44));
    }
    text.truncate(bytes);
    text
}
