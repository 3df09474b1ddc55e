//! A memory behind the GPU's: a bounded set of block names with least-recently-used eviction.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BlockName, Happened, Memory};

/// Blocks in a slower memory.
#[derive(Clone, Debug)]
pub struct LruTier {
    blocks_max: usize,
    /// The last use of each block.
    used: HashMap<BlockName, u64>,
    /// Uses in order; a use that is not the block's last is void.
    uses: VecDeque<(BlockName, u64)>,
    clock: u64,
}

impl LruTier {
    /// An empty one.
    pub fn new(blocks_max: u64) -> LruTier {
        let blocks_max = usize::try_from(blocks_max).unwrap_or(usize::MAX);
        LruTier { blocks_max, used: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }

    /// Whether a block is there.
    pub fn has(&self, name: BlockName) -> bool {
        self.used.contains_key(&name)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Adds or uses a block. Returns the block that it evicted.
    pub fn put(&mut self, name: BlockName) -> Option<BlockName> {
        self.clock += 1;
        self.used.insert(name, self.clock);
        self.uses.push_back((name, self.clock));
        let lost = if self.used.len() > self.blocks_max { self.evict() } else { None };
        if self.uses.len() > 2 * self.used.len() + 64 {
            let used = &self.used;
            self.uses.retain(|(name, at)| used.get(name) == Some(at));
        }
        lost
    }

    /// Removes a block. Returns whether it was there.
    pub fn take(&mut self, name: BlockName) -> bool {
        self.used.remove(&name).is_some()
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.used.clear();
        self.uses.clear();
    }

    fn evict(&mut self) -> Option<BlockName> {
        while let Some((name, at)) = self.uses.pop_front() {
            if self.used.get(&name) == Some(&at) {
                self.used.remove(&name);
                return Some(name);
            }
        }
        None
    }
}

/// A memory that several engines share. Clones are the same pool.
///
/// Each engine reports the blocks that it stored, until they are gone. It learns of other engines' blocks only when
/// it looks them up.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Mutex<Shared>>);

#[derive(Debug)]
pub(crate) struct Shared {
    lru_tier: LruTier,
    /// The engines that have reported a block.
    keepers: HashMap<BlockName, Vec<usize>>,
    /// By engine: blocks that it reported and that others evicted.
    lost: Vec<Vec<BlockName>>,
}

/// One engine's share in a pool.
#[derive(Clone, Debug)]
pub struct PoolMember {
    pool: Pool,
    number: usize,
}

impl Pool {
    /// An empty one.
    pub fn new(blocks_max: u64) -> Pool {
        let shared = Shared { lru_tier: LruTier::new(blocks_max), keepers: HashMap::new(), lost: Vec::new() };
        Pool(Arc::new(Mutex::new(shared)))
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.lock().len()
    }

    /// Adds an engine to the pool.
    pub(crate) fn join(self) -> PoolMember {
        let mut shared = self.lock();
        shared.lost.push(Vec::new());
        let number = shared.lost.len() - 1;
        drop(shared);
        PoolMember { pool: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether a block is there.
    pub fn has(&self, name: BlockName) -> bool {
        self.lru_tier.has(name)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.lru_tier.len()
    }
}

impl PoolMember {
    /// Locks the pool.
    pub fn look(&self) -> MutexGuard<'_, Shared> {
        self.pool.lock()
    }

    /// Stores a block, and reports it and its own blocks that it evicted.
    pub fn put(&self, name: BlockName, events: &mut Vec<Happened>) {
        let mut shared = self.pool.lock();
        let keepers = shared.keepers.entry(name).or_default();
        if !keepers.contains(&self.number) {
            keepers.push(self.number);
            events.push(Happened::Kept { name, memory: Memory::Pool });
        }
        let Some(gone) = shared.lru_tier.put(name) else { return };
        for keeper in shared.keepers.remove(&gone).unwrap_or_default() {
            shared.lost[keeper].push(gone);
        }
        self.report(&mut shared, events);
    }

    /// Uses a block that is there.
    pub fn touch(&self, name: BlockName) {
        self.pool.lock().lru_tier.put(name);
    }

    /// Reports its own blocks that others evicted.
    pub fn report_lost(&self, events: &mut Vec<Happened>) {
        self.report(&mut self.pool.lock(), events);
    }

    fn report(&self, shared: &mut Shared, events: &mut Vec<Happened>) {
        let lost = shared.lost[self.number].drain(..);
        events.extend(lost.map(|name| Happened::Dropped { name, memory: Memory::Pool }));
    }

    /// Forgets what it reported, after its listeners forgot everything.
    pub fn forget(&self) {
        let mut shared = self.pool.lock();
        shared.lost[self.number].clear();
        shared.keepers.values_mut().for_each(|keepers| keepers.retain(|&keeper| keeper != self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a list in the order of use.
        #[test]
        fn the_longest_unused_goes_first(calls in prop::collection::vec((0_u64..12, 0_u8..4), 0..200), blocks_max in 0_u64..8) {
            let (mut lru_tier, mut list) = (LruTier::new(blocks_max), Vec::new());
            for (name, what) in calls.into_iter().map(|(name, what)| (BlockName(name), what)) {
                list.retain(|&other| other != name);
                if what == 0 {
                    lru_tier.take(name);
                } else {
                    list.push(name);
                    let lost = (list.len() as u64 > blocks_max).then(|| list.remove(0));
                    prop_assert_eq!(lru_tier.put(name), lost);
                }
                prop_assert_eq!(lru_tier.len(), list.len());
                prop_assert!(list.iter().all(|&name| lru_tier.has(name)));
            }
        }
    }
}
