//! Millions of broken inputs: nothing panics, and nothing takes more memory than its input is worth.
//!
//! Plain `cargo test` runs some 300,000; a release build runs ten million.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use warmroute_events::decode;

/// Counts what is allocated at the most, so that a length that was believed is found out.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait; this one only counts")]
// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound.max(1) as u64) as usize
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let fixtures: Vec<Value> = serde_json::from_str(include_str!("captures/schema_fixtures.json")).unwrap();
    let lines = include_str!("captures/vllm-0.32.0.jsonl")
        .lines()
        .chain(include_str!("captures/vllm-0.15.1.jsonl").lines());
    let captured = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    fixtures
        .into_iter()
        .chain(captured)
        .map(|capture| base64(capture["payload_b64"].as_str().unwrap()))
        .collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|c| DIGITS.iter().position(|digit| *digit == c));
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in digits {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// Bytes that begin something long, or nothing at all.
const EVIL: [u8; 16] =
    [0xc1, 0xc4, 0xc6, 0xc9, 0xca, 0xcb, 0xcf, 0xd3, 0xd8, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0x9f, 0x8f];

fn spoil(seed: &[u8], other: &[u8], dice: &mut Dice, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(seed);
    for _ in 0..1 + dice.below(6) {
        let at = dice.below(out.len());
        match dice.below(7) {
            0 => out.truncate(at),
            1 if !out.is_empty() => out[at] = dice.roll() as u8,
            2 if !out.is_empty() => out[at] = EVIL[dice.below(EVIL.len())],
            3 => out.insert(at, EVIL[dice.below(EVIL.len())]),
            4 => {
                let from = dice.below(other.len());
                let upto = from + dice.below((other.len() - from).min(64));
                out.splice(at..at, other[from..upto].iter().copied());
            }
            5 if out.len() >= at + 4 => out[at..at + 4].fill(0xff),
            _ if !out.is_empty() => {
                out.remove(at);
            }
            _ => {}
        }
    }
}

#[test]
fn no_input_panics_or_takes_more_memory_than_it_is_worth() {
    let rounds: usize = if cfg!(debug_assertions) { 300_000 } else { 10_000_000 };
    let seeds = seeds();
    let mut dice = Dice(0x5eed);
    let mut input = Vec::with_capacity(8_192);
    let (mut read, mut worst) = (0usize, 0.0f64);
    for _ in 0..rounds {
        let (seed, other) = (dice.below(seeds.len()), dice.below(seeds.len()));
        spoil(&seeds[seed], &seeds[other], &mut dice, &mut input);
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        read += usize::from(decode(&input).is_ok());
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        // A byte can be a name of 8 bytes, 18 bytes an event of some 150; vectors double. 10 for 1 is what was seen.
        let allowed = 2_048 + 40 * input.len();
        worst = worst.max(taken as f64 / (input.len() + 16) as f64);
        assert!(taken <= allowed, "{taken} bytes for an input of {}: {input:?}", input.len());
    }
    eprintln!(
        "{rounds} inputs, {read} of them still batches; at most {worst:.0} bytes of memory for one of input"
    );
    assert!(read > rounds / 10, "most inputs must reach the inner parts");
}
