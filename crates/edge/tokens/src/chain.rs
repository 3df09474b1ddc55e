//! A prompt as a chain of token ids.
//!
//! The index compares bytes, whatever they stand for. A token chain has four bytes for each id, so a block of sixteen
//! tokens is always 64 bytes, and two prompts share a block exactly if they share its tokens. The index chooses the
//! hash of the blocks.

/// Bytes of a token in a chain.
pub const BYTES_PER_ID: usize = 4;

/// Appends ids as little-endian bytes.
pub fn write_chain(ids: &[u32], out: &mut Vec<u8>) {
    out.reserve(ids.len() * BYTES_PER_ID);
    ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
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
}
