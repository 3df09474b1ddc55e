//! Live batches that wait until a replay has brought the batches before them.

use std::collections::BTreeMap;

use warmroute_types::{CacheEvent, EventBatch};

/// Tokens of a typical block.
const BLOCK_TOKENS: usize = 16;

/// Batches by sequence number, bounded.
#[derive(Debug, Default)]
pub struct HeldBatches {
    batches: BTreeMap<u64, EventBatch>,
    blocks: usize,
}

/// The result of holding a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The batch is held.
    Inserted,
    /// The batch was held already.
    Duplicate,
    /// There was no room: the batch is dropped.
    Full,
}

impl HeldBatches {
    /// Holds a batch. Of two batches with one number, the later one belongs to the running process.
    pub fn insert(
        &mut self,
        seq: u64,
        batch: EventBatch,
        batches_max: usize,
        blocks_max: usize,
    ) -> Insertion {
        if let Some(known) = self.batches.get(&seq) {
            if known.print == batch.print || known.at_unix_s >= batch.at_unix_s {
                return Insertion::Duplicate;
            }
            self.remove(seq);
        }
        let blocks = weight(&batch);
        // A batch larger than the limit is held alone: it is in memory anyway.
        if !self.batches.is_empty()
            && (self.batches.len() >= batches_max || self.blocks + blocks > blocks_max)
        {
            return Insertion::Full;
        }
        self.blocks += blocks;
        self.batches.insert(seq, batch);
        Insertion::Inserted
    }

    /// The lowest number held.
    pub fn first(&self) -> Option<u64> {
        self.batches.first_key_value().map(|(seq, _)| *seq)
    }

    /// The highest number held.
    pub fn last(&self) -> Option<u64> {
        self.batches.last_key_value().map(|(seq, _)| *seq)
    }

    /// Removes the batch with the lowest number, if that is at most `seq`.
    pub fn pop_up_to(&mut self, seq: u64) -> Option<(u64, EventBatch)> {
        let first = self.first().filter(|first| *first <= seq)?;
        Some((first, self.remove(first)?))
    }

    /// Drops all held batches.
    pub fn clear(&mut self) {
        self.batches.clear();
        self.blocks = 0;
    }

    fn remove(&mut self, seq: u64) -> Option<EventBatch> {
        let batch = self.batches.remove(&seq)?;
        self.blocks -= weight(&batch);
        Some(batch)
    }
}

/// The weight of a batch in blocks. Tokens weigh as much as the blocks that they would fill.
fn weight(batch: &EventBatch) -> usize {
    let (stored, removed) = batch.blocks();
    let tokens = |event: &CacheEvent| match event {
        CacheEvent::Stored(stored) => stored.tokens.len(),
        CacheEvent::Removed(_) | CacheEvent::Cleared => 0,
    };
    (stored + removed) as usize + batch.events.iter().map(tokens).sum::<usize>() / BLOCK_TOKENS
}
