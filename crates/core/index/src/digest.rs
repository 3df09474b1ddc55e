//! The digest that a walk over bytes computes as it goes, and that feeds compute when an event arrives.
//!
//! XXH3 with a seed of our own, expanded only once: with a seed per process, nobody outside can construct
//! two texts that look alike to the index, and what leaks tells nothing about the text. Where rules ask for a standard hash
//! there are SHA-256 and BLAKE2b, keyed by the same seed; they cost a walk many times as much.

use std::fmt;
use std::str::FromStr;

use blake2::Blake2b;
use blake2::digest::consts::U8;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

const SECRET_BYTES: usize = 192;

/// Up to this length XXH3 mixes the seed in as it goes; beyond, it would first expand it into a secret, each time.
const SEEDED_MAX: usize = 240;

/// Which hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// Fast; the default.
    #[default]
    Xxh3,
    /// The standard one.
    Sha256,
    /// Cryptographic too, and faster without hardware for SHA.
    Blake2b,
}

/// A word that names no hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown hash `{0}`; known: xxh3, sha256, blake2b")]
pub struct UnknownHash(String);

impl FromStr for Hash {
    type Err = UnknownHash;

    fn from_str(word: &str) -> Result<Hash, UnknownHash> {
        match word {
            "xxh3" => Ok(Hash::Xxh3),
            "sha256" => Ok(Hash::Sha256),
            "blake2b" => Ok(Hash::Blake2b),
            _ => Err(UnknownHash(word.to_owned())),
        }
    }
}

/// Digests spans. Both sides of a match must use the same one.
#[derive(Clone)]
pub struct Digester {
    hash: Hash,
    seed: u64,
    secret: [u8; SECRET_BYTES],
}

impl Digester {
    /// A digester with this hash and seed.
    pub fn new(hash: Hash, seed: u64) -> Digester {
        let mut secret = [0; SECRET_BYTES];
        let mut state = seed;
        for word in secret.chunks_exact_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mix(state).to_le_bytes());
        }
        Digester { hash, seed, secret }
    }

    /// The digest of one span's bytes.
    #[inline]
    pub fn digest(&self, bytes: &[u8]) -> u64 {
        match self.hash {
            Hash::Xxh3 if bytes.len() <= SEEDED_MAX => xxh3_64_with_seed(bytes, self.seed),
            Hash::Xxh3 => xxh3_64_with_secret(bytes, &self.secret),
            Hash::Sha256 | Hash::Blake2b => self.standard(bytes),
        }
    }

    /// The first eight bytes of what any other implementation gives for the seed and the bytes after it.
    #[cold]
    fn standard(&self, bytes: &[u8]) -> u64 {
        let seed = self.seed.to_le_bytes();
        let mut first = [0; 8];
        if self.hash == Hash::Sha256 {
            first.copy_from_slice(&Sha256::new().chain_update(seed).chain_update(bytes).finalize()[..8]);
        } else {
            first.copy_from_slice(&Blake2b::<U8>::new().chain_update(seed).chain_update(bytes).finalize());
        }
        u64::from_le_bytes(first)
    }
}

impl Default for Digester {
    fn default() -> Digester {
        Digester::new(Hash::Xxh3, 0)
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
        for hash in ["xxh3", "sha256", "blake2b"].map(|word| word.parse().unwrap()) {
            for text in [&b"the same text"[..], &[7; 1_000]] {
                let digest = |seed| Digester::new(hash, seed).digest(text);
                assert_eq!(digest(7), digest(7));
                assert_ne!(digest(7), digest(8));
                assert_ne!(digest(7), Digester::new(hash, 7).digest(&text[1..]));
            }
        }
        assert_eq!("md5".parse::<Hash>(), Err(UnknownHash("md5".to_owned())));
    }

    #[test]
    fn standard_hashes_are_the_standard_ones() {
        let sha = Digester::new(Hash::Sha256, u64::from_le_bytes(*b"abcdefgh")).digest(b"ij");
        assert_eq!(sha.to_le_bytes(), [0x72, 0x39, 0x93, 0x61, 0xda, 0x6a, 0x77, 0x54]);
        let blake = Digester::new(Hash::Blake2b, u64::from_le_bytes(*b"abcdefgh")).digest(b"ij");
        assert_eq!(blake.to_le_bytes(), BLAKE);
    }

    /// `hashlib.blake2b(b"abcdefghij", digest_size=8)`
    const BLAKE: [u8; 8] = [0x21, 0xbb, 0xf0, 0xce, 0xda, 0xa5, 0x73, 0x38];
}
