//! The last batches, by their hash: so that one that comes again is known, and one of another process is not mistaken for it.

use std::collections::VecDeque;

/// How many are kept. Live streams repeat and reorder within a few batches; a batch further back is of another process.
pub const PRINTS_MAX: usize = 128;

/// Sequence numbers and hashes, ascending.
#[derive(Clone, Debug, Default)]
pub struct Prints {
    recent: VecDeque<(u64, u64)>,
}

impl Prints {
    /// Remembers a batch; its number is higher than all before.
    pub fn push(&mut self, seq: u64, print: u64) {
        if self.recent.len() == PRINTS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((seq, print));
    }

    /// The hash of a batch that is still remembered.
    pub fn get(&self, seq: u64) -> Option<u64> {
        let at = self.recent.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(self.recent[at].1)
    }

    /// The last batch.
    pub fn last_seq(&self) -> Option<u64> {
        self.recent.back().map(|(seq, _)| *seq)
    }
}
