//! A long answer, in parts.
//!
//! Whoever asks again gets another answer, and parts of the first may still be under way; two of them mixed would be a cache that
//! nobody has. So the teller numbers its answers, and of two the later one is put together.

use std::collections::BTreeMap;

use crate::codec::{BadMessage, Reader, Writer};

/// Which part of which answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The teller's number for its answer.
    pub answer: u64,
    /// Which part, from 0 on.
    pub at: u32,
    /// Of how many.
    pub of: u32,
}

impl Part {
    pub(crate) fn write(self, writer: &mut Writer) {
        writer.number(self.answer);
        writer.number(self.at.into());
        writer.number(self.of.into());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Part, BadMessage> {
        let part = Part { answer: reader.number()?, at: reader.small()?, of: reader.small()? };
        if part.at < part.of { Ok(part) } else { Err(BadMessage::Garbled) }
    }
}

/// The parts of one teller's answer that have come.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    answer: u64,
    of: u32,
    come: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl Parts {
    /// A part has come: all of it where it was the last. Too much is no answer.
    pub fn take(&mut self, part: Part, bytes: Vec<u8>, bytes_max: usize) -> Option<Vec<u8>> {
        if part.answer > self.answer {
            *self = Parts { answer: part.answer, of: part.of, ..Parts::default() };
        }
        let is_of_it = (part.answer, part.of) == (self.answer, self.of);
        if !is_of_it || self.come.contains_key(&part.at) || self.bytes + bytes.len() > bytes_max {
            return None;
        }
        self.bytes += bytes.len();
        self.come.insert(part.at, bytes);
        let is_whole = self.come.len() == self.of as usize;
        is_whole.then(|| std::mem::take(&mut self.come).into_values().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(answer: u64, at: u32, of: u32) -> Part {
        Part { answer, at, of }
    }

    #[test]
    fn parts_of_two_answers_do_not_mix() {
        let mut parts = Parts::default();
        assert_eq!(parts.take(part(1, 0, 2), vec![1], 9), None);
        assert_eq!(parts.take(part(2, 1, 2), vec![22], 9), None, "it was asked for again");
        assert_eq!(parts.take(part(1, 1, 2), vec![11], 9), None, "late");
        assert_eq!(parts.take(part(2, 1, 2), vec![22], 9), None, "repeated");
        assert_eq!(parts.take(part(2, 0, 2), vec![2], 9), Some(vec![2, 22]));
        assert_eq!(parts.take(part(3, 0, 1), vec![0; 10], 9), None, "too much");
    }
}
