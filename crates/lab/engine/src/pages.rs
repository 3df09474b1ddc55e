//! The map from pages of names to their leaves.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::BlockName;
use crate::leaf::{Leaf, NONE, SLOTS};

/// All leaves, by number and by page.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// The first created leaf of each page.
    oldest: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>,
    pub leaves: Vec<Leaf>,
    vacant: Vec<u32>,
}

impl Pages {
    /// The leaf of the oldest block with this name.
    pub fn find(&self, name: BlockName) -> Option<u32> {
        let head = *self.oldest.get(&(name.0 / SLOTS))?;
        self.oldest_of(head, (name.0 % SLOTS) as u8)
    }

    /// The same for another slot of a page whose first leaf is known. Leaves are ordered by creation and cannot have
    /// filled a slot earlier, so the walk nearly always ends at the first.
    pub fn oldest_of(&self, head: u32, slot: u8) -> Option<u32> {
        let (mut best, mut at) = (None, head);
        loop {
            let leaf = &self.leaves[at as usize];
            let born = leaf.born[usize::from(slot)];
            if leaf.has(slot) && best.is_none_or(|(oldest, _)| born < oldest) {
                best = Some((born, at));
            }
            at = leaf.after;
            let is_settled = best.is_some_and(|(oldest, _)| self.leaves[at as usize].created >= oldest);
            if at == head || is_settled {
                return best.map(|(_, leaf)| leaf);
            }
        }
    }

    /// The first leaf of a page.
    pub fn head(&self, page: u64) -> Option<u32> {
        self.oldest.get(&page).copied()
    }

    /// Adds an empty leaf to a page.
    pub fn open(&mut self, page: u64, created: u32) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.leaves.push(Leaf::blank());
            (self.leaves.len() - 1) as u32
        });
        let head = *self.oldest.entry(page).or_insert(number);
        let last = if head == number { number } else { self.leaves[head as usize].before };
        let leaf = &mut self.leaves[number as usize];
        (leaf.page, leaf.created) = (page, created);
        (leaf.before, leaf.after) = (last, head);
        self.leaves[last as usize].after = number;
        self.leaves[head as usize].before = number;
        number
    }

    /// Removes a leaf without blocks.
    pub fn close(&mut self, number: u32) {
        let leaf = &mut self.leaves[number as usize];
        let (page, before, after) = (leaf.page, leaf.before, leaf.after);
        (leaf.before, leaf.after) = (NONE, NONE);
        self.vacant.push(number);
        if after == number {
            self.oldest.remove(&page);
            return;
        }
        self.leaves[before as usize].after = after;
        self.leaves[after as usize].before = before;
        self.oldest.entry(page).and_modify(|head| *head = if *head == number { after } else { *head });
    }

    /// Every name that a block has, once.
    pub fn names(&self) -> impl Iterator<Item = BlockName> {
        self.oldest.iter().flat_map(move |(&page, &head)| {
            let names = (0..SLOTS as u8).map(move |slot| (slot, BlockName(page * SLOTS + u64::from(slot))));
            names.filter(move |(slot, _)| self.oldest_of(head, *slot).is_some()).map(|(_, name)| name)
        })
    }

    /// Removes every leaf, but keeps their clocks.
    pub fn clear(&mut self) {
        self.oldest.clear();
        self.vacant = (0..self.leaves.len() as u32).rev().collect();
        for leaf in &mut self.leaves {
            let clock = leaf.clock;
            *leaf = Leaf { clock, ..Leaf::blank() };
        }
    }
}

/// A hasher that returns the page: its names are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, page: u64) {
        // The table uses the highest bits too, and a page has four zeros there.
        self.0 = page.rotate_left(4) ^ page;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a page is hashed as one u64");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::Span;

    fn filled(pages: &mut Pages, page: u64, slots: &[(u8, u32)]) -> u32 {
        let leaf = pages.open(page, slots[0].1);
        for &(slot, born) in slots {
            pages.leaves[leaf as usize].fill(Span { leaf, from: slot, to: slot + 1 }, born);
        }
        leaf
    }

    #[test]
    fn the_oldest_block_answers_for_its_name_whichever_leaf_was_there_first() {
        let mut pages = Pages::default();
        let first = filled(&mut pages, 5, &[(0, 1), (1, 1), (2, 9)]);
        let second = filled(&mut pages, 5, &[(0, 4), (1, 4), (2, 4), (3, 4)]);
        let find = |pages: &Pages, slot: u64| pages.find(BlockName(5 * SLOTS + slot));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|slot| find(&pages, slot)),
            [Some(first), Some(first), Some(second), Some(second), None]
        );
        pages.leaves[first as usize].empty(0);
        assert_eq!(find(&pages, 0), Some(second));
        assert_eq!(pages.names().count(), 4);
    }

    #[test]
    fn leaves_leave_from_anywhere_and_are_used_again() {
        let mut pages = Pages::default();
        let leaves = [1, 2, 3].map(|born| filled(&mut pages, 7, &[(3, born)]));
        let name = BlockName(7 * SLOTS + 3);
        pages.leaves[leaves[1] as usize].empty(3);
        pages.close(leaves[1]);
        assert_eq!(pages.find(name), Some(leaves[0]));
        pages.leaves[leaves[0] as usize].empty(3);
        pages.close(leaves[0]);
        assert_eq!(pages.find(name), Some(leaves[2]));
        pages.leaves[leaves[2] as usize].empty(3);
        pages.close(leaves[2]);
        assert_eq!(pages.find(name), None);
        filled(&mut pages, 8, &[(0, 9)]);
        assert_eq!(pages.leaves.len(), 3);
    }
}
