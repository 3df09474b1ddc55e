//! The last batches, for those who ask for what they missed.

use std::collections::VecDeque;

use bytes::Bytes;

/// Numbers and payloads, bounded.
#[derive(Default)]
pub(crate) struct Memory {
    next_seq: u64,
    batches: VecDeque<(u64, Bytes)>,
}

impl Memory {
    /// Numbers a batch and remembers it.
    pub(crate) fn push(&mut self, payload: Bytes, batches_max: usize) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.batches.push_back((seq, payload));
        while self.batches.len() > batches_max {
            self.batches.pop_front();
        }
        seq
    }

    /// All from this number on, of the last so many.
    pub(crate) fn since(&self, from_seq: u64, last: Option<u32>) -> Vec<(u64, Bytes)> {
        let skipped = last.map_or(0, |last| self.batches.len().saturating_sub(last as usize));
        self.batches.iter().skip(skipped).filter(|(seq, _)| *seq >= from_seq).cloned().collect()
    }
}
