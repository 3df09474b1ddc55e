//! The hash of the index's tables: keyed, so that names cannot be chosen to collide.
//!
//! Engines choose the names of blocks, and clients choose texts and salts. With a hash that anyone can compute, 20,000
//! chosen names fill one run of a table, and each store walks that run. The hash is therefore a random member of a
//! universal family (multiply, add, shift: Dietzfelbinger 1996), where any two names collide with the probability of
//! two random numbers, whatever the names. A fixed mix then spreads names that lie at equal distances.

use std::hash::{BuildHasher, Hasher};

use warmroute_types::mix;

/// A hash function drawn by a seed.
#[derive(Clone, Copy)]
pub struct TableHash {
    factor: u128,
    addend: u128,
}

impl TableHash {
    /// The function of this seed.
    pub(crate) fn new(seed: u64) -> TableHash {
        let mut state = seed;
        let mut word = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            u128::from(mix(state))
        };
        TableHash { factor: word() << 64 | word(), addend: word() << 64 | word() }
    }

    /// The hash of a number.
    #[inline]
    pub(crate) fn of(self, number: u64) -> u64 {
        let product = self.factor.wrapping_mul(u128::from(number)).wrapping_add(self.addend);
        mix((product >> 64) as u64)
    }
}

impl BuildHasher for TableHash {
    type Hasher = NumberHasher;

    #[inline]
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher { hash: *self, state: 0 }
    }
}

/// Hashes a number, or a small tuple of numbers.
pub struct NumberHasher {
    hash: TableHash,
    state: u64,
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.state = self.hash.of(self.state.wrapping_add(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_collide_under_one_seed_do_not_under_another() {
        let (known, secret) = (TableHash::new(1), TableHash::new(2));
        let low = |hash: TableHash, name: u64| hash.of(name) >> 48;
        let chosen: Vec<u64> = (0..4_000_000).filter(|&name| low(known, name) == 7).collect();
        assert!(chosen.len() > 30);
        let mut places: Vec<u64> = chosen.iter().map(|&name| low(secret, name)).collect();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() + 2 >= chosen.len(), "{} of {}", places.len(), chosen.len());
    }

    #[test]
    fn names_at_equal_distances_spread() {
        for step in [1, 64, 1 << 20, 1 << 32, 0x9e37_79b9_7f4a_7c15] {
            let hash = TableHash::new(3);
            let mut places = [0_u32; 1 << 10];
            (0..1 << 16).for_each(|i: u64| places[(hash.of(i.wrapping_mul(step)) >> 54) as usize] += 1);
            let most = places.iter().max();
            assert!(most < Some(&128), "{step}: {most:?}");
        }
    }
}
