//! Belady's cache, which knows the future: it evicts the block whose next use is farthest.
//!
//! A block's name covers everything up to its end, so using a block uses all before it. Evicting the farthest
//! next use, the deepest of equals first, never leaves a block without its predecessors. A block without a
//! next use is not kept.

use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use super::access::Access;
use crate::directory::AlreadyHashed;

type Table<T> = HashMap<u64, T, BuildHasherDefault<AlreadyHashed>>;

const NEVER: u32 = u32::MAX;

/// Prompt blocks that each request finds.
pub fn hits(accesses: &[Access], capacity: usize) -> Vec<u32> {
    let next_uses = next_uses(accesses);
    let mut cache = Cache { next_use: Table::default(), farthest: BinaryHeap::new() };
    accesses
        .iter()
        .zip(&next_uses)
        .map(|(access, next_uses)| {
            let prompt = access.chain[..access.usable as usize].iter();
            let found = prompt.take_while(|name| cache.next_use.contains_key(&name.0)).count();
            for (depth, (name, &next_use)) in access.chain.iter().zip(next_uses).enumerate() {
                cache.use_again(name.0, next_use, depth as u32);
            }
            cache.shrink(capacity);
            found as u32
        })
        .collect()
}

/// Next request that uses each block, per request and block.
fn next_uses(accesses: &[Access]) -> Vec<Vec<u32>> {
    let mut next: Table<u32> = Table::default();
    let mut all = vec![Vec::new(); accesses.len()];
    for (number, access) in accesses.iter().enumerate().rev() {
        all[number] = access.chain.iter().map(|name| next.get(&name.0).copied().unwrap_or(NEVER)).collect();
        next.extend(access.chain[..access.usable as usize].iter().map(|name| (name.0, number as u32)));
    }
    all
}

struct Cache {
    next_use: Table<u32>,
    /// May hold outdated entries, which are skipped.
    farthest: BinaryHeap<(u32, u32, u64)>,
}

impl Cache {
    fn use_again(&mut self, name: u64, next_use: u32, depth: u32) {
        if next_use == NEVER {
            self.next_use.remove(&name);
        } else {
            self.next_use.insert(name, next_use);
            self.farthest.push((next_use, depth, name));
        }
    }

    fn shrink(&mut self, capacity: usize) {
        while self.next_use.len() > capacity {
            let Some((next_use, _, name)) = self.farthest.pop() else { return };
            if self.next_use.get(&name) == Some(&next_use) {
                self.next_use.remove(&name);
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use warmroute_engine::BlockName;
    use warmroute_types::Micros;

    pub fn access(names: &[u64]) -> Access {
        Access {
            asked: Micros::ZERO,
            prompt_tokens: names.len() as u32 * 16 + 1,
            usable: names.len() as u32,
            chain: names.iter().copied().map(BlockName).collect(),
            infinite_hits: 0,
            ttft: Micros::ZERO,
            e2e: Micros::ZERO,
        }
    }

    #[test]
    fn the_blocks_used_soonest_are_kept() {
        let accesses = [access(&[1, 2]), access(&[3]), access(&[3]), access(&[1, 2])];
        assert_eq!(hits(&accesses, 3), [0, 0, 1, 2]);
        assert_eq!(hits(&accesses, 2), [0, 0, 1, 1], "the deepest of equals goes");
        assert_eq!(hits(&accesses, 1), [0, 0, 1, 0], "the nearest use stays");
        assert_eq!(hits(&accesses, 0), [0, 0, 0, 0]);
    }
}
