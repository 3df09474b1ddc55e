//! Bit positions of holders: which of the possible ids are in use, and which bit stands for each.
//!
//! A caller may give one engine several ids, one for each kind of knowledge (certain, possible, by tier), far apart
//! from each other. A bit set indexed by id would be mostly zeroes. So each block of 64 consecutive ids gets a word
//! when the first of its ids is used, and lookups visit only words in use. Inside the index a holder is its
//! *position*: the word times 64 plus the bit. Words are never returned.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use warmroute_types::MAX_WORKERS;

use crate::holder_id::HolderId;

/// Holder ids that an index accepts: three for each worker of the largest fleet.
pub const HOLDERS_MAX: usize = 3 * MAX_WORKERS;

/// Words in a set of [`HOLDERS_MAX`] holders.
pub(crate) const WORDS_MAX: usize = HOLDERS_MAX / 64;

const NO_WORD: u8 = u8::MAX;

/// A holder's position: the bit that stands for it in every mask and set of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct HolderPosition(pub u16);

impl HolderPosition {
    /// The position of a bit of a word.
    #[inline]
    pub fn at(word: usize, bit: u32) -> HolderPosition {
        HolderPosition(word as u16 * 64 + bit as u16)
    }

    /// The position as an index of arrays.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The word that contains the bit.
    #[inline]
    pub fn word(self) -> usize {
        self.index() / 64
    }

    /// The bit within its word, as a mask.
    #[inline]
    pub fn mask(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// The map between holder ids and bit positions.
pub(crate) struct HolderBits {
    /// By block of 64 ids: its word.
    words: [AtomicU8; WORDS_MAX],
    /// By word: its block of ids.
    blocks: [AtomicU8; WORDS_MAX],
    used: AtomicUsize,
}

impl HolderBits {
    pub fn new() -> HolderBits {
        HolderBits {
            words: [const { AtomicU8::new(NO_WORD) }; WORDS_MAX],
            blocks: [const { AtomicU8::new(0) }; WORDS_MAX],
            used: AtomicUsize::new(0),
        }
    }

    /// Number of words in use. Their blocks are readable after this load.
    #[inline]
    pub fn words(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// The position of a holder, if it has one.
    pub fn find(&self, holder: HolderId) -> Option<HolderPosition> {
        let word = self.words.get(holder.index() / 64)?.load(Ordering::Relaxed);
        (word != NO_WORD).then(|| HolderPosition::at(word.into(), u32::from(holder.0 % 64)))
    }

    /// The position of a holder, assigned on first use. `None` for ids from [`HOLDERS_MAX`] on. Only the writer
    /// calls this, under its lock.
    pub fn take(&self, holder: HolderId) -> Option<HolderPosition> {
        let block = holder.index() / 64;
        if block < WORDS_MAX && self.find(holder).is_none() {
            let word = self.used.load(Ordering::Relaxed);
            self.blocks[word].store(block as u8, Ordering::Relaxed);
            self.words[block].store(word as u8, Ordering::Relaxed);
            self.used.store(word + 1, Ordering::Release);
        }
        self.find(holder)
    }

    /// The holder at a position.
    #[inline]
    pub fn holder(&self, position: HolderPosition) -> HolderId {
        let block = self.blocks[position.word()].load(Ordering::Relaxed);
        HolderId(u16::from(block) * 64 + position.0 % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_far_apart_share_few_words_and_map_back() {
        let holder_bits = HolderBits::new();
        let blocks = [0, 63, 4_096, 8_192, 8_193, HOLDERS_MAX as u16 - 1, 64];
        let taken: Vec<HolderPosition> =
            blocks.iter().map(|&id| holder_bits.take(HolderId(id)).unwrap()).collect();
        assert_eq!(taken, [0, 63, 64, 128, 129, 255, 256].map(HolderPosition));
        assert_eq!(holder_bits.words(), 5);
        for (&id, &position) in blocks.iter().zip(&taken) {
            assert_eq!(
                (holder_bits.holder(position), holder_bits.find(HolderId(id))),
                (HolderId(id), Some(position))
            );
        }
    }

    #[test]
    fn every_valid_id_has_a_position_and_the_next_has_none() {
        let holder_bits = HolderBits::new();
        (0..HOLDERS_MAX as u16).for_each(|id| assert!(holder_bits.take(HolderId(id)).is_some()));
        assert_eq!(holder_bits.words(), WORDS_MAX);
        assert_eq!(holder_bits.take(HolderId(HOLDERS_MAX as u16)), None);
        assert_eq!(holder_bits.find(HolderId(u16::MAX)), None);
    }
}
