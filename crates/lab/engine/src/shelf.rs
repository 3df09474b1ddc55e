//! A memory behind the GPU's: so many blocks by name, the longest unused of which goes first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::BlockName;

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

    /// Takes a block away, if it is there.
    pub fn take(&mut self, name: BlockName) {
        self.used.remove(&name);
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
#[derive(Clone, Debug)]
pub struct Pool(Arc<Mutex<Shelf>>);

impl Pool {
    /// An empty one.
    pub fn new(blocks_max: u64) -> Pool {
        Pool(Arc::new(Mutex::new(Shelf::new(blocks_max))))
    }

    /// Blocks there are.
    pub fn blocks(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
