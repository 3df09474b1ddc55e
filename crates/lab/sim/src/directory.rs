//! Directory of the engines' caches, as of some time ago.
//!
//! Changes reach the directory late, in batches, and sometimes not at all. It exists only in the lab, to set
//! staleness precisely and to study it alone; production reads engine events in the router.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use warmroute_engine::{BlockName, Memory};

use crate::prompt::Excerpt;

/// One change of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// Blocks became available.
    Stored(Stored),
    /// A block was evicted from GPU memory.
    Removed(BlockName),
    /// A block was copied to a slower memory.
    Kept(BlockName, Memory),
    /// A block was dropped from a slower memory.
    Dropped(BlockName, Memory),
    /// The cache was emptied.
    Cleared,
}

/// Consecutive blocks of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Names in chain order.
    pub names: Vec<BlockName>,
    /// Block before the first; `None` at the start of a chain.
    pub parent: Option<BlockName>,
    /// Content of the blocks; empty where only names are needed.
    pub content: Excerpt,
}

/// Caches of a fleet, as far as changes have arrived.
#[derive(Debug, Default)]
pub struct Directory {
    caches: Vec<BlockCounts>,
}

/// Copies per block name. Engines can keep copies; a name disappears with its last copy.
type BlockCounts = HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>;

impl Directory {
    /// Empty, for this many engines.
    pub fn new(nodes: usize) -> Directory {
        Directory { caches: (0..nodes).map(|_| BlockCounts::default()).collect() }
    }

    /// Applies a change of one engine's cache.
    pub fn apply(&mut self, node: usize, change: &CacheChange) {
        let cache = &mut self.caches[node];
        match change {
            CacheChange::Stored(stored) => {
                stored.names.iter().for_each(|name| *cache.entry(name.0).or_insert(0) += 1)
            }
            CacheChange::Removed(name) => remove_one(cache, name.0),
            // The directory covers GPU memory only.
            CacheChange::Kept(..) | CacheChange::Dropped(..) => {}
            CacheChange::Cleared => cache.clear(),
        }
    }

    /// Leading blocks of a chain that an engine is believed to hold.
    pub fn blocks(&self, node: usize, chain: &[BlockName]) -> usize {
        let cache = &self.caches[node];
        chain.iter().take_while(|name| cache.contains_key(&name.0)).count()
    }
}

/// Removes one copy. A removal can arrive without its store, which was lost.
fn remove_one(cache: &mut BlockCounts, name: u64) {
    if let Some(copies) = cache.get_mut(&name) {
        *copies -= 1;
        if *copies == 0 {
            cache.remove(&name);
        }
    }
}

/// Hasher that passes a name through: block names are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a block name is hashed as one u64");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(names: &[u64]) -> CacheChange {
        CacheChange::Stored(Stored { names: chain(names), ..Stored::default() })
    }

    fn chain(names: &[u64]) -> Vec<BlockName> {
        names.iter().copied().map(BlockName).collect()
    }

    #[test]
    fn a_copy_keeps_its_name_alive_and_a_hole_ends_the_match() {
        let mut directory = Directory::new(2);
        directory.apply(1, &stored(&[1, 2, 3]));
        directory.apply(1, &stored(&[2]));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3, 4])), 3);
        assert_eq!(directory.blocks(0, &chain(&[1, 2, 3, 4])), 0);
        directory.apply(1, &CacheChange::Removed(BlockName(2)));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3])), 3);
        directory.apply(1, &CacheChange::Removed(BlockName(2)));
        directory.apply(1, &CacheChange::Removed(BlockName(9)));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3])), 1);
        directory.apply(1, &CacheChange::Cleared);
        assert_eq!(directory.blocks(1, &chain(&[1])), 0);
    }
}
