//! One row on one index, operation by operation, for a counter of instructions or cache misses. Other work on the machine
//! does not disturb these:
//!
//! ```sh
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*count::stores*' \
//!     target/release/warmroute-bench-index count unshared kv-index
//! ```
//!
//! `stores` (with the appends), `finds` and `removes` run in this order, each once. The counter's total is divided by the
//! number that is printed.

use std::hint::black_box;

use crate::rival::Rival;
use crate::stream::Stream;

pub fn run(label: &str, rival: &mut dyn Rival, stream: &Stream) {
    stores(rival, stream);
    finds(rival, stream);
    removes(rival, stream);
    println!(
        "{label}, {}: {} blocks stored, {} prompts, {} blocks removed",
        rival.name(),
        stream.stored_blocks() + stream.appends.len(),
        stream.prompts.len(),
        stream.removed_blocks(),
    );
}

#[inline(never)]
fn stores(rival: &mut dyn Rival, stream: &Stream) {
    stream.stores.iter().chain(&stream.appends).for_each(|store| rival.store(store));
}

#[inline(never)]
fn finds(rival: &mut dyn Rival, stream: &Stream) {
    for prompt in &stream.prompts {
        black_box(rival.find(prompt));
    }
}

#[inline(never)]
fn removes(rival: &mut dyn Rival, stream: &Stream) {
    stream.removes.iter().for_each(|remove| rival.remove(remove));
}
