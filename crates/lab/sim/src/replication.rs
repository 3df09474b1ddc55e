//! Copies of a block across engines: affinity keeps them few, spreading makes them many.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use warmroute_engine::Engine;

use crate::directory::AlreadyHashed;

/// One in this many block names is counted, so that a thousand full caches fit into memory.
const SAMPLED: u64 = 16;

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

/// Counts the copies of the blocks that these engines hold.
pub fn of<'a>(engines: impl Iterator<Item = &'a Engine>) -> Replication {
    let mut holders: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>> = HashMap::default();
    for engine in engines {
        for name in engine.cached_names().filter(|name| name.0 % SAMPLED == 0) {
            *holders.entry(name.0).or_insert(0) += 1;
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
