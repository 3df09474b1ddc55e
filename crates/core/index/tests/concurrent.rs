//! Readers run beside writers and see only states that existed.
//!
//! Each worker's view moves between states that are known beforehand, so a reader can tell a torn answer from a stale
//! one. Under Miri the same tests run with fewer rounds and check every access for races.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use model::{Random, named, root, span};
use warmroute_index::{Config, HolderId, Index, Overlaps, Parent, Prompt, Source};
use warmroute_types::Micros;

const ROUNDS: u64 = if cfg!(miri) { 4 } else { 4_000 };
/// Spans of the shared chain: more than two nodes, or a little more than one under Miri, where every step is slow.
const LENGTH: u64 = if cfg!(miri) { 70 } else { 150 };

fn chain(length: u64) -> Vec<u64> {
    (0..length).map(|at| Random(at).next() >> 20).collect()
}

/// Names of a chain, the same for all workers.
fn names(chain: &[u64]) -> Vec<u64> {
    chain.iter().enumerate().map(|(at, &digest)| Random(at as u64 ^ digest).next()).collect()
}

/// Workers store and evict the ends of one shared chain while readers look it up. A worker's overlap is never shorter
/// than the beginning that it always holds, and never longer than what it ever stores.
#[test]
fn readers_see_the_permanent_prefix_and_never_more_than_was_stored() {
    let index = Index::new(&Config::default());
    let chain = chain(LENGTH);
    let names = names(&chain);
    let spans: Vec<_> = chain.iter().zip(&names).map(|(&digest, &name)| named(name, digest)).collect();
    let key = root("a", Source::Reported);
    let heads: Vec<usize> = vec![10, 62, 65, 66, 3, 20];
    for (worker, &head) in heads.iter().enumerate() {
        index.store(HolderId(worker as u16), Parent::Root(key), &spans[..head]).unwrap();
    }
    let is_empty = AtomicBool::new(false);
    thread::scope(|scope| {
        for (worker, &head) in heads.iter().enumerate().skip(1).step_by(2) {
            let (index, spans, names, chain) = (&index, &spans, &names, &chain);
            scope.spawn(move || {
                let mut random = Random(worker as u64);
                for _ in 0..ROUNDS {
                    let end = head + 1 + random.below((chain.len() - head) as u64) as usize;
                    index
                        .store(HolderId(worker as u16), Parent::Name(names[head - 1]), &spans[head..end])
                        .unwrap();
                    let tail: Vec<u64> = names[head..end].iter().rev().copied().collect();
                    index.remove(HolderId(worker as u16), &tail);
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (index, chain, heads, is_empty) = (&index, &chain, &heads, &is_empty);
                scope.spawn(move || {
                    let mut out = Overlaps::new();
                    while !is_empty.load(Ordering::Relaxed) {
                        index.lookup(key, Prompt::Chunks(chain), &mut out);
                        // Worker 9 joins and leaves.
                        let staying = out.as_slice().iter().filter(|overlap| overlap.holder != HolderId(9));
                        assert_eq!(staying.count(), heads.len(), "each worker once");
                        for (worker, &head) in heads.iter().enumerate() {
                            let spans = out.of(HolderId(worker as u16)).spans as usize;
                            let is_still = worker % 2 == 0;
                            assert!(spans == head || (!is_still && spans > head), "{worker} {head} {spans}");
                        }
                    }
                })
            })
            .collect();
        for round in 0..ROUNDS {
            index.store(HolderId(9), Parent::Root(key), &spans[..1 + (round % 70) as usize]).unwrap();
            index.clear(HolderId(9));
            if readers.iter().any(thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        is_empty.store(true, Ordering::Relaxed);
    });
}

/// Chains of unique content come and go under one root. A lookup finds a chain from its start, and only while its
/// owner holds it.
#[test]
fn unique_chains_are_stored_and_removed_while_readers_look() {
    let index = Index::new(&Config::default());
    let key = root("a", Source::Presumed);
    let snapshot_newest = AtomicU64::new(0);
    let is_empty = AtomicBool::new(false);
    let prompt = |number: u64| -> Vec<u64> { (0..20).map(|at| number * 32 + at).collect() };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = Overlaps::new();
                let mut random = Random(1);
                while !is_empty.load(Ordering::Relaxed) {
                    let last = snapshot_newest.load(Ordering::Acquire);
                    let number = last.saturating_sub(random.below(64));
                    index.lookup(key, Prompt::Chunks(&prompt(number)), &mut out);
                    for overlap in out.as_slice() {
                        assert_eq!(u64::from(overlap.holder.0), number % 5, "only its own worker holds it");
                        assert!(overlap.reach.spans <= 20);
                    }
                }
            });
        }
        for number in 0..ROUNDS * 2 {
            let spans: Vec<_> = prompt(number).into_iter().map(span).collect();
            let handle = index.presume(HolderId((number % 5) as u16), key, &spans, Micros(number)).unwrap();
            snapshot_newest.store(number, Ordering::Release);
            match number % 3 {
                0 => index.withdraw(handle),
                1 => index.confirm(handle),
                _ => index.cut(HolderId((number % 5) as u16), key, Prompt::Chunks(&prompt(number)), 9),
            }
            if number % 50 == 49 {
                index.clear(HolderId((number % 5) as u16));
            }
        }
        is_empty.store(true, Ordering::Relaxed);
    });
}

/// The chains of the test below: a shared beginning, then forks, some of them inside nodes.
fn forked(number: u64) -> Vec<u64> {
    let fork = 5 + number * 11 % LENGTH;
    (0..LENGTH).map(|at| Random(if at < fork { at } else { at << 8 | (number + 1) }).next() >> 20).collect()
}

