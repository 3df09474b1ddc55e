//! Which block carries which name.
//!
//! Engines do not deduplicate: two sequences that fill the same block at the same time both keep theirs, under one
//! name. So a name leads to a ring of blocks, threaded through the blocks, oldest first; a hot prompt can leave thousands
//! of copies of its last block, and each must go in constant time.
//!
//! Names that differ only in their last four bits lie on one page. Whoever counts along a chain in those bits, as the
//! simulator does, has sixteen blocks found, stored and evicted for one look into the table; other names have a page each.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::BlockName;
use crate::block::{Block, NONE};

/// Names on a page.
const PAGE: u64 = 16;

/// Blocks by name and names by block.
#[derive(Clone, Debug)]
pub struct NameIndex {
    numbers: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>,
    pages: Vec<Page>,
    vacant: Vec<u32>,
    /// The page that was used last: most often it is the one that is wanted next.
    last: (u64, u32),
    count: u32,
}

/// The oldest carrier of each of sixteen names.
#[derive(Clone, Copy, Debug)]
struct Page {
    oldest: [u32; PAGE as usize],
    /// Names that have one.
    used: u32,
}

const BLANK: Page = Page { oldest: [NONE; PAGE as usize], used: 0 };
/// No name lies on this page: it is beyond the last.
const NOWHERE: (u64, u32) = (u64::MAX, NONE);

impl NameIndex {
    /// No block has a name.
    pub fn new() -> NameIndex {
        NameIndex {
            numbers: HashMap::default(),
            pages: Vec::new(),
            vacant: Vec::new(),
            last: NOWHERE,
            count: 0,
        }
    }

    /// How many blocks have a name.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The block that has carried this name longest.
    #[cfg(test)]
    pub fn find(&self, name: BlockName) -> Option<u32> {
        let number = *self.numbers.get(&(name.0 / PAGE))?;
        self.pages[number as usize].carrier(name)
    }

    /// The oldest carriers of a chain of names, as far as each has one.
    pub fn find_chain<'a>(&'a self, chain: &'a [BlockName]) -> impl Iterator<Item = u32> + 'a {
        let (mut at, mut page) = NOWHERE;
        chain.iter().map_while(move |&name| {
            if name.0 / PAGE != at {
                at = name.0 / PAGE;
                page = *self.numbers.get(&at)?;
            }
            self.pages[page as usize].carrier(name)
        })
    }

    /// Every name, once.
    pub fn all(&self) -> impl Iterator<Item = BlockName> {
        self.numbers.iter().flat_map(move |(&at, &number)| {
            let names = (0..PAGE).map(move |low| BlockName(at * PAGE + low));
            names.filter(move |&name| self.pages[number as usize].carrier(name).is_some())
        })
    }

    /// Names a block that has no name.
    pub fn insert(&mut self, blocks: &mut [Block], block: u32, name: BlockName) {
        let oldest = self.page_for(name).oldest_or(name, block);
        let own = &mut blocks[block as usize];
        (own.name, own.twin_before, own.twin_after) = (name, block, block);
        self.count += 1;
        if oldest != block {
            link_before(blocks, block, oldest);
        }
    }

    /// Takes a block's name away, if it has one.
    pub fn remove(&mut self, blocks: &mut [Block], block: u32) -> Option<BlockName> {
        let own = &mut blocks[block as usize];
        let name = own.name()?;
        let (before, after) = (own.twin_before, own.twin_after);
        own.forget_name();
        self.count -= 1;
        let page = self.page_for(name);
        if after == block {
            page.forget(name);
            if page.used == 0 {
                self.close_page(name);
            }
            return Some(name);
        }
        page.replace(name, block, after);
        blocks[before as usize].twin_after = after;
        blocks[after as usize].twin_before = before;
        Some(name)
    }

    /// Takes every name away.
    pub fn clear(&mut self, blocks: &mut [Block]) {
        self.numbers.clear();
        self.pages.clear();
        self.vacant.clear();
        self.last = NOWHERE;
        blocks.iter_mut().for_each(Block::forget_name);
        self.count = 0;
    }

    /// The page of a name, opened if need be.
    fn page_for(&mut self, name: BlockName) -> &mut Page {
        let at = name.0 / PAGE;
        if self.last.0 != at {
            let (vacant, pages) = (&mut self.vacant, &mut self.pages);
            let number = *self.numbers.entry(at).or_insert_with(|| {
                vacant.pop().unwrap_or_else(|| {
                    pages.push(BLANK);
                    (pages.len() - 1) as u32
                })
            });
            self.last = (at, number);
        }
        &mut self.pages[self.last.1 as usize]
    }

