//! Lookups by one and two threads, alone and while events are applied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use warmroute_index::{Overlaps, Prompt};

use crate::clock;
use crate::ours::Ours;
use crate::rival::Rival;
use crate::stream::Stream;

const LOOKUPS: usize = 60_000;

/// CPU nanoseconds per lookup of each reader, and lookups per second of all by the clock on the wall.
pub struct Pace {
    pub cpu_ns: f64,
    pub per_second: f64,
}

/// Lookups by `readers` threads at once.
pub fn alone(ours: &Ours, stream: &Stream, readers: usize) -> Pace {
    let start = Instant::now();
    let cpu_ns: f64 = thread::scope(|scope| {
        let lanes: Vec<_> = (0..readers).map(|lane| scope.spawn(move || look(ours, stream, lane))).collect();
        lanes.into_iter().map(|lane| lane.join().expect("no reader fails")).sum()
    });
    let per_second = (readers * LOOKUPS) as f64 / start.elapsed().as_secs_f64();
    Pace { cpu_ns: cpu_ns / readers as f64, per_second }
}

fn look(ours: &Ours, stream: &Stream, lane: usize) -> f64 {
    let mut out = Overlaps::new();
    let start = clock::thread_ns();
    for at in 0..LOOKUPS {
        let prompt = &stream.prompts[(at + lane * 7) % stream.prompts.len()];
        ours.index.lookup(ours.root, Prompt::Chunks(prompt), &mut out);
    }
    (clock::thread_ns() - start) as f64 / LOOKUPS as f64
}

/// One reader while a writer evicts and stores the same tails again; also how many blocks a second that changed.
pub fn beside_events(ours: &Ours, stream: &Stream) -> (Pace, f64) {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let (cpu_ns, changed) = thread::scope(|scope| {
        let writer = scope.spawn(|| churn(ours.share(), stream, &is_over));
        let cpu_ns = look(ours, stream, 0);
        is_over.store(true, Ordering::Relaxed);
        (cpu_ns, writer.join().expect("the writer does not fail"))
    });
    let seconds = start.elapsed().as_secs_f64();
    (Pace { cpu_ns, per_second: LOOKUPS as f64 / seconds }, changed as f64 / seconds)
}

fn churn(mut ours: Ours, stream: &Stream, is_over: &AtomicBool) -> usize {
    let mut changed = 0;
    while !is_over.load(Ordering::Relaxed) {
        let changes =
            stream.removes.iter().zip(&stream.restores).take_while(|_| !is_over.load(Ordering::Relaxed));
        for (remove, restore) in changes {
            ours.remove(remove);
            ours.store(restore);
            changed += remove.names.len() + restore.blocks.len();
        }
    }
    changed
}
