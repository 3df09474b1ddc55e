//! Which block carries which name.
//!
//! Engines do not deduplicate: two sequences that fill the same block at the same time both keep theirs, under one
//! name. So a name leads to a ring of blocks, threaded through an array, oldest first; a hot prompt can leave thousands
//! of copies of its last block, and each must go in constant time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::BlockName;

/// Marks a block without a name.
const NONE: u32 = u32::MAX;

/// Blocks by name and names by block.
#[derive(Clone, Debug)]
pub struct NameIndex {
    oldest: HashMap<BlockName, u32, BuildHasherDefault<AlreadyHashed>>,
    carriers: Vec<Carrier>,
    count: u32,
}

/// A block's name, and its neighbours among the blocks of the same name.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    name: BlockName,
    before: u32,
    after: u32,
}

const NAMELESS: Carrier = Carrier { name: BlockName(0), before: NONE, after: NONE };

impl NameIndex {
    /// No block has a name.
    pub fn new(blocks: u32) -> NameIndex {
        let oldest = HashMap::with_capacity_and_hasher(blocks as usize, BuildHasherDefault::default());
        NameIndex { oldest, carriers: vec![NAMELESS; blocks as usize], count: 0 }
    }

    /// How many blocks have a name.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The block that has carried this name longest.
    pub fn find(&self, name: BlockName) -> Option<u32> {
        self.oldest.get(&name).copied()
    }

    /// The name of a block.
    pub fn name_of(&self, block: u32) -> Option<BlockName> {
        let carrier = &self.carriers[block as usize];
        (carrier.after != NONE).then_some(carrier.name)
    }

    /// Names a block that has no name.
    pub fn insert(&mut self, block: u32, name: BlockName) {
        let oldest = *self.oldest.entry(name).or_insert(block);
        self.carriers[block as usize] = Carrier { name, before: block, after: block };
        self.count += 1;
        if oldest != block {
            self.link_before(block, oldest);
        }
    }

    /// Takes a block's name away, if it has one.
    pub fn remove(&mut self, block: u32) -> Option<BlockName> {
        let name = self.name_of(block)?;
        let Carrier { before, after, .. } = std::mem::replace(&mut self.carriers[block as usize], NAMELESS);
        self.count -= 1;
        if after == block {
            self.oldest.remove(&name);
            return Some(name);
        }
        self.carriers[before as usize].after = after;
        self.carriers[after as usize].before = before;
        self.oldest.entry(name).and_modify(|oldest| *oldest = if *oldest == block { after } else { *oldest });
        Some(name)
    }

    /// Takes every name away.
    pub fn clear(&mut self) {
        self.oldest.clear();
        self.carriers.fill(NAMELESS);
        self.count = 0;
    }

    /// Joins the ring at its end, which is just before its oldest.
    fn link_before(&mut self, block: u32, oldest: u32) {
        let newest = self.carriers[oldest as usize].before;
        self.carriers[block as usize].before = newest;
        self.carriers[block as usize].after = oldest;
        self.carriers[newest as usize].after = block;
        self.carriers[oldest as usize].before = block;
    }

    #[cfg(test)]
    pub fn carriers_of(&self, name: BlockName) -> Vec<u32> {
        let Some(oldest) = self.find(name) else { return Vec::new() };
        let mut ring = vec![oldest];
        while let after = self.carriers[ring[ring.len() - 1] as usize].after
            && after != oldest
        {
            ring.push(after);
        }
        ring
    }
}

/// Passes a name through: it is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct AlreadyHashed(u64);

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

    const NAME: BlockName = BlockName(7);

    #[test]
    fn the_oldest_carrier_answers_for_its_name() {
        let mut names = NameIndex::new(4);
        for block in [2, 0, 3] {
            names.insert(block, NAME);
        }
        assert_eq!(names.carriers_of(NAME), [2, 0, 3]);
        assert_eq!(names.remove(2), Some(NAME));
        assert_eq!(names.find(NAME), Some(0));
        assert_eq!(names.carriers_of(NAME), [0, 3]);
    }

    #[test]
    fn a_younger_carrier_goes_without_changing_who_answers() {
        let mut names = NameIndex::new(4);
        for block in [2, 0, 3] {
            names.insert(block, NAME);
        }
        assert_eq!(names.remove(0), Some(NAME));
        assert_eq!(names.carriers_of(NAME), [2, 3]);
    }

    #[test]
    fn a_name_lasts_until_its_last_carrier_goes() {
        let mut names = NameIndex::new(2);
        names.insert(0, NAME);
        names.insert(1, NAME);
        assert_eq!((names.remove(1), names.find(NAME)), (Some(NAME), Some(0)));
        assert_eq!((names.remove(0), names.find(NAME)), (Some(NAME), None));
        assert_eq!((names.remove(0), names.count()), (None, 0));
    }
}
