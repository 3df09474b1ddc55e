//! A memory behind the GPU's: so many blocks by name, the longest unused of which goes first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BlockName, Happened, Memory};

/// Blocks in a slower memory.
#[derive(Clone, Debug)]
pub struct Shelf {
    blocks_max: usize,
    /// When each was used last.
    used: HashMap<BlockName, u64>,
    /// Uses in order; one that is not a block's last is void.
    uses: VecDeque<(BlockName, u64)>,
    clock: u64,
}

impl Shelf {
    /// An empty one.
    pub fn new(blocks_max: u64) -> Shelf {
        let blocks_max = usize::try_from(blocks_max).unwrap_or(usize::MAX);
        Shelf { blocks_max, used: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }

    /// Whether a block is there.
    pub fn has(&self, name: BlockName) -> bool {
        self.used.contains_key(&name)
    }

    /// Blocks there are.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Puts a block there, or uses one that is; the one that had to go for it is returned.
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

    /// Takes a block away; whether it was there.
    pub fn take(&mut self, name: BlockName) -> bool {
        self.used.remove(&name).is_some()
    }

    /// Takes all away.
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

/// A memory that several engines share. Clones are the same one.
///
/// Each engine tells of what it has put there itself, until that is gone: what another one puts there it hears of only when it
/// looks for it.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Mutex<Shared>>);

#[derive(Debug)]
pub(crate) struct Shared {
    shelf: Shelf,
    /// Who has told of a block.
    keepers: HashMap<BlockName, Vec<usize>>,
    /// By engine: what it has told of and others have pushed out.
    lost: Vec<Vec<BlockName>>,
}

/// One engine's share in a pool.
#[derive(Clone, Debug)]
pub struct Member {
    pool: Pool,
    number: usize,
}

impl Pool {
    /// An empty one.
    pub fn new(blocks_max: u64) -> Pool {
        let shared = Shared { shelf: Shelf::new(blocks_max), keepers: HashMap::new(), lost: Vec::new() };
        Pool(Arc::new(Mutex::new(shared)))
    }

    /// Blocks there are.
    pub fn blocks(&self) -> usize {
        self.lock().len()
    }

    /// One more engine shares it.
    pub(crate) fn join(self) -> Member {
        let mut shared = self.lock();
        shared.lost.push(Vec::new());
        let number = shared.lost.len() - 1;
        drop(shared);
        Member { pool: self, number }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether a block is there.
    pub fn has(&self, name: BlockName) -> bool {
        self.shelf.has(name)
    }

    /// Blocks there are.
    pub fn len(&self) -> usize {
        self.shelf.len()
    }
}

impl Member {
    /// To look at it.
    pub fn look(&self) -> MutexGuard<'_, Shared> {
        self.pool.lock()
    }

    /// Puts a block there, and tells of it, and of what of its own had to go for it.
    pub fn put(&self, name: BlockName, told: &mut Vec<Happened>) {
        let mut shared = self.pool.lock();
        let keepers = shared.keepers.entry(name).or_default();
        if !keepers.contains(&self.number) {
            keepers.push(self.number);
            told.push(Happened::Kept { name, memory: Memory::Pool });
        }
        let Some(gone) = shared.shelf.put(name) else { return };
        for keeper in shared.keepers.remove(&gone).unwrap_or_default() {
            shared.lost[keeper].push(gone);
        }
        self.tell(&mut shared, told);
    }

    /// Uses a block that is there.
    pub fn touch(&self, name: BlockName) {
        self.pool.lock().shelf.put(name);
    }

    /// Tells what of its own others have pushed out.
    pub fn tell_lost(&self, told: &mut Vec<Happened>) {
        self.tell(&mut self.pool.lock(), told);
    }

    fn tell(&self, shared: &mut Shared, told: &mut Vec<Happened>) {
        let lost = shared.lost[self.number].drain(..);
        told.extend(lost.map(|name| Happened::Dropped { name, memory: Memory::Pool }));
    }

    /// Its listeners have forgotten everything.
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
        /// Against a list in the order of use.
        #[test]
        fn the_longest_unused_goes_first(calls in prop::collection::vec((0_u64..12, 0_u8..4), 0..200), blocks_max in 0_u64..8) {
            let (mut shelf, mut list) = (Shelf::new(blocks_max), Vec::new());
            for (name, what) in calls.into_iter().map(|(name, what)| (BlockName(name), what)) {
                list.retain(|&other| other != name);
                if what == 0 {
                    shelf.take(name);
                } else {
                    list.push(name);
                    let lost = (list.len() as u64 > blocks_max).then(|| list.remove(0));
                    prop_assert_eq!(shelf.put(name), lost);
                }
                prop_assert_eq!(shelf.len(), list.len());
                prop_assert!(list.iter().all(|&name| shelf.has(name)));
            }
        }
    }
}
