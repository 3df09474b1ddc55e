//! The last batches, for replays.

use std::collections::VecDeque;

use bytes::Bytes;

/// Numbers and payloads, bounded.
#[derive(Default)]
pub(crate) struct ReplayMemory {
    next_seq: u64,
    batches: VecDeque<(u64, Bytes)>,
}

impl ReplayMemory {
    /// Numbers a batch and stores it.
    pub(crate) fn push(&mut self, payload: Bytes, batches_max: usize) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.batches.push_back((seq, payload));
        while self.batches.len() > batches_max {
            self.batches.pop_front();
        }
        seq
    }

    /// All batches from this number on, of the last `last`.
    pub(crate) fn since(&self, from_seq: u64, last: Option<u32>) -> Vec<(u64, Bytes)> {
        let skipped = last.map_or(0, |last| self.batches.len().saturating_sub(last as usize));
        self.batches.iter().skip(skipped).filter(|(seq, _)| *seq >= from_seq).cloned().collect()
    }
}
