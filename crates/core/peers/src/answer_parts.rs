//! Parts of a long answer.
//!
//! A router may compose the answer to a query twice while parts of the first version are still in flight.
//! Mixed parts would describe a state that no router has, so the sender numbers its answers and the receiver
//! keeps only the newest.

use std::collections::BTreeMap;

use crate::codec::{BadMessage, Reader, Writer};

/// Bytes of a part.
pub(crate) const PART_BYTES: usize = 128 << 10;

/// A larger answer is discarded.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Size limit of the presumed cache contents, apart from the last record; slightly below the limit of an answer.
pub const SNAPSHOT_BYTES_MAX: usize = 60 << 20;

/// An answer with more parts is discarded: each part would be queried, even if it is empty.
const PARTS_MAX: u32 = 4_096;

/// Identifies one part of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerPart {
    /// The querying router's id for the query.
    pub query_id: u64,
    /// Time of the query, by the querying router's clock.
    pub asked_at_us: u64,
    /// The answering router's id for the answer.
    pub answer_id: u64,
    /// Index of the part, from 0.
    pub index: u32,
    /// Number of parts.
    pub count: u32,
}

impl AnswerPart {
    pub(crate) fn write(self, writer: &mut Writer) {
        writer.varint(self.query_id);
        writer.varint(self.asked_at_us);
        writer.varint(self.answer_id);
        writer.varint(self.index.into());
        writer.varint(self.count.into());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<AnswerPart, BadMessage> {
        let (query_id, asked_at_us, answer_id) = (reader.varint()?, reader.varint()?, reader.varint()?);
        let part = AnswerPart {
            query_id,
            asked_at_us,
            answer_id,
            index: reader.varint_u32()?,
            count: reader.varint_u32()?,
        };
        if part.index < part.count { Ok(part) } else { Err(BadMessage::Malformed) }
    }
}

/// State of an answer after a part arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Incomplete,
    /// All bytes of the answer.
    Complete(Vec<u8>),
    /// The answer exceeds a size limit.
    TooLarge,
}

/// The parts of one answer that have arrived.
#[derive(Debug, Default)]
pub(crate) struct PartialAnswer {
    answer_id: u64,
    /// Zero before the first part.
    count: u32,
    received: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl PartialAnswer {
    /// Adds a part and returns the answer with the last one. Parts of a newer answer replace those of an older one.
    pub fn add(&mut self, part: AnswerPart, bytes: Vec<u8>) -> Progress {
        if part.count > PARTS_MAX {
            return Progress::TooLarge;
        }
        if part.answer_id > self.answer_id || self.count == 0 {
            *self =
                PartialAnswer { answer_id: part.answer_id, count: part.count, ..PartialAnswer::default() };
        }
        let is_same_answer = (part.answer_id, part.count) == (self.answer_id, self.count);
        if !is_same_answer || self.received.contains_key(&part.index) {
            return Progress::Incomplete;
        }
        self.bytes += bytes.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Progress::TooLarge;
        }
        self.received.insert(part.index, bytes);
        if self.received.len() < self.count as usize {
            return Progress::Incomplete;
        }
        let received: Vec<Vec<u8>> = std::mem::take(&mut self.received).into_values().collect();
        Progress::Complete(received.concat())
    }

    /// Whether the answer may have a part with this index.
    pub fn may_contain(&self, at: u32) -> bool {
        self.count == 0 || at < self.count
    }

    /// Indices of missing parts. Before the first part arrives the number of parts is unknown.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        let count = if self.count == 0 { u32::MAX } else { self.count };
        (0..count).filter(|at| !self.received.contains_key(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(answer_id: u64, index: u32, count: u32) -> AnswerPart {
        AnswerPart { query_id: 1, asked_at_us: 1, answer_id, index, count }
    }

    #[test]
    fn parts_of_two_answers_do_not_mix() {
        let mut parts = PartialAnswer::default();
        assert_eq!(parts.missing().take(3).collect::<Vec<_>>(), [0, 1, 2], "the count is unknown");
        assert_eq!(parts.add(part(1, 0, 2), vec![1]), Progress::Incomplete);
        assert_eq!(parts.missing().collect::<Vec<_>>(), [1]);
        assert_eq!(parts.add(part(2, 1, 2), vec![22]), Progress::Incomplete, "the answer was composed again");
        assert_eq!(parts.add(part(1, 1, 2), vec![11]), Progress::Incomplete, "late");
        assert_eq!(parts.add(part(2, 1, 2), vec![22]), Progress::Incomplete, "repeated");
        assert_eq!(parts.missing().collect::<Vec<_>>(), [0]);
        assert_eq!(parts.add(part(2, 0, 2), vec![2]), Progress::Complete(vec![2, 22]));
        assert_eq!(parts.add(part(3, 0, 1), vec![0; ANSWER_BYTES_MAX + 1]), Progress::TooLarge);
        assert_eq!(parts.add(part(4, 0, PARTS_MAX + 1), Vec::new()), Progress::TooLarge);
    }
}
