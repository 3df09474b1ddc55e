//! A long answer, in parts.
//!
//! Whoever is asked may have to put an answer together anew, and parts of the first may still be under way; two of them mixed would be a
//! cache that nobody has. So the teller numbers its answers, and of two the later one is put together.

use std::collections::BTreeMap;

use crate::codec::{BadMessage, Reader, Writer};

/// Bytes of a part.
pub(crate) const PART_BYTES: usize = 128 << 10;

/// More than this is no answer.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// So is more than so many parts: each would be asked for, and they may be empty.
const PARTS_MAX: u32 = 4_096;

/// Which part of which answer to which question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The asker's number for its question.
    pub ticket: u64,
    /// The time that the question carried.
    pub asked_at_us: u64,
    /// The teller's number for its answer.
    pub answer: u64,
    /// Which part, from 0 on.
    pub at: u32,
    /// Of how many.
    pub of: u32,
}

impl Part {
    pub(crate) fn write(self, writer: &mut Writer) {
        writer.number(self.ticket);
        writer.number(self.asked_at_us);
        writer.number(self.answer);
        writer.number(self.at.into());
        writer.number(self.of.into());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Part, BadMessage> {
        let (ticket, asked_at_us, answer) = (reader.number()?, reader.number()?, reader.number()?);
        let part = Part { ticket, asked_at_us, answer, at: reader.small()?, of: reader.small()? };
        if part.at < part.of { Ok(part) } else { Err(BadMessage::Garbled) }
    }
}

/// What has come of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not all of it.
    Some,
    /// All.
    Whole(Vec<u8>),
    /// It is no answer.
    TooLarge,
}

/// The parts of one teller's answer that have come.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    answer: u64,
    /// Zero before the first one.
    of: u32,
    come: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl Parts {
    /// A part has come.
    pub fn take(&mut self, part: Part, bytes: Vec<u8>) -> Progress {
        if part.of > PARTS_MAX {
            return Progress::TooLarge;
        }
        if part.answer > self.answer || self.of == 0 {
            *self = Parts { answer: part.answer, of: part.of, ..Parts::default() };
        }
        let is_of_it = (part.answer, part.of) == (self.answer, self.of);
        if !is_of_it || self.come.contains_key(&part.at) {
            return Progress::Some;
        }
        self.bytes += bytes.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Progress::TooLarge;
        }
        self.come.insert(part.at, bytes);
        if self.come.len() < self.of as usize {
            return Progress::Some;
        }
        let come: Vec<Vec<u8>> = std::mem::take(&mut self.come).into_values().collect();
        Progress::Whole(come.concat())
    }

    /// Whether it may have this part.
    pub fn may_have(&self, at: u32) -> bool {
        self.of == 0 || at < self.of
    }

    /// Those that have not come. Before the first one has, it may have any number.
    pub fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        let of = if self.of == 0 { u32::MAX } else { self.of };
        (0..of).filter(|at| !self.come.contains_key(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(answer: u64, at: u32, of: u32) -> Part {
        Part { ticket: 1, asked_at_us: 1, answer, at, of }
    }

    #[test]
    fn parts_of_two_answers_do_not_mix() {
        let mut parts = Parts::default();
        assert_eq!(parts.missing().take(3).collect::<Vec<_>>(), [0, 1, 2], "nobody knows how many");
        assert_eq!(parts.take(part(1, 0, 2), vec![1]), Progress::Some);
        assert_eq!(parts.missing().collect::<Vec<_>>(), [1]);
        assert_eq!(parts.take(part(2, 1, 2), vec![22]), Progress::Some, "it was put together again");
        assert_eq!(parts.take(part(1, 1, 2), vec![11]), Progress::Some, "late");
        assert_eq!(parts.take(part(2, 1, 2), vec![22]), Progress::Some, "repeated");
        assert_eq!(parts.missing().collect::<Vec<_>>(), [0]);
        assert_eq!(parts.take(part(2, 0, 2), vec![2]), Progress::Whole(vec![2, 22]));
        assert_eq!(parts.take(part(3, 0, 1), vec![0; ANSWER_BYTES_MAX + 1]), Progress::TooLarge);
        assert_eq!(parts.take(part(4, 0, PARTS_MAX + 1), Vec::new()), Progress::TooLarge);
    }
}
