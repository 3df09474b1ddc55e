//! Which lengths the children of a node have: what a walk over bytes must try where a chain may go on in several ways.
//!
//! A walk over digests asks the child table directly. A walk over bytes cannot: it must first know how many bytes to
//! digest. A fan is a small sorted list of (offset in the node, length), counted, replaced whole when a pair comes or
//! goes. It is bounded: children beyond [`LENGTHS_MAX`] pairs are found by digest only, and counted.

use std::sync::atomic::{AtomicU32, Ordering};

/// Distinct (offset, length) pairs of one node. Blocks of 64 tokens have some 300 different lengths in bytes.
pub(crate) const LENGTHS_MAX: usize = 1_024;

/// The lengths of a node's children.
#[derive(Debug, Default)]
pub(crate) struct Fan {
    twigs: Box<[Twig]>,
}

/// Children at one offset that begin with a span of one length.
#[derive(Debug)]
pub(crate) struct Twig {
    pub at: u32,
    pub bytes: u32,
    count: AtomicU32,
}

/// What became of a fan.
pub(crate) enum Change {
    /// The counts alone changed.
    InPlace,
    /// This one takes its place.
    Replaced(Fan),
    /// It is full.
    Full,
}

impl Twig {
    fn new(at: u32, bytes: u32, count: u32) -> Twig {
        Twig { at, bytes, count: AtomicU32::new(count) }
    }

    fn copy(&self) -> Twig {
        Twig::new(self.at, self.bytes, self.count.load(Ordering::Relaxed))
    }
}

impl Fan {
    /// All pairs, sorted by offset.
    pub fn twigs(&self) -> &[Twig] {
        &self.twigs
    }

    /// Bytes of the allocation that belongs to it, its own included.
    pub fn allocated(&self) -> usize {
        size_of::<Fan>() + size_of_val::<[Twig]>(&self.twigs)
    }

    /// Counts one more child. Only the writer calls this; readers do not look at the counts.
    pub fn add(&self, at: u32, bytes: u32) -> Change {
        match self.place(at, bytes) {
            Ok(found) => {
                self.twigs[found].count.fetch_add(1, Ordering::Relaxed);
                Change::InPlace
            }
            Err(_) if self.twigs.len() >= LENGTHS_MAX => Change::Full,
            Err(gap) => {
                let mut twigs: Vec<Twig> = self.twigs.iter().map(Twig::copy).collect();
                twigs.insert(gap, Twig::new(at, bytes, 1));
                Change::Replaced(Fan { twigs: twigs.into() })
            }
        }
    }

    /// Counts one child less.
    pub fn remove(&self, at: u32, bytes: u32) -> Change {
        let Ok(found) = self.place(at, bytes) else { return Change::InPlace };
        if self.twigs[found].count.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Change::InPlace;
        }
        let left = self.twigs.iter().enumerate().filter(|&(i, _)| i != found);
        Change::Replaced(Fan { twigs: left.map(|(_, twig)| twig.copy()).collect() })
    }

    fn place(&self, at: u32, bytes: u32) -> Result<usize, usize> {
        self.twigs.binary_search_by_key(&(at, bytes), |twig| (twig.at, twig.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(fan: &Fan) -> Vec<(u32, u32)> {
        fan.twigs().iter().map(|twig| (twig.at, twig.bytes)).collect()
    }

    fn replaced(change: Change) -> Fan {
        match change {
            Change::Replaced(fan) => fan,
            _ => panic!("the fan should have been replaced"),
        }
    }

    #[test]
    fn a_length_goes_with_the_last_child_that_has_it() {
        let fan = replaced(Fan::default().add(3, 60));
        let fan = replaced(fan.add(1, 64));
        assert_eq!(pairs(&fan), [(1, 64), (3, 60)]);
        assert!(matches!(fan.add(3, 60), Change::InPlace));
        assert!(matches!(fan.remove(3, 60), Change::InPlace));
        assert_eq!(pairs(&replaced(fan.remove(3, 60))), [(1, 64)]);
    }

    #[test]
    fn a_full_fan_says_so() {
        let mut fan = Fan::default();
        for bytes in 0..LENGTHS_MAX as u32 {
            fan = replaced(fan.add(0, bytes));
        }
        assert!(matches!(fan.add(0, LENGTHS_MAX as u32), Change::Full));
        assert!(matches!(fan.add(0, 0), Change::InPlace));
    }
}
