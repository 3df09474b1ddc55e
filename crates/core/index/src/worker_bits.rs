//! Bit positions of workers: which of the possible worker ids are in use, and which bit stands for each.
//!
//! A caller may give one engine several ids, one for each kind of knowledge (certain, possible, by tier), far apart
//! from each other. A bit set indexed by id would be mostly zeroes. So each block of 64 consecutive ids gets a word
//! when the first of its ids is used, and lookups visit only words in use. Inside the index a worker is its
//! *position*: the word times 64 plus the bit. Words are never returned.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use warmroute_types::MAX_WORKERS;

use crate::holder_id::HolderId;

/// Worker ids that an index accepts: three for each worker of the largest fleet.
pub const HOLDERS_MAX: usize = 3 * MAX_WORKERS;

/// Words in a set of [`HOLDERS_MAX`] workers.
pub(crate) const WORDS_MAX: usize = HOLDERS_MAX / 64;

const NO_WORD: u8 = u8::MAX;

/// The map between worker ids and bit positions.
pub(crate) struct WorkerBits {
    /// By block of 64 ids: its word.
    words: [AtomicU8; WORDS_MAX],
    /// By word: its block of ids.
    blocks: [AtomicU8; WORDS_MAX],
    used: AtomicUsize,
}

impl WorkerBits {
    pub fn new() -> WorkerBits {
        WorkerBits {
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

    /// The position of a worker, if it has one.
    pub fn find(&self, worker: HolderId) -> Option<u16> {
        let word = self.words.get(worker.index() / 64)?.load(Ordering::Relaxed);
        (word != NO_WORD).then(|| u16::from(word) * 64 + worker.0 % 64)
    }

    /// The position of a worker, assigned on first use. `None` for ids from [`HOLDERS_MAX`] on. Only the writer
    /// calls this, under its lock.
    pub fn take(&self, worker: HolderId) -> Option<u16> {
        let block = worker.index() / 64;
        if block < WORDS_MAX && self.find(worker).is_none() {
            let word = self.used.load(Ordering::Relaxed);
            self.blocks[word].store(block as u8, Ordering::Relaxed);
            self.words[block].store(word as u8, Ordering::Relaxed);
            self.used.store(word + 1, Ordering::Release);
        }
        self.find(worker)
    }

    /// The worker at a position.
    #[inline]
    pub fn worker(&self, position: u16) -> HolderId {
        let block = self.blocks[usize::from(position / 64)].load(Ordering::Relaxed);
        HolderId(u16::from(block) * 64 + position % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_far_apart_share_few_words_and_map_back() {
        let worker_bits = WorkerBits::new();
        let blocks = [0, 63, 4_096, 8_192, 8_193, HOLDERS_MAX as u16 - 1, 64];
        let taken: Vec<u16> = blocks.iter().map(|&id| worker_bits.take(HolderId(id)).unwrap()).collect();
        assert_eq!(taken, [0, 63, 64, 128, 129, 255, 256]);
        assert_eq!(worker_bits.words(), 5);
        for (&id, &position) in blocks.iter().zip(&taken) {
            assert_eq!(
                (worker_bits.worker(position), worker_bits.find(HolderId(id))),
                (HolderId(id), Some(position))
            );
        }
    }

    #[test]
    fn every_valid_id_has_a_position_and_the_next_has_none() {
        let worker_bits = WorkerBits::new();
        (0..HOLDERS_MAX as u16).for_each(|id| assert!(worker_bits.take(HolderId(id)).is_some()));
        assert_eq!(worker_bits.words(), WORDS_MAX);
        assert_eq!(worker_bits.take(HolderId(HOLDERS_MAX as u16)), None);
        assert_eq!(worker_bits.find(HolderId(u16::MAX)), None);
    }
}
