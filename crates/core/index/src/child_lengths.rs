//! The lengths of a node's children: what a walk over bytes tries where a chain may continue in several ways.
//!
//! A walk over digests asks the child table directly. A walk over bytes cannot, because it must know how many bytes
//! to digest. So a node keeps a small sorted list of (offset in the node, length) pairs with counts, which is
//! replaced as a whole when a pair is added or removed. Children beyond [`LENGTHS_MAX`] pairs are found by digest
//! only; the index counts them.

use std::sync::atomic::{AtomicU32, Ordering};

/// Most distinct (offset, length) pairs of one node. Blocks of 64 tokens have some 300 different lengths in bytes.
pub(crate) const LENGTHS_MAX: usize = 1_024;

/// The lengths of a node's children.
#[derive(Debug, Default)]
pub(crate) struct ChildLengths {
    as_slice: Box<[ChildLength]>,
}

/// The number of children at one offset whose first span has one length.
#[derive(Debug)]
pub(crate) struct ChildLength {
    pub at: u32,
    pub bytes: u32,
    count: AtomicU32,
}

/// The result of adding or removing a child.
pub(crate) enum Change {
    /// Only a count changed.
    InPlace,
    /// This list replaces the old one.
    Replaced(ChildLengths),
    /// The list is full.
    Full,
}

impl ChildLength {
    fn new(at: u32, bytes: u32, count: u32) -> ChildLength {
        ChildLength { at, bytes, count: AtomicU32::new(count) }
    }

    fn copy(&self) -> ChildLength {
        ChildLength::new(self.at, self.bytes, self.count.load(Ordering::Relaxed))
    }
}

impl ChildLengths {
    /// All pairs, sorted by offset.
    pub fn as_slice(&self) -> &[ChildLength] {
        &self.as_slice
    }

    /// Bytes of the list, including the struct itself.
    pub fn allocated(&self) -> usize {
        size_of::<ChildLengths>() + size_of_val::<[ChildLength]>(&self.as_slice)
    }

    /// Counts one more child. Only the writer calls this; readers ignore the counts.
    pub fn add(&self, at: u32, bytes: u32) -> Change {
        match self.position(at, bytes) {
            Ok(found) => {
                self.as_slice[found].count.fetch_add(1, Ordering::Relaxed);
                Change::InPlace
            }
            Err(_) if self.as_slice.len() >= LENGTHS_MAX => Change::Full,
            Err(gap) => {
                let mut as_slice: Vec<ChildLength> = self.as_slice.iter().map(ChildLength::copy).collect();
                as_slice.insert(gap, ChildLength::new(at, bytes, 1));
                Change::Replaced(ChildLengths { as_slice: as_slice.into() })
            }
        }
    }

    /// Counts one child less.
    pub fn remove(&self, at: u32, bytes: u32) -> Change {
        let Ok(found) = self.position(at, bytes) else { return Change::InPlace };
        if self.as_slice[found].count.fetch_sub(1, Ordering::Relaxed) > 1 {
            return Change::InPlace;
        }
        let left = self.as_slice.iter().enumerate().filter(|&(i, _)| i != found);
        Change::Replaced(ChildLengths { as_slice: left.map(|(_, child)| child.copy()).collect() })
    }

    fn position(&self, at: u32, bytes: u32) -> Result<usize, usize> {
        self.as_slice.binary_search_by_key(&(at, bytes), |child| (child.at, child.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(child_lengths: &ChildLengths) -> Vec<(u32, u32)> {
        child_lengths.as_slice().iter().map(|child| (child.at, child.bytes)).collect()
    }

    fn replaced(change: Change) -> ChildLengths {
        match change {
            Change::Replaced(child_lengths) => child_lengths,
            _ => panic!("the child_lengths should have been replaced"),
        }
    }

    #[test]
    fn a_length_is_removed_with_the_last_child_that_has_it() {
        let child_lengths = replaced(ChildLengths::default().add(3, 60));
        let child_lengths = replaced(child_lengths.add(1, 64));
        assert_eq!(pairs(&child_lengths), [(1, 64), (3, 60)]);
        assert!(matches!(child_lengths.add(3, 60), Change::InPlace));
        assert!(matches!(child_lengths.remove(3, 60), Change::InPlace));
        assert_eq!(pairs(&replaced(child_lengths.remove(3, 60))), [(1, 64)]);
    }

    #[test]
    fn a_full_list_reports_that_it_is_full() {
        let mut child_lengths = ChildLengths::default();
        for bytes in 0..LENGTHS_MAX as u32 {
            child_lengths = replaced(child_lengths.add(0, bytes));
        }
        assert!(matches!(child_lengths.add(0, LENGTHS_MAX as u32), Change::Full));
        assert!(matches!(child_lengths.add(0, 0), Change::InPlace));
    }
}
