//! The index beside its peers, on the same streams, in one run: `cargo run --release`.
//!
//! Times are CPU time of the thread that does the work. Each figure is the median of several rounds, in which the
//! indexes take turns, with the smallest and the greatest beside it; ratios are between medians. `quick` as the first
//! argument runs one round of everything, `stalls` only how long the lock is held, `streams` and `growth` only those
//! rows; a second argument selects the rows whose label contains it. `count` runs one row once on one index, for a counter
//! of instructions (`count.rs`).

mod clock;
mod content;
mod count;
mod dynamo;
mod growth;
mod heap;
mod kv;
mod measure;
mod ours;
mod readers;
mod rival;
mod spread;
mod stalls;
mod stream;
mod walks;

use measure::{Figures, measure};
use ours::Ours;
use rival::Rival;
use spread::Spread;
use stream::{Names, Shape, Stream};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() {
    let is_quick = std::env::args().nth(1).is_some_and(|argument| argument == "quick");
    let rounds = if is_quick { 1 } else { 5 };
    let resident_max = if is_quick { 1_000_000 } else { 10_000_000 };
    if std::env::args().nth(1).is_some_and(|argument| argument == "stalls") {
        return stalls::run(10_000_000);
    }
    if std::env::args().nth(1).is_some_and(|argument| argument == "walks") {
        return walks::run(rounds);
    }
    let rows = std::env::args().nth(2).unwrap_or_default();
    if std::env::args().nth(1).is_some_and(|argument| argument == "streams") {
        return streams(rounds, &rows);
    }
    if std::env::args().nth(1).is_some_and(|argument| argument == "count") {
        return count(&rows, &std::env::args().nth(3).unwrap_or_default());
    }
    if std::env::args().nth(1).is_some_and(|argument| argument == "growth") {
        return growth::run(rounds, resident_max, &rows);
    }
    streams(rounds, "");
    parts();
    contents(rounds);
    walks::run(rounds);
    concurrency(rounds);
    growth::run(rounds.min(3), resident_max, "");
    stalls_apart();
}

/// In a process of its own: what the other measurements leave in the allocator would be counted too.
fn stalls_apart() {
    let run =
        std::env::current_exe().and_then(|this| std::process::Command::new(this).arg("stalls").status());
    assert!(run.is_ok_and(|status| status.success()), "the same program runs again");
}

fn shape(label: &str, workers: usize, sessions: usize, blocks: usize, holders: usize, names: Names) -> Shape {
    Shape { label: label.into(), workers, sessions, blocks, head: 40, holders, names }
}

fn shapes() -> [Shape; 5] {
    [
        shape("412 blocks x 16 workers", 16, 200, 412, 16, Names::Agree),
        shape("413 blocks x 128 workers", 128, 60, 413, 128, Names::Agree),
        shape("4835 blocks x 3 workers", 3, 60, 4_835, 3, Names::Agree),
        shape("412 x 16, names differ", 16, 200, 412, 16, Names::Differ),
        shape("412 x 1, unshared", 16, 2_000, 412, 1, Names::Agree),
    ]
}

fn streams(rounds: usize, rows: &str) {
    println!("## Same stream, three indexes\n");
    println!(
        "find: ns per prompt; store, append (one block), remove: ns per block; bytes: live per (worker, block);"
    );
    println!("churn: live bytes after 4 rounds of evicting and storing a quarter again, over before;");
    println!("answers: summed over all prompts, before and after the evictions, against the first index\n");
    println!("| stream | index | find | store | append | remove | bytes | churn | answers |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for shape in shapes().into_iter().filter(|shape| shape.label.contains(rows)) {
        let stream = Stream::new(&shape, 1);
        let workers = shape.workers;
        let makers: [&dyn Fn() -> Box<dyn Rival>; 3] =
            [&|| Box::new(Ours::new()), &|| Box::new(kv::Kv::new(workers)), &|| {
                Box::new(dynamo::Dynamo::new())
            }];
        let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); makers.len()];
        for _ in 0..rounds {
            makers.iter().zip(&mut figures).for_each(|(make, figures)| figures.push(measure(&stream, make)));
        }
        figures.iter().for_each(|rounds| row(&shape.label, rounds, &figures[0]));
        ratios(&figures);
    }
}

/// Runs the rows whose label contains `rows` on the index of that name: ours, where it is empty.
fn count(rows: &str, who: &str) {
    for shape in shapes().into_iter().filter(|shape| shape.label.contains(rows)) {
        let stream = Stream::new(&shape, 1);
        let mut rival: Box<dyn Rival> =
            if who == "kv-index" { Box::new(kv::Kv::new(shape.workers)) } else { Box::new(Ours::new()) };
        count::run(&shape.label, &mut *rival, &stream);
    }
}

