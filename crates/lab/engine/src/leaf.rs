//! Sixteen blocks whose names differ only in their last four bits.
//!
//! A caller that counts along a chain in those bits, as the simulator does, names, holds, frees and evicts sixteen
//! blocks for the cost of one. Other names have a leaf each. A block is a slot of its leaf and has no other number.

use crate::BlockName;

/// Slots of a leaf.
pub const SLOTS: u64 = 16;
/// Marks "no leaf".
pub const NONE: u32 = u32::MAX;

/// The blocks of one page of names, filled by one or several sequences. A page may have several leaves: engines do
/// not deduplicate, so sequences that fill the same blocks at the same time each keep their own.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The common part of the names.
    pub page: u64,
    /// One bit for each named slot.
    pub named: u16,
    /// Number of sequences that hold each slot.
    pub holders: [u16; SLOTS as usize],
    /// The [`clock`](Leaf::clock) when the slot was freed; 0 while it is held or has no name.
    pub freed: [u32; SLOTS as usize],
    /// When the slot got its name, as a count of namings in the pool.
    pub born: [u32; SLOTS as usize],
    /// Counts releases. It continues when the leaf is reused for another page, so that older entries are void.
    pub clock: u32,
    /// When its first slot got its name.
    pub created: u32,
    /// Neighbours among the leaves of the page: a ring in the order of creation.
    pub before: u32,
    pub after: u32,
}

/// Consecutive slots of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub leaf: u32,
    pub from: u8,
    pub to: u8,
}

impl Leaf {
    /// An unused leaf.
    pub fn blank() -> Leaf {
        Leaf {
            page: 0,
            named: 0,
            holders: [0; SLOTS as usize],
            freed: [0; SLOTS as usize],
            born: [0; SLOTS as usize],
            clock: 0,
            created: 0,
            before: NONE,
            after: NONE,
        }
    }

    /// Whether a block is in the slot.
    pub fn has(&self, slot: u8) -> bool {
        self.named & (1 << slot) != 0
    }

    /// A slot's name.
    pub fn name(&self, slot: u8) -> BlockName {
        BlockName(self.page * SLOTS + u64::from(slot))
    }

    /// Puts blocks of one sequence into slots.
    pub fn fill(&mut self, row: Span, born: u32) {
        let slots = usize::from(row.from)..usize::from(row.to);
        self.named |= row.mask();
        self.holders[slots.clone()].fill(1);
        self.born[slots].fill(born);
    }

    /// Removes the block from a slot.
    pub fn empty(&mut self, slot: u8) {
        self.named &= !(1 << slot);
        self.freed[usize::from(slot)] = 0;
    }
}

impl Span {
    /// Number of slots.
    pub fn len(&self) -> u32 {
        u32::from(self.to - self.from)
    }

    /// One bit for each slot.
    pub fn mask(&self) -> u16 {
        (((1_u32 << self.to) - 1) & !((1 << self.from) - 1)) as u16
    }

    /// The slots, from the chain's start.
    pub fn slots(&self) -> std::ops::Range<u8> {
        self.from..self.to
    }
}
