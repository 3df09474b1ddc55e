//! How many engines hold the same block: what affinity saves, and what spreading costs.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use warmroute_engine::Engine;

use crate::directory::AlreadyHashed;

/// Of so many names one is counted, so that a thousand full caches fit into memory.
const SAMPLED: u64 = 16;

/// Engines per block, on average over the blocks that any of them holds; copies inside one engine count once. 0 when nothing
/// is cached.
pub fn factor<'a>(engines: impl Iterator<Item = &'a Engine>) -> f64 {
    let mut holders: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>> = HashMap::default();
    for engine in engines {
        for name in engine.cached_names().filter(|name| name.0 % SAMPLED == 0) {
            *holders.entry(name.0).or_insert(0) += 1;
        }
    }
    if holders.is_empty() {
        return 0.0;
    }
    holders.values().map(|&count| f64::from(count)).sum::<f64>() / holders.len() as f64
}
