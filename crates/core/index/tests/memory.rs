//! Memory: the index's own count equals the allocator's, and memory returns to its baseline when the load goes.
#![allow(clippy::unwrap_used)] // Tests may: a panic here is the report.

mod model;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use model::{Random, named, root, span};
use warmroute_index::{Config, HolderId, Index, NamedSpan, Overlaps, Parent, Prompt, Source, Span};
use warmroute_types::Micros;

static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// Allocations of this thread.
    static MINE: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[allow(unsafe_code)]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = MINE.try_with(|mine| mine.set(mine.get() + 1));
        LIVE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// One test at a time: they share the allocator.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Bytes in use once all retired memory is freed.
fn live() -> isize {
    for _ in 0..64 {
        crossbeam_epoch::pin().flush();
    }
    LIVE.load(Relaxed)
}

fn chain(seed: u64, length: u64, worker: u64) -> Vec<NamedSpan> {
    let mut random = Random(seed);
    let digests: Vec<u64> = (0..length).map(|_| random.next()).collect();
    digests
        .iter()
        .map(|&digest| named(digest.rotate_left(9) ^ worker.wrapping_mul(0x9e37_79b9), digest))
        .collect()
}

fn assert_near(said: usize, measured: isize, what: &str) {
    let ratio = said as f64 / measured as f64;
    assert!((0.9..1.1).contains(&ratio), "{what}: said {said}, measured {measured}");
}

#[test]
fn the_byte_count_matches_the_allocator() {
    let _alone = alone();
    let key = root("a", Source::Reported);
    let base = live();
    let index = Index::new(&Config::default());
    for session in 0..400 {
        for worker in 0..3 {
            // One worker of three has names of its own.
            let spans = chain(session, 60 + session % 200, worker / 2);
            index.store(HolderId(worker as u16), Parent::Root(key), &spans).unwrap();
        }
    }
    index.expire(Micros(0));
    assert_near(index.bytes(), live() - base, "reported");
    let presumed_from = (index.bytes(), live());
    for prompt in 0..4_000u64 {
        let spans: Vec<Span> = (0..30 + prompt % 50).map(|at| span((prompt / 3) * 1_000 + at)).collect();
        let handle =
            index.presume(HolderId((prompt % 5) as u16), root("a", Source::Presumed), &spans, Micros(0));
        index.confirm(handle.unwrap());
    }
    index.expire(Micros(0));
    assert_near(index.bytes() - presumed_from.0, live() - presumed_from.1, "presumed");
    let parked_from = (index.bytes(), live());
    for group in 0..2_000 {
        index.store(HolderId(9), Parent::Name(group), &chain(1 << 40 | group, 20, 9)).unwrap();
    }
    let (said, measured) = (index.bytes() - parked_from.0, live() - parked_from.1);
    assert!(
        (0.75..1.25).contains(&(said as f64 / measured as f64)),
        "orphans: said {said}, measured {measured}"
    );
    drop(index);
    assert!(live() - base < 1 << 16, "nothing is left: {}", live() - base);
}

#[test]
fn a_million_cycles_of_store_split_and_remove_leak_nothing() {
    let _alone = alone();
    let key = root("a", Source::Reported);
    let index = Index::new(&Config::default());
    let spans = chain(1, 200, 0);
    for worker in 0..4 {
        index.store(HolderId(worker), Parent::Root(key), &spans[..150 + usize::from(worker)]).unwrap();
    }
    let before = live();
    let mut random = Random(5);
    for cycle in 0..1_000_000u64 {
        let (worker, fork) = (HolderId(random.below(4) as u16), 1 + random.below(150) as usize);
        let side = [named(cycle << 1, random.next()), named(cycle << 1 | 1, random.next())];
        let count = 1 + random.below(2) as usize;
        index.store(worker, Parent::Name(spans[fork - 1].name), &side[..count]).unwrap();
        let names = [side[1].name, side[0].name];
        assert_eq!(index.remove(worker, &names[2 - count..]).known, count);
    }
    index.expire(Micros(0));
    let after = live();
    assert!(after - before <= before / 10 + (1 << 16), "before {before}, after {after}");
    assert_eq!(index.stats().held, 150 + 151 + 152 + 153);
}

#[test]
fn a_million_unique_prompts_leak_nothing() {
    let _alone = alone();
    let key = root("a", Source::Presumed);
    let config = Config { presumed_tokens: 20_000, presumed_ttl: Micros(1_000_000), ..Config::default() };
    let index = Index::new(&config);
    let before = live();
    let mut random = Random(6);
    let mut most = 0;
    for prompt in 0..1_000_000u64 {
        let head = prompt % 3;
        let spans = [3 + head * 4, 1_003 + head * 4, random.next() >> 8, random.next() >> 8].map(span);
        let handle = index.presume(HolderId((prompt % 8) as u16), key, &spans, Micros(prompt)).unwrap();
        if prompt % 7 == 0 {
            index.withdraw(handle)
        } else {
            index.confirm(handle)
        }
        if prompt % 100_000 == 50_000 {
            most = most.max(live() - before);
        }
    }
    assert!(most < 40 << 20, "bounded by the workers' capacity: {most}");
    index.expire(Micros(3_000_000));
    let after = live();
    assert_eq!(index.stats().held, 0);
    assert!(after - before < 1 << 17, "before {before}, after {after}");
}

#[test]
fn lookups_allocate_nothing_once_their_buffer_has_grown() {
    let _alone = alone();
    let key = root("a", Source::Reported);
    let index = Index::new(&Config::default());
    let text: Vec<u8> = (0..200u64).map(|at| (Random(at).next() % 26) as u8 + b'a').collect();
    let pieces: Vec<&[u8]> = text.chunks(3).collect();
    let spans: Vec<NamedSpan> = (0u64..)
        .zip(&pieces)
        .map(|(name, piece)| {
            let digest = index.digester().digest(piece);
            NamedSpan { name, span: Span { digest, bytes: piece.len() as u32, tokens: 1 } }
        })
        .collect();
    for worker in 0..200 {
        index
            .store(HolderId(worker), Parent::Root(key), &spans[..1 + usize::from(worker) % spans.len()])
            .unwrap();
    }
    let digests: Vec<u64> = spans.iter().map(|named| named.span.digest).collect();
    let mut out = Overlaps::new();
    let mut look = || {
        for prompt in [Prompt::Chunks(&digests), Prompt::Bytes(&text)] {
            index.lookup(key, prompt, &mut out);
            assert_eq!(out.as_slice().len(), 200);
        }
    };
    look();
    let before = MINE.get();
    (0..100).for_each(|_| look());
    assert_eq!(MINE.get(), before);
}
