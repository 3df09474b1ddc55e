//! The digest that a walk over bytes computes as it goes, and that feeds compute when an event arrives.
//!
//! XXH3 with a seed of our own, expanded only once: with a seed per process, nobody outside can construct
//! two texts that look alike to the index, and what leaks tells nothing about the text.

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

const SECRET_BYTES: usize = 192;

/// Up to this length XXH3 mixes the seed in as it goes; beyond, it would first expand it into a secret, each time.
const SEEDED_MAX: usize = 240;

/// Digests spans. Both sides of a match must use the same one.
#[derive(Clone)]
pub struct Digester {
    seed: u64,
    secret: [u8; SECRET_BYTES],
}

impl Digester {
    /// A digester for this seed.
    pub fn new(seed: u64) -> Digester {
        let mut secret = [0; SECRET_BYTES];
        let mut state = seed;
        for word in secret.chunks_exact_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mix(state).to_le_bytes());
        }
        Digester { seed, secret }
    }

    /// The digest of one span's bytes.
    #[inline]
    pub fn digest(&self, bytes: &[u8]) -> u64 {
        if bytes.len() <= SEEDED_MAX {
            xxh3_64_with_seed(bytes, self.seed)
        } else {
            xxh3_64_with_secret(bytes, &self.secret)
        }
    }
}

impl Default for Digester {
    fn default() -> Digester {
        Digester::new(0)
    }
}

impl fmt::Debug for Digester {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester(..)")
    }
}

/// Spreads the bits of a word over all of it (SplitMix64's finalizer).
#[inline]
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_give_unrelated_digests() {
        for text in [&b"the same text"[..], &[7; 1_000]] {
            assert_eq!(Digester::new(7).digest(text), Digester::new(7).digest(text));
            assert_ne!(Digester::new(7).digest(text), Digester::new(8).digest(text));
        }
    }
}
