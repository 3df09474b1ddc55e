//! What a block costs from payload to feed: `cargo run --release -p warmroute-events --example decode_cost`.
//!
//! Batches as vLLM 0.32 writes them (maps, full fields), 16 tokens a block with ids up to 128,000; prints nanoseconds of one
//! core for each block. The end-to-end line runs publishers and subscribers over loopback sockets in this process and counts
//! the CPU time of both.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use warmroute_events::{Config, Direction, EventSink, EventSource, Step, decode, subscribe};
use warmroute_feed::{Feed, Moment, ReplayEnd};
use warmroute_types::{Address, CacheEvent, Micros};
use warmroute_zmtp::{Endpoint, Options, Publisher};

const BLOCK_TOKENS: usize = 16;

fn text(text: &str, out: &mut Vec<u8>) {
    out.push(0xa0 | text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn number(value: u64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

fn long_array(length: usize, out: &mut Vec<u8>) {
    out.push(0xdc);
    out.extend_from_slice(&(length as u16).to_be_bytes());
}

/// One batch with as many evictions as stores, each a separate event as in vLLM.
fn payload(seed: u64, blocks: usize) -> Vec<u8> {
    let name = |at: usize| (seed * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63;
    let mut out = vec![0x93, 0xcb];
    out.extend_from_slice(&1.79e9f64.to_be_bytes());
    long_array(blocks + 1, &mut out);
    for at in 0..blocks {
        out.push(0x84);
        [("type", "BlockRemoved"), ("medium", "GPU")].iter().for_each(|(key, value)| {
            text(key, &mut out);
            text(value, &mut out);
        });
        text("block_hashes", &mut out);
        out.push(0x91);
        number(name(at + 500_000), &mut out);
        text("group_idx", &mut out);
        out.push(0);
    }
    out.push(0x8b);
    for (key, value) in [("type", "BlockStored"), ("medium", "GPU"), ("kv_cache_spec_kind", "full_attention")]
    {
        text(key, &mut out);
        text(value, &mut out);
    }
    text("block_hashes", &mut out);
    long_array(blocks, &mut out);
    (0..blocks).for_each(|at| number(name(at), &mut out));
    text("token_ids", &mut out);
    long_array(blocks * BLOCK_TOKENS, &mut out);
    (0..blocks * BLOCK_TOKENS).for_each(|at| number((at as u64 * 7_919 + seed) % 128_000, &mut out));
    for (key, value) in [
        ("block_size", Some(16)),
        ("group_idx", Some(0)),
        ("parent_block_hash", None),
        ("lora_id", None),
        ("lora_name", None),
    ] {
        text(key, &mut out);
        out.push(value.unwrap_or(0xc0));
    }
    text("extra_keys", &mut out);
    long_array(blocks, &mut out);
    out.extend(std::iter::repeat_n(0xc0, blocks));
    out.push(0);
    out
}

struct Sum(AtomicU64);

impl EventSink for Sum {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        let blocks = steps.drain(..).map(|step| match step {
            Step::Apply(events) => events.iter().map(stored).sum(),
            _ => 0,
        });
        self.0.fetch_add(blocks.sum(), Ordering::Relaxed);
    }
}

fn stored(event: &CacheEvent) -> u64 {
    match event {
        CacheEvent::Stored(stored) => stored.names.len() as u64,
        _ => 0,
    }
}

fn decoding() {
    for blocks in [1, 16, 200] {
        let payloads: Vec<Vec<u8>> = (0..64).map(|seed| payload(seed, blocks)).collect();
        let rounds = 400_000 / blocks;
        let (mut feed, mut steps) = (Feed::new(warmroute_feed::Config::default()), Vec::new());
        feed.connected(Micros::ZERO, &mut steps);
        feed.replay_ended(ReplayEnd::Complete, Micros::ZERO, &mut steps);
        let mut best = [f64::MAX; 2];
        let mut seq = 0;
        for _ in 0..5 {
            let began = Instant::now();
            (0..rounds).for_each(|at| drop(black_box(decode(&payloads[at % 64]))));
            best[0] = best[0].min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            for at in 0..rounds {
                let batch = decode(&payloads[at % 64]).unwrap_or_default();
                feed.received_live(seq, batch, Moment::default(), &mut steps);
                seq += 1;
                black_box(&steps);
                steps.clear();
            }
            best[1] = best[1].min(began.elapsed().as_secs_f64());
        }
        let each = best.map(|s| s * 1e9 / (rounds * blocks) as f64);
        println!(
            "{blocks:>3} blocks a batch, each with one eviction: {:.0} ns a block to decode, {:.0} ns through the feed",
            each[0], each[1]
        );
    }
}

/// 8 engines at full speed, to as many subscribers: CPU seconds of this process over blocks.
async fn end_to_end() -> Result<(), Box<dyn std::error::Error>> {
    let (engines, batches, blocks) = (8u64, 2_000u64, 16usize);
    let free: Endpoint = "tcp://127.0.0.1:0".parse()?;
    let sum = Arc::new(Sum(AtomicU64::new(0)));
    let mut lines = Vec::new();
    for engine in 0..engines {
        let publisher = Publisher::bind(&free, Options::default()).await?;
        let source = EventSource {
            rank: 0,
            endpoint: publisher.endpoint().clone(),
            direction: Direction::WeConnect,
            replay: None,
            topic: String::new(),
            block_tokens: None,
        };
        let sink = Arc::clone(&sum) as Arc<dyn EventSink>;
        let subscriber = subscribe(Address::new(format!("http://{engine}")), source, sink, Config::default());
        while publisher.subscribers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        lines.push((publisher, subscriber, Bytes::from(payload(engine, blocks))));
    }
    let (began, cpu) = (Instant::now(), cpu_s());
    for seq in 0..batches {
        for (publisher, _, payload) in &lines {
            let parts = vec![Bytes::new(), Bytes::copy_from_slice(&seq.to_be_bytes()), payload.clone()];
            publisher.send(&parts);
        }
        if seq % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let total = engines * batches * blocks as u64;
    while sum.0.load(Ordering::Relaxed) < total && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    let applied = sum.0.load(Ordering::Relaxed);
    println!(
        "{engines} engines over sockets: {applied} of {total} blocks in {wall:.2} s, {:.0} ns of CPU a block, publishing included",
        cpu * 1e9 / applied as f64
    );
    Ok(())
}

/// CPU time of this process, from the kernel's ticks of 10 ms.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    decoding();
    end_to_end().await
}
