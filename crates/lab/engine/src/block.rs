//! What is noted about one block, in half a cache line.
//!
//! Its name, its neighbours among the blocks of that name, its stamp in the free list and who holds it are looked at together,
//! hundreds of times for a request: apart, each would be a cache miss of its own.

use crate::BlockName;

/// Marks "no block".
pub const NONE: u32 = u32::MAX;

/// One block. The stamp belongs to the free list, the name and its links to the name index.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Block {
    pub name: BlockName,
    /// Before and after it in the ring of blocks of its name; `NONE` when it has no name.
    pub twin_before: u32,
    pub twin_after: u32,
    /// Counts how often it left the free list.
    pub stamp: u32,
    /// Sequences that hold it.
    pub holders: u32,
}

impl Block {
    /// Without a name, and held by nobody.
    pub const BLANK: Block =
        Block { name: BlockName(0), twin_before: NONE, twin_after: NONE, stamp: 0, holders: 0 };

    /// Its name.
    pub fn name(&self) -> Option<BlockName> {
        (self.twin_after != NONE).then_some(self.name)
    }

    /// Takes its name away, with its place in the ring.
    pub fn forget_name(&mut self) {
        (self.name, self.twin_before, self.twin_after) = (BlockName(0), NONE, NONE);
    }
}

/// Blank blocks.
pub fn blank(blocks: u32) -> Vec<Block> {
    vec![Block::BLANK; blocks as usize]
}
