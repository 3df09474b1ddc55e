//! The last batches that were told, for those who missed them.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::Message;
use crate::codec::{Reader, Writer};

/// Bytes of batches that are kept.
const HISTORY_BYTES: usize = 4 << 20;

/// Holes that are told of at once.
pub(crate) const HOLES_MAX: usize = 16;

/// Batches so far, and the last of them.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// How many were told.
    pub told: u64,
    kept: VecDeque<Told>,
    bytes: usize,
    /// Below which number trips were over with the last batch that is not kept any more.
    settled: u64,
}

/// A batch that was told.
#[derive(Debug)]
struct Told {
    number: u64,
    open_from: u64,
    bytes: Arc<[u8]>,
}

/// What stands for the batches that are not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The last of them.
    pub up_to: u64,
    /// Below which number trips were over by then. What the batches that are kept say is over they say themselves, and how.
    pub open_from: u64,
}

impl History {
    /// The next batch, with this number.
    pub fn keep(&mut self, number: u64, open_from: u64, bytes: Arc<[u8]>) {
        self.bytes += bytes.len();
        self.kept.push_back(Told { number, open_from, bytes });
        while self.bytes > HISTORY_BYTES
            && let Some(told) = self.kept.pop_front()
        {
            self.bytes -= told.bytes.len();
            self.settled = told.open_from;
        }
    }

    /// Whether some of these are not kept any more: then only all that is open makes them good.
    pub fn lost(&self, missing: &[RangeInclusive<u64>]) -> Option<Lost> {
        let oldest = self.kept.front().map_or(self.told + 1, |told| told.number);
        let is_lost = first(missing).iter().any(|hole| *hole.start() < oldest);
        is_lost.then_some(Lost { up_to: oldest - 1, open_from: self.settled })
    }

    /// Those of them that are kept, and what stands for the others.
    pub fn write(&self, missing: &[RangeInclusive<u64>], state: Option<&Message>) -> Vec<u8> {
        let is_missing = |told: &&Told| first(missing).iter().any(|hole| hole.contains(&told.number));
        let mut writer = Writer::default();
        self.kept.iter().filter(is_missing).for_each(|told| writer.text(&told.bytes));
        state.into_iter().for_each(|state| writer.text(&state.encode()));
        writer.bytes
    }

    /// What [`History::write`] wrote, and how many messages of it cannot be read: one may need a later version of the language, and is no
    /// reason to miss the others.
    pub fn read(bytes: &[u8]) -> (Vec<Message>, u64) {
        let (mut reader, mut messages, mut bad) = (Reader::new(bytes), Vec::new(), 0);
        while !reader.is_at_end() {
            let Ok(text) = reader.text() else { return (messages, bad + 1) };
            match Message::decode(text) {
                Ok(message) => messages.extend(message),
                Err(_) => bad += 1,
            }
        }
        (messages, bad)
    }
}

fn first(missing: &[RangeInclusive<u64>]) -> &[RangeInclusive<u64>] {
    &missing[..missing.len().min(HOLES_MAX)]
}
