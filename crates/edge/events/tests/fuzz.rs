//! Millions of broken inputs: no input panics, and none takes much more memory than its length. The fuzz target
//! beside the code checks more, but cannot see allocations.
//!
//! Plain `cargo test` runs some 300,000; a release build runs ten million.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use warmroute_events::decode;
use warmroute_fuzz::{Dice, Mutator, corpus};

/// Records the peak of allocated bytes, so that an unchecked length shows.
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

#[test]
fn no_input_panics_or_takes_much_more_memory_than_its_length() {
    let rounds: usize = if cfg!(debug_assertions) { 300_000 } else { 10_000_000 };
    let seeds = corpus("batch").into_iter().filter(|input| decode(input).is_ok()).collect();
    let mut mutator = Mutator::new(seeds, Dice::new(0x5eed));
    let (mut read, mut worst) = (0usize, 0.0f64);
    for _ in 0..rounds {
        let input = mutator.mutated();
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        read += usize::from(decode(&input).is_ok());
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        // One byte can be a name of 8 bytes, 18 bytes an event of some 150; vectors double. The largest ratio seen is
        // 10.
        let allowed = 2_048 + 40 * input.len();
        worst = worst.max(taken as f64 / (input.len() + 16) as f64);
        assert!(taken <= allowed, "{taken} bytes for an input of {}: {input:?}", input.len());
    }
    eprintln!(
        "{rounds} inputs, {read} of them still batches; at most {worst:.0} bytes of memory for one of input"
    );
    assert!(read > rounds / 10, "most inputs must reach the inner parts");
}
