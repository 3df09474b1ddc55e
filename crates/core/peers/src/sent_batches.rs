//! The most recent batches that this router sent, retained for peers that missed them.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::PeerMessage;
use crate::codec::{Reader, Writer};

/// Bytes of batches that are retained.
const RETAINED_BYTES_MAX: usize = 4 << 20;

/// Gaps that one query may name.
pub(crate) const GAPS_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct SentBatches {
    /// Batches sent so far.
    pub count: u64,
    retained: VecDeque<SentBatch>,
    bytes: usize,
    /// Low-water mark of the last batch that is no longer retained.
    evicted_low_water: u64,
}

#[derive(Debug)]
struct SentBatch {
    number: u64,
    low_water: u64,
    bytes: Arc<[u8]>,
}

/// Describes the batches that are no longer retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Number of the last of them.
    pub up_to: u64,
    /// Their low-water mark. Later batches carry their own.
    pub low_water: u64,
}

impl SentBatches {
    /// Adds the next batch.
    pub fn push(&mut self, number: u64, low_water: u64, bytes: Arc<[u8]>) {
        self.bytes += bytes.len();
        self.retained.push_back(SentBatch { number, low_water, bytes });
        while self.bytes > RETAINED_BYTES_MAX
            && let Some(batch) = self.retained.pop_front()
        {
            self.bytes -= batch.bytes.len();
            self.evicted_low_water = batch.low_water;
        }
    }

    /// `Some` if one of the missing batches is no longer retained. The open assignments must replace it.
    pub fn evicted(&self, missing: &[RangeInclusive<u64>]) -> Option<Evicted> {
        let oldest = self.retained.front().map_or(self.count + 1, |batch| batch.number);
        let is_evicted = first_gaps(missing).iter().any(|gap| *gap.start() < oldest);
        is_evicted.then_some(Evicted { up_to: oldest - 1, low_water: self.evicted_low_water })
    }

    /// Encodes the retained batches among the missing ones, and the state that replaces the rest.
    pub fn encode(&self, missing: &[RangeInclusive<u64>], state: Option<&PeerMessage>) -> Vec<u8> {
        let is_missing =
            |batch: &&SentBatch| first_gaps(missing).iter().any(|gap| gap.contains(&batch.number));
        let mut writer = Writer::default();
        self.retained.iter().filter(is_missing).for_each(|batch| writer.sized_bytes(&batch.bytes));
        state.into_iter().for_each(|state| writer.sized_bytes(&state.encode()));
        writer.bytes
    }

    /// Decodes the output of [`SentBatches::encode`], and counts the messages that cannot be read. A message
    /// that needs a later version does not hide the others.
    pub fn decode(bytes: &[u8]) -> (Vec<PeerMessage>, u64) {
        let (mut reader, mut messages, mut bad) = (Reader::new(bytes), Vec::new(), 0);
        while !reader.is_empty() {
            let Ok(text) = reader.sized_bytes() else { return (messages, bad + 1) };
            match PeerMessage::decode(text) {
                Ok(message) => messages.extend(message),
                Err(_) => bad += 1,
            }
        }
        (messages, bad)
    }
}

fn first_gaps(missing: &[RangeInclusive<u64>]) -> &[RangeInclusive<u64>] {
    &missing[..missing.len().min(GAPS_MAX)]
}
