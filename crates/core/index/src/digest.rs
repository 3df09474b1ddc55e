//! The digest of a span's bytes. Lookups compute it as they walk; feeds compute it when an event arrives.
//!
//! The default is XXH3 with a seed per process, expanded once. Without the seed, an attacker cannot construct two
//! texts with the same digest, and a leaked digest reveals nothing about the text. SHA-256 and BLAKE2b, keyed by the
//! same seed, serve sites whose rules require a standard hash. They cost a lookup many times as much.

use std::fmt;

use blake2::Blake2b;
use blake2::digest::consts::U8;
use sha2::{Digest as _, Sha256};
use warmroute_types::{OptionValue, mix};
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

const SECRET_BYTES: usize = 192;

/// Up to this length XXH3 mixes the seed in directly. Beyond it, XXH3 would expand the seed into a secret on each
/// call.
const SEEDED_MAX: usize = 240;

/// The hash function of digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// XXH3: fast, not cryptographic.
    #[default]
    Xxh3,
    /// SHA-256: a standard cryptographic hash.
    Sha256,
    /// BLAKE2b: cryptographic, and faster than SHA-256 on processors without SHA instructions.
    Blake2b,
}

impl OptionValue for Hash {
    const VALUES: &'static [(Hash, &'static str, &'static str)] = &[
        (Hash::Xxh3, "xxh3", "Fast, not cryptographic"),
        (Hash::Sha256, "sha256", "A standard cryptographic hash"),
        (Hash::Blake2b, "blake2b", "Cryptographic, and faster on processors without SHA instructions"),
    ];
}

/// Computes digests of spans. Both sides of a comparison must use the same hash and seed.
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

    /// A keyed hash that others may see, whatever the digests are computed with: it tells nothing about the seed, and only
    /// those who know the seed can compute it.
    pub fn salt(&self, bytes: &[u8]) -> [u8; 16] {
        let keyed = |bytes: &[u8]| {
            let key = Sha256::new().chain_update(b"warmroute salts\0").chain_update(self.seed.to_le_bytes());
            key.chain_update(bytes).finalize()
        };
        let mut salt = [0; 16];
        // Twice, because of one hash a longer text's could be computed without the key.
        salt.copy_from_slice(&keyed(&keyed(bytes))[..16]);
        salt
    }

    /// The first eight bytes of the standard hash of the seed followed by the bytes.
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
    /// Keeps the secret out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_give_unrelated_digests() {
        for &(hash, _, _) in Hash::VALUES {
            for text in [&b"the same text"[..], &[7; 1_000]] {
                let digest = |seed| Digester::new(hash, seed).digest(text);
                assert_eq!(digest(7), digest(7));
                assert_ne!(digest(7), digest(8));
                assert_ne!(digest(7), Digester::new(hash, 7).digest(&text[1..]));
            }
        }
        let salt = |hash, seed| Digester::new(hash, seed).salt(b"a");
        assert_eq!(salt(Hash::Xxh3, 7), salt(Hash::Sha256, 7));
        assert_ne!(salt(Hash::Xxh3, 7), salt(Hash::Xxh3, 8));
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
