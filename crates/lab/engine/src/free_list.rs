//! The blocks that nobody holds, in the order in which they will be taken.
//!
//! Blocks without a name come first, the last one freed before the others; then the named ones, the longest free first. Those
//! stand in a log: who is freed is written at its end, and who is hit is struck out by the stamp it carries, not looked for. A
//! list of links would be shorter to write, but to walk it is one cache miss after another, and a request walks hundreds.

use std::collections::VecDeque;

use crate::block::Block;

/// The free blocks. A block may be in it once; the caller knows which are.
#[derive(Clone, Debug)]
pub struct FreeList {
    nameless: Vec<u32>,
    log: VecDeque<Entry>,
    count: u32,
}

/// A block that was freed, and is free still if it carries the same stamp.
#[derive(Clone, Copy, Debug)]
struct Entry {
    block: u32,
    stamp: u32,
}

impl FreeList {
    /// All of `blocks` blocks, none of which has a name; lowest number first.
    pub fn full(blocks: u32) -> FreeList {
        FreeList { nameless: (0..blocks).rev().collect(), log: VecDeque::new(), count: blocks }
    }

    /// How many blocks are free.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes the block that is due.
    pub fn pop_front(&mut self, blocks: &mut [Block]) -> Option<u32> {
        let block = self.nameless.pop().or_else(|| self.pop_log(blocks))?;
        self.count -= 1;
        Some(block)
    }

    /// A block without a name: to be taken next.
    pub fn push_front(&mut self, block: u32) {
        self.nameless.push(block);
        self.count += 1;
    }

    /// A block with a name: to be taken last.
    pub fn push_back(&mut self, blocks: &[Block], block: u32) {
        if self.log.len() >= 2 * blocks.len() + 64 {
            self.log.retain(|entry| entry.is_free(blocks));
        }
        self.log.push_back(Entry { block, stamp: blocks[block as usize].stamp });
        self.count += 1;
    }

    /// Takes out a block that was pushed to the back. It must be in the list.
    pub fn remove(&mut self, blocks: &mut [Block], block: u32) {
        strike(blocks, block);
        self.count -= 1;
    }

    fn pop_log(&mut self, blocks: &mut [Block]) -> Option<u32> {
        while let Some(entry) = self.log.pop_front() {
            if entry.is_free(blocks) {
                strike(blocks, entry.block);
                return Some(entry.block);
            }
        }
        None
    }

    #[cfg(test)]
    pub fn to_vec(&self, blocks: &[Block]) -> Vec<u32> {
        let named = self.log.iter().filter(|entry| entry.is_free(blocks)).map(|entry| entry.block);
        self.nameless.iter().rev().copied().chain(named).collect()
    }
}

/// From now on the block's entry in the log is void.
fn strike(blocks: &mut [Block], block: u32) {
    let own = &mut blocks[block as usize];
    own.stamp = own.stamp.wrapping_add(1);
}

impl Entry {
    fn is_free(&self, blocks: &[Block]) -> bool {
        blocks[self.block as usize].stamp == self.stamp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::blank;

    #[test]
    fn the_nameless_go_first_and_then_the_longest_free() {
        let mut blocks = blank(4);
        let mut list = FreeList::full(4);
        assert_eq!(list.to_vec(&blocks), [0, 1, 2, 3]);
        let taken: Vec<u32> = std::iter::from_fn(|| list.pop_front(&mut blocks)).collect();
        assert_eq!((taken, list.count()), (vec![0, 1, 2, 3], 0));
        list.push_back(&blocks, 2);
        list.push_back(&blocks, 1);
        list.push_front(3);
        list.push_front(0);
        assert_eq!((list.to_vec(&blocks), list.count()), (vec![0, 3, 2, 1], 4));
        list.remove(&mut blocks, 2);
        assert_eq!((list.to_vec(&blocks), list.count()), (vec![0, 3, 1], 3));
        list.push_back(&blocks, 2);
        let taken: Vec<u32> = std::iter::from_fn(|| list.pop_front(&mut blocks)).collect();
        assert_eq!(taken, [0, 3, 1, 2]);
    }

    #[test]
    fn a_block_that_is_hit_for_ever_does_not_fill_the_log() {
        let mut blocks = blank(2);
        let mut list = FreeList::full(2);
        while list.pop_front(&mut blocks).is_some() {}
        list.push_back(&blocks, 0);
        for _ in 0..10_000 {
            list.push_back(&blocks, 1);
            list.remove(&mut blocks, 1);
        }
        assert!(list.log.len() < 100, "{}", list.log.len());
        assert_eq!((list.to_vec(&blocks), list.count()), (vec![0], 1));
    }
}