/// Random operations of one thread on its own engine, which has two worker ids.
fn disturb(index: &Index, engine: u64, rounds: u64) {
    let (sure, maybe) = (HolderId(engine as u16), HolderId(8_000 + engine as u16));
    let (reported, presumed) = (root("a", Source::Reported), root("a", Source::Presumed));
    let mut random = Random(engine);
    for round in 0..rounds {
        let chain = forked(engine + 3 * random.below(3));
        let names: Vec<u64> = (0..chain.len()).map(|at| Random(chain[at] ^ at as u64).next()).collect();
        let spans: Vec<_> = chain.iter().zip(&names).map(|(&digest, &name)| named(name, digest)).collect();
        let (end, keep) = (1 + random.below(LENGTH) as usize, random.below(LENGTH) as u32);
        match random.below(10) {
            0..3 => drop(index.store(maybe, Parent::Root(reported), &spans[..end]).unwrap()),
            3..5 => drop(index.remove(maybe, &names[end - 1..])),
            5 => drop(index.copy_prefix(maybe, sure, reported, Prompt::Chunks(&chain), keep).unwrap()),
            6 => index.cut_unless(maybe, reported, Prompt::Chunks(&chain), keep, sure).unwrap(),
            7 => index.clear(if random.one_in(2) { sure } else { maybe }),
            _ => {
                let spans: Vec<_> = chain[..end].iter().map(|&digest| span(digest)).collect();
                let handle = index.presume(sure, presumed, &spans, Micros(round)).unwrap();
                if random.one_in(3) {
                    index.withdraw(handle)
                } else {
                    index.confirm(handle)
                }
                index.expire(Micros(round));
            }
        }
    }
}

/// Three engines change at random while readers look. A lookup reports no worker that never held the prompt, none
/// twice, only whole spans of this prompt, and always the worker that never changes.
#[test]
fn lookups_during_random_changes_are_consistent_and_match_the_prompt() {
    let config = Config { presumed_tokens: 2 * LENGTH, presumed_ttl: Micros(50), ..Config::default() };
    let index = Index::new(&config);
    let still = HolderId(12_000);
    let spans: Vec<_> = forked(1).iter().map(|&digest| named(digest, digest)).collect();
    index.store(still, Parent::Root(root("a", Source::Reported)), &spans).unwrap();
    let working = AtomicU64::new(3);
    thread::scope(|scope| {
        for engine in 0..3 {
            let (index, working) = (&index, &working);
            scope.spawn(move || {
                disturb(index, engine, if cfg!(miri) { ROUNDS * 2 } else { ROUNDS * 10 });
                working.fetch_sub(1, Ordering::Release);
            });
        }
        for reader in 0..2 {
            let (index, working) = (&index, &working);
            scope.spawn(move || {
                let (mut out, mut random) = (Overlaps::new(), Random(100 + reader));
                while working.load(Ordering::Acquire) > 0 {
                    let number = random.below(9);
                    let source = if random.one_in(2) { Source::Reported } else { Source::Presumed };
                    index.lookup(root("a", source), Prompt::Chunks(&forked(number)), &mut out);
                    assert_whole(&out, number);
                    let is_found = out.of(still).spans as u64 == LENGTH;
                    assert!(source == Source::Presumed || number != 1 || is_found, "who stays is found");
                }
            });
        }
    });
    for engine in 0..3 {
        index.clear(HolderId(engine));
        index.clear(HolderId(8_000 + engine));
    }
    assert_eq!(index.stats().held as u64, LENGTH, "only who stays is left");
}

fn assert_whole(out: &Overlaps, number: u64) {
    let chain = forked(number);
    let mut seen: Vec<_> = out.as_slice().iter().map(|overlap| overlap.holder).collect();
    seen.sort_unstable();
    assert!(seen.is_sorted_by(|a, b| a < b), "each once");
    for overlap in out.as_slice() {
        let spans = overlap.reach.spans as usize;
        let sizes = chain[..spans].iter().map(|&digest| span(digest));
        let (bytes, tokens) = sizes.fold((0, 0), |sum, size| (sum.0 + size.bytes, sum.1 + size.tokens));
        assert_eq!((overlap.reach.bytes, overlap.reach.tokens), (bytes, tokens));
        assert!([0, 1, 2, 8_000, 8_001, 8_002, 12_000].contains(&overlap.holder.0));
    }
}

/// How often a long operation ran in the function that was given for them.
static LONG_WORK: AtomicU64 = AtomicU64::new(0);

#[test]
fn only_an_operation_of_many_pieces_runs_as_long_work() {
    let index = Index::new(&Config::default());
    index.run_long_work_with(|work| {
        LONG_WORK.fetch_add(1, Ordering::Relaxed);
        work();
    });
    let key = root("a", Source::Reported);
    // Each chain of its own has a node of its own.
    let store = |worker, chains: u64| {
        for digest in 0..chains {
            index.store(HolderId(worker), Parent::Root(key), &[named(digest + 1, digest)]).unwrap();
        }
    };
    store(0, 3);
    store(1, 300);
    index.clear(HolderId(0));
    assert_eq!(LONG_WORK.load(Ordering::Relaxed), 0);
    index.clear(HolderId(1));
    assert_eq!(LONG_WORK.load(Ordering::Relaxed), 1);
    let mut out = Overlaps::new();
    index.lookup(key, Prompt::Chunks(&[299]), &mut out);
    assert!(out.as_slice().is_empty(), "all is cleared");
    index.clear(HolderId(1));
    assert_eq!(LONG_WORK.load(Ordering::Relaxed), 1, "nothing is left to do");
}
