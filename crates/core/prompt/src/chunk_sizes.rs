//! Chunk sizes of a prompt: short chunks first, longer ones later.
//!
//! A prompt of a million tokens is four megabytes: 16,384 digests in chunks of 256 bytes, about 2,200 in
//! growing chunks. A match ends at a whole chunk, so it is too short by at most 1/128 of its length.
//!
//! ```text
//!   chunks      0..512   512..1,408   1,408..
//!   each        1 unit   4 units      16 units      (unit: 256 bytes)
//!   from byte   0        128 Ki       1 Mi
//! ```

/// Chunk sizes, as multiples of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    unit: u32,
}

/// First chunk, and units per chunk from there on.
const GROWTH: [(u64, u64); 3] = [(0, 1), (512, 4), (1_408, 16)];

/// Version of [`GROWTH`]; must change with it.
const GROWTH_VERSION: u32 = 1;

impl ChunkSizes {
    /// Sizes with a unit of this many bytes, at least one.
    pub const fn of_unit(unit: u32) -> ChunkSizes {
        ChunkSizes { unit: if unit == 0 { 1 } else { unit } }
    }

    /// Identifies the chunk sizes. Digests of differently cut prompts cannot be compared, so this is part of
    /// their namespace.
    pub const fn identity(self) -> u32 {
        self.unit | GROWTH_VERSION << 24
    }

    /// Bytes of the chunk with this number.
    pub fn bytes_of(self, chunk: usize) -> u32 {
        let units =
            GROWTH.iter().rev().find(|(from, _)| chunk as u64 >= *from).map_or(1, |(_, units)| *units);
        self.unit.saturating_mul(units as u32)
    }

    /// Total bytes of the first `chunks` chunks.
    pub fn bytes_before(self, chunks: usize) -> u64 {
        let stretch = |at: usize| {
            let until = GROWTH.get(at + 1).map_or(u64::MAX, |(from, _)| *from);
            (chunks as u64).min(until).saturating_sub(GROWTH[at].0).saturating_mul(GROWTH[at].1)
        };
        (0..GROWTH.len()).map(stretch).sum::<u64>().saturating_mul(self.unit.into())
    }

    /// Number of whole chunks in this many bytes.
    pub fn whole(self, bytes: u64) -> usize {
        let (mut chunks, mut left) = (0, bytes / u64::from(self.unit));
        for (at, (from, units)) in GROWTH.iter().enumerate() {
            let most = GROWTH.get(at + 1).map_or(u64::MAX, |(next, _)| next - from);
            let here = (left / units).min(most);
            chunks += here;
            left -= here * units;
            if here < most {
                break;
            }
        }
        chunks as usize
    }

    /// Whole chunks of a text.
    pub fn cut(self, text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut rest = text;
        (0..).map_while(move |chunk| {
            let (first, after) = rest.split_at_checked(self.bytes_of(chunk) as usize)?;
            rest = after;
            Some(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_tokens_are_about_two_thousand_chunks() {
        let sizes = ChunkSizes::of_unit(256);
        assert_eq!(sizes.whole(1_000), 3);
        assert_eq!((sizes.whole(128 << 10), sizes.whole(1 << 20), sizes.whole(4 << 20)), (512, 1_408, 2_176));
        assert_eq!((sizes.bytes_of(511), sizes.bytes_of(512), sizes.bytes_of(9_999)), (256, 1_024, 4_096));
    }

    proptest! {
        #[test]
        fn counting_adding_and_cutting_agree(unit in 1_u32..9, bytes in 0_usize..60_000) {
            let sizes = ChunkSizes::of_unit(unit);
            let text = vec![7; bytes];
            let lengths: Vec<usize> = sizes.cut(&text).map(<[u8]>::len).collect();
            prop_assert_eq!(lengths.len(), sizes.whole(bytes as u64));
            prop_assert_eq!(lengths.iter().sum::<usize>() as u64, sizes.bytes_before(lengths.len()));
            let next = u64::from(sizes.bytes_of(lengths.len()));
            prop_assert!(sizes.bytes_before(lengths.len()) + next > bytes as u64, "only whole ones, and all of them");
        }

        #[test]
        fn a_match_is_too_short_by_at_most_a_chunk_of_its_length(bytes in 0_u64..(64 << 20)) {
            let sizes = ChunkSizes::of_unit(256);
            let lost = bytes - sizes.bytes_before(sizes.whole(bytes));
            prop_assert!(lost < 256.max(bytes / 128 + 1), "{lost} of {bytes}");
        }
    }
}