fn row(label: &str, rounds: &[Figures], ours: &[Figures]) {
    let spread = |get: fn(&Figures) -> f64| Spread::of(rounds.iter().map(get));
    let (found, ours) = (rounds[0].answers, ours[0].answers);
    let verdict = if found == ours {
        "same".to_string()
    } else {
        format!(
            "differ: {:.2} of the workers, {:.2} of the blocks",
            share(found.0, ours.0),
            share(found.1, ours.1)
        )
    };
    println!(
        "| {label} | {} | {} | {} | {} | {} | {:.1} | {:.2} | {verdict} |",
        rounds[0].who,
        spread(|f| f.find),
        spread(|f| f.store),
        spread(|f| f.append),
        spread(|f| f.remove),
        rounds[0].bytes,
        rounds[0].churn,
    );
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn ratios(figures: &[Vec<Figures>]) {
    let median = |rounds: &[Figures], get: fn(&Figures) -> f64| Spread::of(rounds.iter().map(get)).median;
    for rival in figures.iter().skip(1) {
        let ratio = |get: fn(&Figures) -> f64| median(&figures[0], get) / median(rival, get);
        println!(
            "| | ours / {} | **{:.2}** | {:.2} | {:.2} | {:.2} | {:.2} | | |",
            rival[0].who,
            ratio(|f| f.find),
            ratio(|f| f.store),
            ratio(|f| f.append),
            ratio(|f| f.remove),
            ratio(|f| f.bytes),
        );
    }
}

fn parts() {
    println!("\n## Our bytes per (worker, block), by part: as the index counts them\n");
    println!("| stream | tree | shared names | books | all | spans per node |");
    println!("|---|---|---|---|---|---|");
    for shape in shapes() {
        let stream = Stream::new(&shape, 1);
        let mut ours = Ours::new();
        stream.stores.iter().chain(&stream.appends).for_each(|store| ours.store(store));
        let stats = ours.index.stats();
        let each = |bytes: usize| bytes as f64 / stats.held as f64;
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} |",
            shape.label,
            each(stats.bytes.tree),
            each(stats.bytes.names),
            each(stats.bytes.holder_names),
            each(stats.bytes.total()),
            stats.spans as f64 / stats.nodes as f64,
        );
    }
}

fn contents(rounds: usize) {
    println!(
        "\n## From content to answer, us per prompt (peers: hashing token ids and find, without tokenizing)\n"
    );
    println!("| tokens | ours, over bytes | kv-index | dynamo-kv-router | ours / kv-index | ours / dynamo |");
    println!("|---|---|---|---|---|---|");
    for blocks in [64, 412, 1_625] {
        let runs: Vec<[f64; 3]> = (0..rounds).map(|_| content::compare(blocks, 100)).collect();
        let of = |who: usize| Spread::of(runs.iter().map(|run| run[who] / 1_000.0));
        let (ours, kv, dynamo) = (of(0), of(1), of(2));
        println!(
            "| {} | {ours} | {kv} | {dynamo} | {:.2} | {:.2} |",
            blocks * 16,
            ours.median / kv.median,
            ours.median / dynamo.median
        );
    }
}

fn concurrency(rounds: usize) {
    println!("\n## Readers, 412 blocks x 16 workers\n");
    println!(
        "scale by CPU: CPU time of one reader's lookup, times readers, over the same with that many readers;"
    );
    println!("by wall: lookups a second of all, over those of one reader\n");
    println!("| readers | ns per lookup | lookups/s, all | scale by CPU | by wall | beside |");
    println!("|---|---|---|---|---|---|");
    let stream = Stream::new(&shapes()[0], 1);
    let mut ours = Ours::new();
    stream.stores.iter().chain(&stream.appends).for_each(|store| ours.store(store));
    let mut alone: Option<(f64, f64)> = None;
    for readers in [1, 2] {
        let paces: Vec<_> = (0..rounds).map(|_| readers::alone(&ours, &stream, readers)).collect();
        let cpu = Spread::of(paces.iter().map(|pace| pace.cpu_ns));
        let rate = Spread::of(paces.iter().map(|pace| pace.per_second));
        let (cpu_one, rate_one) = *alone.get_or_insert((cpu.median, rate.median));
        let (by_cpu, by_wall) = (readers as f64 * cpu_one / cpu.median, rate.median / rate_one);
        println!("| {readers} | {cpu} | {rate} | {by_cpu:.2} | {by_wall:.2} | nothing |");
    }
    let paces: Vec<_> = (0..rounds).map(|_| readers::beside_events(&ours, &stream)).collect();
    let cpu = Spread::of(paces.iter().map(|(pace, _)| pace.cpu_ns));
    let rate = Spread::of(paces.iter().map(|(pace, _)| pace.per_second));
    let changed = Spread::of(paces.iter().map(|&(_, changed)| changed));
    println!("| 1 | {cpu} | {rate} | | | a writer that changes {changed} blocks/s |");
}
