//! What a budget of bytes holds: `cargo run --release -p warmroute-index --example memory_table [-- MIB]`, with MIB the
//! rows of one budget alone.
//!
//! The example presumes and confirms prompts until a limit evicts, and then a quarter as many again, so the table shows
//! an index that has been full for a while. Then it looks up every prompt, the oldest included: a prompt counts as
//! remembered if its worker holds it to its end. In the first rows the budget is the only limit; in the others, under
//! the default budget, a worker's capacity is, which evicts first in production. Bytes are the index's own count, which
//! its tests compare with the allocator.

use std::time::{Duration, Instant};

use warmroute_index::{Config, HolderId, Index, Namespace, Overlaps, Prompt, RootKey, Source, Span};
use warmroute_types::Micros;

const MIB: usize = 1 << 20;
const CHUNK_BYTES: u32 = 256;
/// A token counts as four bytes.
const CHUNK_TOKENS: u32 = CHUNK_BYTES / 4;

/// The prompts that are sent, and the number of workers that receive them in turn.
struct Traffic {
    name: &'static str,
    /// Chunks that all prompts share, at the start.
    shared: u64,
    /// Chunks that only this prompt has.
    own: u64,
    workers: u64,
}

const UNIQUE: Traffic = Traffic { name: "2 KB, nothing shared", shared: 0, own: 8, workers: 1 };
const LONG: Traffic = Traffic { name: "16 KB, nothing shared", shared: 0, own: 64, workers: 1 };
const HEADED: Traffic = Traffic { name: "12 KB shared + 2 KB", shared: 48, own: 8, workers: 1 };

/// Hash tables double, so the cost of a prompt depends on how full they are. Powers of four would all meet them
/// equally full; 96 does not.
const BUDGETS_MIB: [usize; 5] = [16, 64, 96, 256, 1_024];

fn main() {
    let begin = Instant::now();
    println!("The budget as the only bound:\n");
    print_head();
    let given = std::env::args().nth(1).map(|mib| [mib.parse().expect("a budget in MiB")]);
    let budgets_mib: &[usize] = given.as_ref().map_or(&BUDGETS_MIB, |one| one);
    for traffic in [UNIQUE, LONG, HEADED] {
        budgets_mib.iter().for_each(|mib| print_row(&traffic, &bounded_by_budget(mib * MIB)));
    }
    if given.is_some() {
        return;
    }
    for (traffic, workers) in [(UNIQUE, 8), (UNIQUE, 64), (HEADED, 8), (HEADED, 64)] {
        print_row(&Traffic { workers, ..traffic }, &bounded_by_budget(256 * MIB));
    }
    println!(
        "\nThe capacity of the workers as the first bound, {} tokens each:\n",
        Config::default().presumed_tokens
    );
    print_head();
    for (traffic, workers) in [(UNIQUE, 8), (UNIQUE, 64), (UNIQUE, 512), (LONG, 512)] {
        print_row(&Traffic { workers, ..traffic }, &Config::default());
    }
    eprintln!("{:.0} s in all", begin.elapsed().as_secs_f64());
}

fn bounded_by_budget(budget_bytes: usize) -> Config {
    Config { budget_bytes, presumed_tokens: u64::MAX, presumed_ttl: Micros(u64::MAX), ..Config::default() }
}

fn print_head() {
    println!(
        "| prompts               | workers | budget MiB |    sent | remembered |   MiB used | bytes a prompt | bytes a span | spans evicted | slowest ms |"
    );
    println!(
        "|-----------------------|--------:|-----------:|--------:|-----------:|-----------:|---------------:|-------------:|--------------:|-----------:|"
    );
}

fn print_row(traffic: &Traffic, config: &Config) {
    let index = Index::new(config);
    let Filled { sent, slowest } = fill(&index, traffic);
    index.expire(Micros(0));
    let remembered = count_remembered(&index, traffic, sent);
    let (stats, bytes) = (index.stats(), index.bytes());
    println!(
        "| {:<21} | {:>7} | {:>10} | {sent:>7} | {remembered:>10} | {:>10.2} | {:>14.0} | {:>12.1} | {:>13} | {:>10.1} |",
        traffic.name,
        traffic.workers,
        config.budget_bytes / MIB,
        bytes as f64 / MIB as f64,
        bytes as f64 / remembered as f64,
        bytes as f64 / stats.held as f64,
        evicted(&index),
        slowest.as_secs_f64() * 1e3
    );
    drop(index);
    free_garbage();
}

/// Frees the memory that the last index retired, which would otherwise slow the first prompts of the next one.
fn free_garbage() {
    (0..64).for_each(|_| crossbeam_epoch::pin().flush());
}

/// Spans evicted because of a limit.
fn evicted(index: &Index) -> u64 {
    let stats = index.stats();
    stats.evicted_by_budget + stats.evicted_by_capacity
}

/// The cost of filling an index.
struct Filled {
    /// Prompts sent.
    sent: u64,
    /// The longest time to presume one prompt: a table that doubles, or an eviction that makes room.
    slowest: Duration,
}

/// Sends prompts until the index evicts, and a quarter as many again.
fn fill(index: &Index, traffic: &Traffic) -> Filled {
    let mut spans = Vec::new();
    let (mut sent, mut enough, mut slowest) = (0, u64::MAX, Duration::ZERO);
    while sent < enough {
        spans.clear();
        spans.extend(traffic.digests(sent).map(|digest| Span {
            digest,
            bytes: CHUNK_BYTES,
            tokens: CHUNK_TOKENS,
        }));
        let begin = Instant::now();
        let presumption = index.presume(traffic.worker(sent), root(), &spans, Micros(0));
        slowest = slowest.max(begin.elapsed());
        index.confirm(presumption.expect("a presumed root and a holder id within the limit"));
        sent += 1;
        // `stats` takes the writer's lock and counts everything, so it is called only now and then.
        if enough == u64::MAX && sent.is_multiple_of(64) && evicted(index) > 0 {
            enough = sent + sent / 4;
        }
    }
    Filled { sent, slowest }
}

/// Prompts that a lookup finds whole on the worker that received them.
fn count_remembered(index: &Index, traffic: &Traffic, sent: u64) -> u64 {
    let mut out = Overlaps::default();
    let mut digests = Vec::new();
    let is_remembered = |&prompt: &u64| {
        digests.clear();
        digests.extend(traffic.digests(prompt));
        index.lookup(root(), Prompt::Chunks(&digests), &mut out);
        out.of(traffic.worker(prompt)).spans as usize == digests.len()
    };
    (0..sent).filter(is_remembered).count() as u64
}

fn root() -> RootKey {
    RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK_BYTES, source: Source::Presumed })
}

impl Traffic {
    fn worker(&self, prompt: u64) -> HolderId {
        HolderId((prompt % self.workers) as u16)
    }

    /// The chunks of a prompt: the shared ones, then its own.
    fn digests(&self, prompt: u64) -> impl Iterator<Item = u64> {
        let head = (0..self.shared).map(|at| mixed(at + 1));
        head.chain((0..self.own).map(move |at| mixed((prompt + 1) << 8 | at)))
    }
}

/// A number that looks like a digest (SplitMix64's finalizer).
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
