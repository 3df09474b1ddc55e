//! How cost grows: with workers, with the length of chains, with what is resident.

use crate::kv::Kv;
use crate::measure::{Figures, measure};
use crate::ours::Ours;
use crate::rival::Rival;
use crate::spread::Spread;
use crate::stream::{Names, Shape, Stream};

/// What `kv-index` has room for.
const KV_WORKERS_MAX: usize = 1_024;

pub fn run(rounds: usize, resident_max: usize, rows: &str) {
    let line = |label: &str, shape: &Shape| {
        if label.contains(rows) {
            line(label, rounds, shape);
        }
    };
    println!("\n## Growth\n");
    println!("| | find ns | store ns | remove ns | bytes | kv-index find ns | ours / kv-index |");
    println!("|---|---|---|---|---|---|---|");
    for workers in [8, 64, 512, 4_096] {
        // Every worker holds every chain: fewer chains where there are more workers.
        let sessions = (4_096 / workers).clamp(4, 64);
        line(&format!("{workers} workers"), &shape(workers, sessions, 512, workers));
    }
    for blocks in [64, 512, 8_192] {
        line(&format!("chains of {blocks}"), &shape(8, 262_144 / blocks, blocks, 4));
    }
    for resident in [100_000, 1_000_000, 10_000_000] {
        if resident <= resident_max {
            line(&format!("{resident} resident"), &shape(8, resident / 512, 512, 1));
        }
    }
}

fn shape(workers: usize, sessions: usize, blocks: usize, holders: usize) -> Shape {
    Shape { label: String::new(), workers, sessions, blocks, head: 16, holders, names: Names::Agree }
}

fn line(label: &str, rounds: usize, shape: &Shape) {
    let stream = Stream::new(shape, 2);
    let ours = repeat(rounds, &stream, &|| Box::new(Ours::new()));
    let of = |figures: &[Figures], get: fn(&Figures) -> f64| Spread::of(figures.iter().map(get));
    let find = of(&ours, |f| f.find);
    let peer = (shape.workers <= KV_WORKERS_MAX).then(|| {
        let workers = shape.workers;
        of(&repeat(rounds, &stream, &|| Box::new(Kv::new(workers))), |f| f.find)
    });
    let beside =
        peer.map_or("its limit is 1,024 | -".into(), |kv| format!("{kv} | {:.2}", find.median / kv.median));
    println!(
        "| {label} | {find} | {} | {} | {:.1} | {beside} |",
        of(&ours, |f| f.store),
        of(&ours, |f| f.remove),
        ours[0].bytes,
    );
}

fn repeat(rounds: usize, stream: &Stream, make: &dyn Fn() -> Box<dyn Rival>) -> Vec<Figures> {
    (0..rounds).map(|_| measure(stream, make)).collect()
}
