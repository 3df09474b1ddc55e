//! One queue before all engines: the next free engine takes the next prefill.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use warmroute_types::Micros;

use super::access::{Access, prefill};
use crate::config::Config;

/// Time to first token of each request in microseconds, given its hits in blocks.
pub fn central(config: &Config, accesses: &[Access], hits: &[u32]) -> Vec<u64> {
    let costs: Vec<_> =
        config.fleet.iter().map(|engine| engine.profile.cost().at_speed(engine.speed_percent)).collect();
    let mut free_at: BinaryHeap<Reverse<(Micros, usize)>> =
        (0..config.fleet.len()).map(|engine| Reverse((Micros::ZERO, engine))).collect();
    let serve = |(access, &blocks): (&Access, &u32)| {
        let Reverse((free, number)) = free_at.pop().expect("every engine comes back");
        let engine = &config.fleet[number];
        let begins = access.asked.max(free);
        let ends = begins + prefill(&costs[number], engine, blocks * engine.block_size, access.prompt_tokens);
        free_at.push(Reverse((ends, number)));
        ends.since(access.asked).0 + 2 * config.hop.0
    };
    accesses.iter().zip(hits).map(serve).collect()
}
