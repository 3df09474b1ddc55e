//! A prompt as a chain of token ids.
//!
//! The index walks bytes, or digests of blocks; it does not care what they stand for. A token chain is four bytes for each id,
//! so a block of sixteen tokens is always 64 bytes, and two prompts share a block exactly if they share its tokens.

use std::str::FromStr;

use blake2::digest::consts::U8;
use blake2::{Blake2b, Digest};
use sha2::Sha256;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a token in a chain.
pub const BYTES_PER_ID: usize = 4;

/// Appends ids as bytes, least byte first.
pub fn write_chain(ids: &[u32], out: &mut Vec<u8>) {
    out.reserve(ids.len() * BYTES_PER_ID);
    ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
}

/// Which hash digests the blocks of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainDigest {
    /// Fast; the default.
    #[default]
    Xxh3,
    /// For those whose rules ask for a standard hash.
    Sha256,
    /// Cryptographic too, and faster than SHA-256 without hardware for it.
    Blake2b,
}

/// A word that names no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown digest `{0}`; known: xxh3, sha256, blake2b")]
pub struct UnknownDigest(String);

impl FromStr for ChainDigest {
    type Err = UnknownDigest;

    fn from_str(word: &str) -> Result<ChainDigest, UnknownDigest> {
        match word {
            "xxh3" => Ok(ChainDigest::Xxh3),
            "sha256" => Ok(ChainDigest::Sha256),
            "blake2b" => Ok(ChainDigest::Blake2b),
            _ => Err(UnknownDigest(word.to_owned())),
        }
    }
}

impl ChainDigest {
    /// The digest of one block's bytes. The seed keeps outsiders from making two blocks that look alike.
    pub fn of(self, seed: u64, block: &[u8]) -> u64 {
        let first = |digest: &[u8]| u64::from_le_bytes(digest[..8].try_into().expect("a digest has 8 bytes"));
        match self {
            ChainDigest::Xxh3 => xxh3_64_with_seed(block, seed),
            ChainDigest::Sha256 => {
                first(&Sha256::new().chain_update(seed.to_le_bytes()).chain_update(block).finalize())
            }
            ChainDigest::Blake2b => {
                first(&Blake2b::<U8>::new().chain_update(seed.to_le_bytes()).chain_update(block).finalize())
            }
        }
    }

    /// Appends the digests of the whole blocks in `ids`.
    pub fn write_blocks(self, seed: u64, ids: &[u32], block_tokens: usize, out: &mut Vec<u64>) {
        let mut block = Vec::with_capacity(block_tokens * BYTES_PER_ID);
        for tokens in ids.chunks_exact(block_tokens.max(1)) {
            block.clear();
            write_chain(tokens, &mut block);
            out.push(self.of(seed, &block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_four_bytes_a_token() {
        let mut out = Vec::new();
        write_chain(&[1, 0x0403_0201], &mut out);
        assert_eq!(out, [1, 0, 0, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn blocks_are_alike_exactly_if_their_tokens_are() {
        for word in ["xxh3", "sha256", "blake2b"] {
            let digest: ChainDigest = word.parse().unwrap();
            let blocks = |ids: &[u32]| {
                let mut out = Vec::new();
                digest.write_blocks(7, ids, 2, &mut out);
                out
            };
            assert_eq!(blocks(&[1, 2, 3, 4, 5]).len(), 2, "the rest fills no block");
            assert_eq!(blocks(&[1, 2, 3, 4])[..1], blocks(&[1, 2, 9, 9])[..1]);
            assert_ne!(blocks(&[1, 2, 3, 4])[1], blocks(&[1, 2, 9, 9])[1]);
            assert_ne!(digest.of(1, b"block"), digest.of(2, b"block"));
        }
        assert_eq!("md5".parse::<ChainDigest>(), Err(UnknownDigest("md5".to_owned())));
    }

    /// The first eight bytes of what any other implementation gives.
    #[test]
    fn digests_are_the_standard_ones() {
        let sha = ChainDigest::Sha256.of(u64::from_le_bytes(*b"abcdefgh"), b"ij");
        assert_eq!(sha.to_le_bytes(), [0x72, 0x39, 0x93, 0x61, 0xda, 0x6a, 0x77, 0x54]);
    }
}