    /// Gives back a page that has no name left; it is the one used last.
    fn close_page(&mut self, name: BlockName) {
        self.numbers.remove(&(name.0 / PAGE));
        self.vacant.push(self.last.1);
        self.last = NOWHERE;
    }

    #[cfg(test)]
    pub fn carriers_of(&self, blocks: &[Block], name: BlockName) -> Vec<u32> {
        let Some(oldest) = self.find(name) else { return Vec::new() };
        let next = |&block: &u32| Some(blocks[block as usize].twin_after).filter(|&after| after != oldest);
        std::iter::successors(Some(oldest), next).collect()
    }
}

/// Joins the ring at its end, which is just before its oldest.
fn link_before(blocks: &mut [Block], block: u32, oldest: u32) {
    let newest = blocks[oldest as usize].twin_before;
    blocks[block as usize].twin_before = newest;
    blocks[block as usize].twin_after = oldest;
    blocks[newest as usize].twin_after = block;
    blocks[oldest as usize].twin_before = block;
}

impl Page {
    fn carrier(&self, name: BlockName) -> Option<u32> {
        Some(self.oldest[(name.0 % PAGE) as usize]).filter(|&block| block != NONE)
    }

    /// The name's oldest carrier, which is `block` if it has none yet.
    fn oldest_or(&mut self, name: BlockName, block: u32) -> u32 {
        let oldest = &mut self.oldest[(name.0 % PAGE) as usize];
        if *oldest == NONE {
            *oldest = block;
            self.used += 1;
        }
        *oldest
    }

    fn forget(&mut self, name: BlockName) {
        self.oldest[(name.0 % PAGE) as usize] = NONE;
        self.used -= 1;
    }

    /// If `block` was the oldest, `next` is from now on.
    fn replace(&mut self, name: BlockName, block: u32, next: u32) {
        let oldest = &mut self.oldest[(name.0 % PAGE) as usize];
        if *oldest == block {
            *oldest = next;
        }
    }
}

/// Passes a page's address through: the names on it are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, address: u64) {
        // The table looks at the highest bits too, and an address has four zeros there.
        self.0 = address.rotate_left(4) ^ address;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a page's address is hashed as one u64");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::blank;

    const NAME: BlockName = BlockName(7);

    #[test]
    fn names_on_one_page_do_not_mix_and_an_empty_page_is_used_again() {
        let (mut names, mut blocks) = (NameIndex::new(), blank(40));
        let name = |n: u32| BlockName(u64::from(n) + 5);
        (0..40).for_each(|block| names.insert(&mut blocks, block, name(block)));
        assert!((0..40).all(|block| names.find(name(block)) == Some(block)));
        let chain: Vec<BlockName> = (0..45).map(name).collect();
        assert_eq!(names.find_chain(&chain).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        assert_eq!(names.all().count(), 40);
        (0..40).for_each(|block| assert_eq!(names.remove(&mut blocks, block), Some(name(block))));
        assert_eq!((names.numbers.len(), names.vacant.len()), (0, names.pages.len()));
        names.insert(&mut blocks, 3, name(100));
        assert_eq!((names.find(name(100)), names.find(name(3))), (Some(3), None));
    }

    #[test]
    fn the_oldest_carrier_answers_for_its_name() {
        let (mut names, mut blocks) = (NameIndex::new(), blank(4));
        for block in [2, 0, 3] {
            names.insert(&mut blocks, block, NAME);
        }
        assert_eq!(names.carriers_of(&blocks, NAME), [2, 0, 3]);
        assert_eq!(names.remove(&mut blocks, 2), Some(NAME));
        assert_eq!(names.find(NAME), Some(0));
        assert_eq!(names.carriers_of(&blocks, NAME), [0, 3]);
    }

    #[test]
    fn a_younger_carrier_goes_without_changing_who_answers() {
        let (mut names, mut blocks) = (NameIndex::new(), blank(4));
        for block in [2, 0, 3] {
            names.insert(&mut blocks, block, NAME);
        }
        assert_eq!(names.remove(&mut blocks, 0), Some(NAME));
        assert_eq!(names.carriers_of(&blocks, NAME), [2, 3]);
    }

    #[test]
    fn a_name_lasts_until_its_last_carrier_goes() {
        let (mut names, mut blocks) = (NameIndex::new(), blank(2));
        names.insert(&mut blocks, 0, NAME);
        names.insert(&mut blocks, 1, NAME);
        assert_eq!((names.remove(&mut blocks, 1), names.find(NAME)), (Some(NAME), Some(0)));
        assert_eq!((names.remove(&mut blocks, 0), names.find(NAME)), (Some(NAME), None));
        assert_eq!((names.remove(&mut blocks, 0), names.count()), (None, 0));
    }
}
