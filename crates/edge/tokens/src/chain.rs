//! A prompt as a chain of token ids.
//!
//! The index walks bytes; it does not care what they stand for. A token chain is four bytes for each id, so a block of
//! sixteen tokens is always 64 bytes, and two prompts share a block exactly if they share its tokens. Which hash digests the
//! blocks is the index's business.

/// Bytes of a token in a chain.
pub const BYTES_PER_ID: usize = 4;

/// Appends ids as bytes, least byte first.
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
