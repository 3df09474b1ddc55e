//! Seats: which of the many possible worker numbers are in use, and where their bits lie.
//!
//! A caller may give one engine several numbers, one for each way of knowing what it holds (certainly, possibly, in
//! which tier), and lay them far apart. Sets of workers would then be mostly zeroes. So sixty-four neighbouring numbers
//! get a word of bits when the first of them is used, in the order of use, and only words in use are ever looked at.
//! Inside the index a worker is its *seat*: that word and the bit in it. Words are never given back.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use warmroute_types::{MAX_WORKERS, WorkerId};

/// Worker numbers that an index knows: three for each worker of the largest fleet.
pub const SEATS_MAX: usize = 3 * MAX_WORKERS;

/// Words in a set of [`SEATS_MAX`] workers.
pub(crate) const WORDS_MAX: usize = SEATS_MAX / 64;

const NO_WORD: u8 = u8::MAX;

/// From worker numbers to seats and back.
pub(crate) struct Seats {
    /// By sixty-four numbers: their word.
    words: [AtomicU8; WORDS_MAX],
    /// By word: which sixty-four numbers.
    numbers: [AtomicU8; WORDS_MAX],
    used: AtomicUsize,
}

impl Seats {
    pub fn new() -> Seats {
        Seats {
            words: [const { AtomicU8::new(NO_WORD) }; WORDS_MAX],
            numbers: [const { AtomicU8::new(0) }; WORDS_MAX],
            used: AtomicUsize::new(0),
        }
    }

    /// Words that can have a bit. What they stand for is there to be read.
    #[inline]
    pub fn words(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// The seat of a worker that has one.
    pub fn find(&self, worker: WorkerId) -> Option<u16> {
        let word = self.words.get(worker.index() / 64)?.load(Ordering::Relaxed);
        (word != NO_WORD).then(|| u16::from(word) * 64 + worker.0 % 64)
    }

    /// The seat of a worker, from now on if it had none. `None` beyond [`SEATS_MAX`]. Only the writer calls this, under
    /// its lock.
    pub fn take(&self, worker: WorkerId) -> Option<u16> {
        let block = worker.index() / 64;
        if block < WORDS_MAX && self.find(worker).is_none() {
            let word = self.used.load(Ordering::Relaxed);
            self.numbers[word].store(block as u8, Ordering::Relaxed);
            self.words[block].store(word as u8, Ordering::Relaxed);
            self.used.store(word + 1, Ordering::Release);
        }
        self.find(worker)
    }

    /// Whose seat this is.
    #[inline]
    pub fn worker(&self, seat: u16) -> WorkerId {
        let block = self.numbers[usize::from(seat / 64)].load(Ordering::Relaxed);
        WorkerId(u16::from(block) * 64 + seat % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_far_apart_share_few_words_and_come_back() {
        let seats = Seats::new();
        let numbers = [0, 63, 4_096, 8_192, 8_193, SEATS_MAX as u16 - 1, 64];
        let taken: Vec<u16> = numbers.iter().map(|&number| seats.take(WorkerId(number)).unwrap()).collect();
        assert_eq!(taken, [0, 63, 64, 128, 129, 255, 256]);
        assert_eq!(seats.words(), 5);
        for (&number, &seat) in numbers.iter().zip(&taken) {
            assert_eq!((seats.worker(seat), seats.find(WorkerId(number))), (WorkerId(number), Some(seat)));
        }
    }

    #[test]
    fn every_number_has_a_seat_and_the_next_has_none() {
        let seats = Seats::new();
        (0..SEATS_MAX as u16).for_each(|number| assert!(seats.take(WorkerId(number)).is_some()));
        assert_eq!(seats.words(), WORDS_MAX);
        assert_eq!(seats.take(WorkerId(SEATS_MAX as u16)), None);
        assert_eq!(seats.find(WorkerId(u16::MAX)), None);
    }
}
