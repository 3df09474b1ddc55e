//! The pool compared with a naive list of blocks, and each rule alone.

use proptest::prelude::*;

use super::*;

/// Allocates and names blocks for a chain after its cached prefix.
fn fill(pool: &mut BlockPool, chain: &[BlockName]) -> (Hold, Vec<BlockName>) {
    let (mut hold, mut removed) = (Hold::default(), Vec::new());
    pool.find_chain(chain, &mut hold.spans);
    hold.named = hold.spans.iter().map(Span::len).sum();
    hold.spans.iter().for_each(|&span| pool.hold(span));
    let missing = chain.len() as u32 - hold.named;
    pool.take(missing, |name| removed.push(name));
    hold.nameless = missing;
    let first = hold.named as usize;
    pool.name(&mut hold, &chain[first..]);
    (hold, removed)
}

fn chain(names: impl IntoIterator<Item = u64>) -> Vec<BlockName> {
    names.into_iter().map(BlockName).collect()
}

#[test]
fn the_tail_of_a_chain_is_evicted_before_its_head() {
    let mut pool = BlockPool::new(3);
    let (mut hold, removed) = fill(&mut pool, &chain([20, 21, 90]));
    assert!(removed.is_empty());
    pool.release(&mut hold);
    assert_eq!(fill(&mut pool, &chain([40, 41, 42])).1, chain([90, 21, 20]));
    assert_eq!(pool.free(), 0);
}

#[test]
fn the_least_recently_used_chain_is_evicted_first() {
    let mut pool = BlockPool::new(2);
    let (mut first, mut second) = (fill(&mut pool, &chain([1])).0, fill(&mut pool, &chain([2])).0);
    pool.release(&mut first);
    pool.release(&mut second);
    let (mut hit, removed) = fill(&mut pool, &chain([1]));
    assert!(removed.is_empty(), "it was still cached");
    pool.release(&mut hit);
    assert_eq!(fill(&mut pool, &chain([77, 78])).1, chain([2, 1]));
}

#[test]
fn a_block_without_a_name_is_taken_before_a_cached_one() {
    let mut pool = BlockPool::new(3);
    let (mut hold, _) = fill(&mut pool, &chain([1, 2]));
    pool.take(1, |_| {});
    hold.nameless = 1;
    pool.release(&mut hold);
    assert_eq!(fill(&mut pool, &chain([50, 51])).1, chain([2]), "one was free and had no name");
}

#[test]
fn a_block_is_free_when_its_last_holder_releases_it() {
    let mut pool = BlockPool::new(2);
    let (mut first, mut second) = (fill(&mut pool, &chain([1, 2])).0, fill(&mut pool, &chain([1])).0);
    pool.release(&mut first);
    assert_eq!((pool.free(), pool.used()), (1, 1));
    pool.release(&mut second);
    assert_eq!((pool.free(), pool.used()), (2, 0));
    pool.check(std::iter::empty::<&Hold>());
}

#[test]
fn a_block_that_is_hit_repeatedly_does_not_fill_the_log() {
    let mut pool = BlockPool::new(8);
    for _ in 0..10_000 {
        let (mut hold, _) = fill(&mut pool, &chain([1, 2, 3]));
        pool.release(&mut hold);
    }
    assert!(pool.log.len() <= LOG_MIN + 1, "{}", pool.log.len());
    pool.check(std::iter::empty::<&Hold>());
}

/// The same cache as a plain list of blocks.
struct Naive {
    blocks: Vec<NaiveBlock>,
    /// Free blocks in the order of allocation.
    free: Vec<usize>,
    namings: u64,
}

#[derive(Clone)]
struct NaiveBlock {
    name: Option<BlockName>,
    holders: u32,
    born: u64,
}

impl Naive {
    fn new(blocks: usize) -> Naive {
        let blank = NaiveBlock { name: None, holders: 0, born: 0 };
        Naive { blocks: vec![blank; blocks], free: (0..blocks).collect(), namings: 0 }
    }

    fn find(&self, name: BlockName) -> Option<usize> {
        let carriers = (0..self.blocks.len()).filter(|&block| self.blocks[block].name == Some(name));
        carriers.min_by_key(|&block| self.blocks[block].born)
    }

    fn fill(&mut self, chain: &[BlockName]) -> (Vec<usize>, Vec<BlockName>) {
        let mut held: Vec<usize> = chain.iter().map_while(|&name| self.find(name)).collect();
        for &block in &held {
            self.free.retain(|&free| free != block);
            self.blocks[block].holders += 1;
        }
        let mut removed = Vec::new();
        let fresh: Vec<usize> = self.free.drain(..chain.len() - held.len()).collect();
        for (&block, &name) in fresh.iter().zip(&chain[held.len()..]) {
            self.namings += 1;
            removed.extend(self.blocks[block].name);
            self.blocks[block] = NaiveBlock { name: Some(name), holders: 1, born: self.namings };
        }
        held.extend(fresh);
        (held, removed)
    }

    fn release(&mut self, held: &[usize]) {
        for &block in held.iter().rev() {
            self.blocks[block].holders -= 1;
            if self.blocks[block].holders == 0 {
                self.free.push(block);
            }
        }
    }
}

/// A chain that shares its beginning with others: names in groups of sixteen and more, some across a page.
fn any_chain() -> impl Strategy<Value = Vec<BlockName>> {
    let row = (prop_oneof![Just(0_u64), Just(100), Just(1_000), Just(5_003)], 1_u64..24);
    prop::collection::vec(row, 1..4).prop_map(|rows| {
        let names = rows.iter().scan(0_u64, |path, &(row, count)| {
            // The same group after another beginning is another text.
            *path = path.wrapping_mul(7).wrapping_add(row * 64);
            Some((*path..*path + count).map(BlockName).collect::<Vec<_>>())
        });
        let mut names: Vec<BlockName> = names.flatten().collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_pool_behaves_like_a_list_of_blocks(
        acts in prop::collection::vec((any_chain(), 0_usize..6), 1..60),
        blocks in 80_u32..200,
    ) {
        let (mut pool, mut naive) = (BlockPool::new(blocks), Naive::new(blocks as usize));
        let mut holds: Vec<(Hold, Vec<usize>)> = Vec::new();
        for (chain, nth) in acts {
            if chain.len() as u32 <= pool.free() {
                let (hold, removed) = fill(&mut pool, &chain);
                let (held, naively_removed) = naive.fill(&chain);
                prop_assert_eq!(removed, naively_removed);
                holds.push((hold, held));
            }
            if nth < holds.len() {
                let (mut hold, held) = holds.remove(nth);
                pool.release(&mut hold);
                naive.release(&held);
            }
            prop_assert_eq!(pool.free() as usize, naive.free.len());
            prop_assert_eq!(pool.named() as usize, naive.blocks.iter().filter(|block| block.name.is_some()).count());
            pool.check(holds.iter().map(|(hold, _)| hold));
        }
    }
}
