//! Readers beside writers: what they see is always something that was true.
//!
//! Each worker's view moves between states that are known beforehand, so a reader can tell a torn answer from a stale
//! one. Under Miri the same tests run with fewer rounds and check every access for races.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use model::{Random, named, root, span};
use warmroute_index::{Config, Index, Overlaps, Parent, Prompt, Source};
use warmroute_types::{Micros, WorkerId};

const ROUNDS: u64 = if cfg!(miri) { 4 } else { 4_000 };
/// Spans of the shared chain: more than two nodes, or little more than one where every step is slow.
const LENGTH: u64 = if cfg!(miri) { 70 } else { 150 };

fn chain(length: u64) -> Vec<u64> {
    (0..length).map(|at| Random(at).next() >> 20).collect()
}

/// Names of a chain, the same for all workers.
fn names(chain: &[u64]) -> Vec<u64> {
    chain.iter().enumerate().map(|(at, &digest)| Random(at as u64 ^ digest).next()).collect()
}

/// Workers store and evict the tails of one shared chain while readers look on: a worker's answer is never shorter than
/// the head it always holds, never longer than what it ever stores.
#[test]
fn a_reader_sees_the_head_that_stays_and_never_more_than_was_stored() {
    let index = Index::new(&Config::default());
    let chain = chain(LENGTH);
    let names = names(&chain);
    let spans: Vec<_> = chain.iter().zip(&names).map(|(&digest, &name)| named(name, digest)).collect();
    let key = root("a", Source::Reported);
    let heads: Vec<usize> = vec![10, 62, 65, 66, 3, 20];
    for (worker, &head) in heads.iter().enumerate() {
        index.store(WorkerId(worker as u16), Parent::Root(key), &spans[..head]).unwrap();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (worker, &head) in heads.iter().enumerate().skip(1).step_by(2) {
            let (index, spans, names, chain) = (&index, &spans, &names, &chain);
            scope.spawn(move || {
                let mut random = Random(worker as u64);
                for _ in 0..ROUNDS {
                    let end = head + 1 + random.below((chain.len() - head) as u64) as usize;
                    index
                        .store(WorkerId(worker as u16), Parent::Name(names[head - 1]), &spans[head..end])
                        .unwrap();
                    let tail: Vec<u64> = names[head..end].iter().rev().copied().collect();
                    index.remove(WorkerId(worker as u16), &tail);
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (index, chain, heads, is_over) = (&index, &chain, &heads, &is_over);
                scope.spawn(move || {
                    let mut out = Overlaps::new();
                    while !is_over.load(Ordering::Relaxed) {
                        index.lookup(key, Prompt::Chunks(chain), &mut out);
                        // Worker 9 comes and goes.
                        let staying = out.as_slice().iter().filter(|overlap| overlap.worker != WorkerId(9));
                        assert_eq!(staying.count(), heads.len(), "each worker once");
                        for (worker, &head) in heads.iter().enumerate() {
                            let spans = out.of(WorkerId(worker as u16)).spans as usize;
                            let is_still = worker % 2 == 0;
                            assert!(spans == head || (!is_still && spans > head), "{worker} {head} {spans}");
                        }
                    }
                })
            })
            .collect();
        for round in 0..ROUNDS {
            index.store(WorkerId(9), Parent::Root(key), &spans[..1 + (round % 70) as usize]).unwrap();
            index.clear(WorkerId(9));
            if readers.iter().any(thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Chains of unique content come and go under one root; a chain that is found is found from its start, and only while
/// its owner holds it.
#[test]
fn unique_chains_come_and_go_under_the_eyes_of_readers() {
    let index = Index::new(&Config::default());
    let key = root("a", Source::Presumed);
    let newest = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let prompt = |number: u64| -> Vec<u64> { (0..20).map(|at| number * 32 + at).collect() };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = Overlaps::new();
                let mut random = Random(1);
                while !is_over.load(Ordering::Relaxed) {
                    let last = newest.load(Ordering::Acquire);
                    let number = last.saturating_sub(random.below(64));
                    index.lookup(key, Prompt::Chunks(&prompt(number)), &mut out);
                    for overlap in out.as_slice() {
                        assert_eq!(u64::from(overlap.worker.0), number % 5, "only its own worker holds it");
                        assert!(overlap.reach.spans <= 20);
                    }
                }
            });
        }
        for number in 0..ROUNDS * 2 {
            let spans: Vec<_> = prompt(number).into_iter().map(span).collect();
            let handle = index.presume(WorkerId((number % 5) as u16), key, &spans, Micros(number)).unwrap();
            newest.store(number, Ordering::Release);
            match number % 3 {
                0 => index.withdraw(handle),
                1 => index.confirm(handle),
                _ => index.cut(WorkerId((number % 5) as u16), key, Prompt::Chunks(&prompt(number)), 9),
            }
            if number % 50 == 49 {
                index.clear(WorkerId((number % 5) as u16));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
