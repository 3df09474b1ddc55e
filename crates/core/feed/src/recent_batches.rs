//! Hashes of the last batches, which tell a repeated batch from one of another process.

use std::collections::VecDeque;

/// Most batches kept. Live streams repeat and reorder within a few batches; a batch further back is of another
/// process.
pub const RECENT_MAX: usize = 128;

/// Sequence numbers and hashes, ascending.
#[derive(Clone, Debug, Default)]
pub struct RecentBatches {
    recent: VecDeque<(u64, u64)>,
}

impl RecentBatches {
    /// Adds a batch, whose number is higher than all before.
    pub fn push(&mut self, seq: u64, print: u64) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((seq, print));
    }

    /// The hash of a recent batch.
    pub fn get(&self, seq: u64) -> Option<u64> {
        let at = self.recent.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(self.recent[at].1)
    }

    /// The number of the last batch.
    pub fn last_seq(&self) -> Option<u64> {
        self.recent.back().map(|(seq, _)| *seq)
    }
}
