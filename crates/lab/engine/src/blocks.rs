//! The paged KV cache: a fixed number of blocks, each held by some sequences or free, each with or without a name.
//!
//! A free block keeps its name until it is taken for something else, so the free list is the cache's memory and its
//! order is the eviction order: least recently used first, and of one sequence its tail first, because a block is of
//! no use without the blocks before it. A free block without a name can never be hit and is taken before all others
//! (vLLM since 0.24).

use crate::BlockName;
use crate::block::{Block, blank};
use crate::free_list::FreeList;
use crate::names::NameIndex;

/// All blocks of one engine.
#[derive(Clone, Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: FreeList,
    names: NameIndex,
}

/// A block that was taken, and the name it lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub block: u32,
    pub evicted: Option<BlockName>,
}

impl BlockPool {
    /// An empty cache.
    pub fn new(blocks: u32) -> BlockPool {
        BlockPool { blocks: blank(blocks), free: FreeList::full(blocks), names: NameIndex::new() }
    }

    /// Blocks there are.
    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> u32 {
        self.free.count()
    }

    /// Blocks that somebody holds.
    pub fn used(&self) -> u32 {
        self.total() - self.free()
    }

    /// Blocks that can be hit.
    pub fn named(&self) -> u32 {
        self.names.count()
    }

    /// Every name that a block carries, once.
    pub fn names(&self) -> impl Iterator<Item = BlockName> {
        self.names.all()
    }

    /// A block with this name.
    #[cfg(test)]
    pub fn find(&self, name: BlockName) -> Option<u32> {
        self.names.find(name)
    }

    /// Blocks with the names of a chain, from its start, as far as there are any.
    pub fn find_chain<'a>(&'a self, chain: &'a [BlockName]) -> impl Iterator<Item = u32> + 'a {
        self.names.find_chain(chain)
    }

    /// Whether nobody holds the block, so that holding it uses up a free one.
    pub fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].holders == 0
    }

    /// One more sequence holds the block.
    pub fn hold(&mut self, block: u32) {
        if self.is_free(block) {
            self.free.remove(&mut self.blocks, block);
        }
        self.blocks[block as usize].holders += 1;
    }

    /// Takes the free block that is due, for one holder. `None` when every block is held.
    pub fn take(&mut self) -> Option<Taken> {
        let block = self.free.pop_front(&mut self.blocks)?;
        self.blocks[block as usize].holders = 1;
        Some(Taken { block, evicted: self.names.remove(&mut self.blocks, block) })
    }

    /// Gives a held block without a name its name: it is full, and can be hit from now on.
    pub fn name(&mut self, block: u32, name: BlockName) {
        self.names.insert(&mut self.blocks, block, name);
    }

    /// A sequence lets go of its blocks, given in the order of its chain.
    pub fn release(&mut self, chain: &[u32]) {
        for &block in chain.iter().rev() {
            self.release_one(block);
        }
    }

    /// Takes every name away. Only for a cache that nobody holds a block of.
    pub fn forget_names(&mut self) {
        debug_assert_eq!(self.used(), 0);
        self.names.clear(&mut self.blocks);
    }

    fn release_one(&mut self, block: u32) {
        let own = &mut self.blocks[block as usize];
        own.holders -= 1;
        if own.holders > 0 {
            return;
        }
        match own.name() {
            Some(_) => self.free.push_back(&self.blocks, block),
            None => self.free.push_front(block),
        }
    }
}

#[cfg(test)]
impl BlockPool {
    /// Who holds what, what will be taken in which order, and the carriers of every name.
    pub fn snapshot(&self) -> String {
        let noted = self.blocks.iter().map(|block| (block.name(), block.holders)).collect::<Vec<_>>();
        let names = noted.iter().filter_map(|(name, _)| *name);
        let carriers = names.map(|name| self.names.carriers_of(&self.blocks, name)).collect::<Vec<_>>();
        format!("{noted:?} {:?} {carriers:?}", self.free.to_vec(&self.blocks))
    }

    /// Panics unless the pool is consistent and held exactly as `holds` says, one entry for each hold.
    pub fn check(&self, holds: impl Iterator<Item = u32>) {
        let mut holders = vec![0; self.total() as usize];
        holds.for_each(|block| holders[block as usize] += 1);
        let noted: Vec<u32> = self.blocks.iter().map(|block| block.holders).collect();
        assert_eq!(holders, noted, "reference counts are uses");
        let mut free = self.free.to_vec(&self.blocks);
        free.sort_unstable();
        let unheld: Vec<u32> = (0..self.total()).filter(|&block| self.is_free(block)).collect();
        assert_eq!(free, unheld, "every block is free or held, never both");
        let named = (0..self.total()).filter_map(|block| Some((block, self.blocks[block as usize].name()?)));
        for (block, name) in named.clone() {
            assert!(
                self.names.carriers_of(&self.blocks, name).contains(&block),
                "a name leads to all its blocks"
            );
        }
        assert_eq!(named.count(), self.named() as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut BlockPool, count: usize) -> Vec<u32> {
        (0..count).map(|_| pool.take().expect("a free block").block).collect()
    }

    fn evicted(pool: &mut BlockPool, count: usize) -> Vec<Option<u64>> {
        (0..count).map(|_| pool.take().expect("a free block").evicted.map(|name| name.0)).collect()
    }

    #[test]
    fn the_tail_of_a_chain_is_evicted_before_its_head() {
        let mut pool = BlockPool::new(3);
        let chain = take(&mut pool, 3);
        for &block in &chain {
            pool.name(block, BlockName(u64::from(block)));
        }
        pool.release(&chain);
        assert_eq!(evicted(&mut pool, 3), [Some(2), Some(1), Some(0)]);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn the_least_recently_used_chain_is_evicted_first() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (take(&mut pool, 1), take(&mut pool, 1));
        pool.name(first[0], BlockName(1));
        pool.name(second[0], BlockName(2));
        pool.release(&first);
        pool.release(&second);
        let hit = pool.find(BlockName(1)).expect("still cached");
        pool.hold(hit);
        pool.release(&[hit]);
        assert_eq!(evicted(&mut pool, 2), [Some(2), Some(1)]);
    }

    #[test]
    fn a_block_without_a_name_is_taken_before_a_cached_one() {
        let mut pool = BlockPool::new(3);
        let chain = take(&mut pool, 3);
        pool.name(chain[0], BlockName(1));
        pool.name(chain[1], BlockName(2));
        pool.release(&chain);
        assert_eq!(evicted(&mut pool, 3), [None, Some(2), Some(1)]);
    }

    #[test]
    fn a_block_is_free_when_its_last_holder_lets_go() {
        let mut pool = BlockPool::new(1);
        let chain = take(&mut pool, 1);
        pool.hold(chain[0]);
        pool.release(&chain);
        assert_eq!((pool.free(), pool.used()), (0, 1));
        pool.release(&chain);
        assert_eq!((pool.free(), pool.used()), (1, 0));
        pool.check(std::iter::empty());
    }
}
