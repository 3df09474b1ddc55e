//! Who holds what, as it was a while ago.
//!
//! A directory of caches that somebody keeps outside the engines: news of what was stored and removed reach it late, in
//! batches, and sometimes not at all. It is the lab's own, so that staleness can be set to the second and seen by itself;
//! what production makes of engine events is in the router.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use warmroute_engine::{BlockName, Memory};

use crate::prompt::Excerpt;

/// One thing that happened to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Blocks can be found.
    Stored(Stored),
    /// One can be found no more.
    Removed(BlockName),
    /// One lies in a slower memory, too.
    Kept(BlockName, Memory),
    /// And does no more.
    Dropped(BlockName, Memory),
    /// None can.
    Cleared,
}

/// Blocks that follow each other in a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// In order.
    pub names: Vec<BlockName>,
    /// The block before the first, if it is not the chain's first.
    pub parent: Option<BlockName>,
    /// What is in them, where somebody wants to know.
    pub content: Excerpt,
}

/// The caches of a fleet, as far as the news have come.
#[derive(Debug, Default)]
pub struct Directory {
    shelves: Vec<Shelf>,
}

/// How often each block is there. Engines keep copies, and a name is gone with its last one.
type Shelf = HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>;

impl Directory {
    /// Nothing is known of so many engines.
    pub fn new(nodes: usize) -> Directory {
        Directory { shelves: (0..nodes).map(|_| Shelf::default()).collect() }
    }

    /// News of one engine.
    pub fn hear(&mut self, node: usize, news: &News) {
        let shelf = &mut self.shelves[node];
        match news {
            News::Stored(stored) => {
                stored.names.iter().for_each(|name| *shelf.entry(name.0).or_insert(0) += 1)
            }
            News::Removed(name) => forget_one(shelf, name.0),
            // It is a directory of what can be used at once.
            News::Kept(..) | News::Dropped(..) => {}
            News::Cleared => shelf.clear(),
        }
    }

    /// How many blocks from its start an engine is believed to hold of a chain.
    pub fn blocks(&self, node: usize, chain: &[BlockName]) -> usize {
        let shelf = &self.shelves[node];
        chain.iter().take_while(|name| shelf.contains_key(&name.0)).count()
    }
}

/// News that were lost can make a removal come without its storing.
fn forget_one(shelf: &mut Shelf, name: u64) {
    if let Some(copies) = shelf.get_mut(&name) {
        *copies -= 1;
        if *copies == 0 {
            shelf.remove(&name);
        }
    }
}

/// Passes a name through: it is a hash already.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlreadyHashed(u64);

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

    fn stored(names: &[u64]) -> News {
        News::Stored(Stored { names: chain(names), ..Stored::default() })
    }

    fn chain(names: &[u64]) -> Vec<BlockName> {
        names.iter().copied().map(BlockName).collect()
    }

    #[test]
    fn a_copy_keeps_its_name_alive_and_a_hole_ends_the_match() {
        let mut directory = Directory::new(2);
        directory.hear(1, &stored(&[1, 2, 3]));
        directory.hear(1, &stored(&[2]));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3, 4])), 3);
        assert_eq!(directory.blocks(0, &chain(&[1, 2, 3, 4])), 0);
        directory.hear(1, &News::Removed(BlockName(2)));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3])), 3);
        directory.hear(1, &News::Removed(BlockName(2)));
        directory.hear(1, &News::Removed(BlockName(9)));
        assert_eq!(directory.blocks(1, &chain(&[1, 2, 3])), 1);
        directory.hear(1, &News::Cleared);
        assert_eq!(directory.blocks(1, &chain(&[1])), 0);
    }
}
