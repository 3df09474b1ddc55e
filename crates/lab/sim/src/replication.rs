//! Copies of a block across engines: affinity keeps them few, spreading makes them many.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use warmroute_engine::Engine;

use crate::directory::AlreadyHashed;
use crate::repeated_prefill::sampled_hash;

/// Engines per cached block; copies inside one engine count once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replication {
    /// Mean over all cached blocks; 0 when nothing is cached.
    pub mean: f64,
    /// Engines that hold the most copied block.
    pub most: u32,
    /// Share of blocks that only one engine holds.
    pub alone_ratio: f64,
}

/// Counts the copies of the blocks that these engines hold, from a sample: a thousand full caches fit into memory.
pub fn of<'a>(engines: impl Iterator<Item = &'a Engine>) -> Replication {
    let mut holders: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>> = HashMap::default();
    for engine in engines {
        for hash in engine.cached_names().filter_map(sampled_hash) {
            *holders.entry(hash).or_insert(0) += 1;
        }
    }
    if holders.is_empty() {
        return Replication::default();
    }
    let blocks = holders.len() as f64;
    Replication {
        mean: holders.values().map(|&count| f64::from(count)).sum::<f64>() / blocks,
        most: holders.values().copied().max().unwrap_or(0),
        alone_ratio: holders.values().filter(|&&count| count == 1).count() as f64 / blocks,
    }
}
