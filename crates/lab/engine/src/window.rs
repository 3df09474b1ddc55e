//! A second group of layers, with sliding-window attention, beside the full attention's.
//!
//! Both groups take their blocks from one pool, as in vLLM, and fill them with the same tokens under the same names. A
//! sequence gives up the window's blocks that lie before its window, so they are evicted long before the full
//! attention's, and a prompt is continued only where the window's last blocks are still there.

use std::collections::HashMap;

use crate::BlockName;
use crate::blocks::BlockPool;

/// Tells the names of this group from the full attention's inside the pool. The last four bits stay: names that
/// differ only there are stored together.
const TAG: u64 = 0x5bd1_e995_9d2c_5680;

/// The group.
#[derive(Clone, Debug)]
pub struct WindowGroup {
    tokens: u32,
    block_size: u32,
    step_tokens_max: u32,
    /// How many blocks carry each of the group's names in the pool.
    named: HashMap<BlockName, u32>,
}

impl WindowGroup {
    /// A group in which a token sees this many, itself included.
    pub fn new(tokens: u32, block_size: u32, step_tokens_max: u32) -> WindowGroup {
        WindowGroup { tokens, block_size, step_tokens_max, named: HashMap::new() }
    }

    /// The name of a block in the pool.
    pub fn tagged(name: BlockName) -> BlockName {
        BlockName(name.0 ^ TAG)
    }

    /// Blocks before the next token that a window needs.
    pub fn blocks_needed(&self) -> u32 {
        (self.tokens - 1).div_ceil(self.block_size).max(1)
    }

    /// Most blocks that a sequence holds at a time: those of its window and of one step.
    pub fn blocks_max(&self) -> u32 {
        (self.tokens - 1).saturating_add(self.step_tokens_max).div_ceil(self.block_size) + 1
    }

    /// The first block that the next token sees, after so many computed ones.
    pub fn first_seen(&self, computed: u32) -> u32 {
        computed.saturating_sub(self.tokens - 1) / self.block_size
    }

    /// How many of the first `full` blocks of a chain can be continued: the last ones that the window needs are cached.
    pub fn longest(&self, pool: &BlockPool, chain: &[BlockName], full: u32) -> u32 {
        let (needed, mut run) = (self.blocks_needed(), 0);
        for block in (0..full).rev() {
            run = if pool.has(Self::tagged(chain[block as usize])) { run + 1 } else { 0 };
            if run >= needed {
                return block + run;
            }
        }
        run
    }

    /// Blocks were named.
    pub fn note_stored(&mut self, names: &[BlockName]) {
        names.iter().for_each(|&name| *self.named.entry(name).or_default() += 1);
    }

    /// The block of this group that an evicted name of the pool stands for; `None` for the full attention's.
    pub fn note_removed(&mut self, name: BlockName) -> Option<BlockName> {
        let name = Self::tagged(name);
        let count = self.named.get_mut(&name)?;
        *count -= 1;
        if *count == 0 {
            self.named.remove(&name);
        }
        Some(name)
    }

    /// Every name was removed.
    pub fn clear(&mut self) {
        self.named.clear();
    }
}
