//! The key of one trace file, which is never written.
//!
//! Hashes are SipHash under a random key: a text cannot be looked up by hashing guesses, and two files cannot be
//! joined. Each hash covers everything from the prompt's start, so a phrase cannot be recognized in another context.
//! Hashes have 53 bits, which every JSON reader reads exactly.

use std::hash::{BuildHasher, Hash, RandomState};

use crate::Span;

/// Bits that a JSON number loses in a double.
const LOST_BITS: u32 = 11;

/// A random key, new for each file: equal values have equal numbers in one file only.
#[derive(Clone, Debug, Default)]
pub struct FileKey(RandomState);

impl FileKey {
    /// The number of a value in this file.
    pub fn of(&self, thing: impl Hash) -> u64 {
        self.0.hash_one(thing) >> LOST_BITS
    }

    /// The numbers of a prompt's spans, with their lengths. Prompts of different namespaces share none.
    pub fn chain(&self, namespace: impl Hash, spans: &[Span]) -> Vec<(u64, u32)> {
        let mut before = self.0.hash_one(namespace);
        let number = |span: &Span| {
            before = self.0.hash_one((before, span.digest, span.bytes));
            (before >> LOST_BITS, span.bytes)
        };
        spans.iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_one_number_in_one_context_of_one_file() {
        let spans =
            |digests: &[u64]| digests.iter().map(|&digest| Span { digest, bytes: 9 }).collect::<Vec<_>>();
        let (key, other) = (FileKey::default(), FileKey::default());
        let first = key.chain("m", &spans(&[1, 2, 3]));
        let second = key.chain("m", &spans(&[1, 2, 4, 3]));
        assert_eq!(first[..2], second[..2]);
        assert_ne!(first[2].0, second[3].0, "the same bytes after other bytes");
        assert_ne!(first[0], key.chain("n", &spans(&[1]))[0]);
        assert_ne!(first[0], other.chain("m", &spans(&[1]))[0]);
        assert!(first.iter().all(|(number, _)| *number < 1 << 53));
    }
}
