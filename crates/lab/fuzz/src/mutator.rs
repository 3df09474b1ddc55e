//! Mutations of corpus inputs.

use crate::Dice;

/// Maximum input length. Longer inputs take time and find nothing more.
const BYTES_MAX: usize = 64 << 10;

/// Bytes that are special in most formats, or at the limit of a number.
const TELLING: [u8; 24] = [
    0, 1, 0x7f, 0x80, 0xff, 0xc1, 0xc4, 0xc6, 0xcb, 0xcf, 0xd9, 0xdb, 0xdd, 0xdf, b'"', b'\\', b'{', b'[',
    b'}', b']', b'\r', b'\n', b':', b'%',
];

/// Numbers at the limits of integer types.
const NUMBERS: [&[u8]; 10] = [
    b"0",
    b"-1",
    b"1e999",
    b"255",
    b"65536",
    b"4294967296",
    b"9223372036854775807",
    b"18446744073709551615",
    b"0.5",
    b"nan",
];

/// Mutates inputs.
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    /// Words of the seeds: the vocabulary of the format.
    words: Vec<Vec<u8>>,
    dice: Dice,
}

impl Mutator {
    /// Creates a mutator of these seeds.
    pub fn new(seeds: Vec<Vec<u8>>, dice: Dice) -> Mutator {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
        let words = seeds.iter().flat_map(|seed| seed.split(|byte| !is_word(byte)));
        let mut words: Vec<Vec<u8>> =
            words.filter(|word| (2..40).contains(&word.len())).map(<[u8]>::to_vec).collect();
        words.sort();
        words.dedup();
        Mutator { seeds, words, dice }
    }

    /// Returns the next mutated input.
    pub fn mutated(&mut self) -> Vec<u8> {
        let mut input = self.dice.pick(&self.seeds).cloned().unwrap_or_default();
        for _ in 0..1 + self.dice.below(6) {
            self.spoil(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn spoil(&mut self, input: &mut Vec<u8>) {
        let at = self.dice.below(input.len() + 1);
        let end = at + self.dice.below((input.len() - at).min(64) + 1);
        match self.dice.below(10) {
            0 => input.truncate(at),
            1 => input.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << self.dice.below(8)),
            2 => input.get_mut(at).into_iter().for_each(|byte| *byte = self.dice.roll() as u8),
            3 => input.insert(at, *self.dice.pick(&TELLING).unwrap_or(&0)),
            4 => _ = input.drain(at..end),
            5 => input.splice(at..at, input[at..end].to_vec()).for_each(drop),
            6 => input[at..end].fill(0xff),
            7 => self.borrow(input, at),
            8 => {
                let word = self.dice.pick(&self.words).cloned().unwrap_or_default();
                replace_word(input, at, &word);
            }
            _ => replace_word(input, at, self.dice.pick(&NUMBERS).unwrap_or(&&b"0"[..])),
        }
    }

    /// Inserts a part of another seed.
    fn borrow(&mut self, input: &mut Vec<u8>, at: usize) {
        let Some(other) = self.dice.pick(&self.seeds) else { return };
        let from = self.dice.below(other.len());
        let upto = from + self.dice.below((other.len() - from).min(256) + 1);
        input.splice(at..at, other[from..upto].iter().copied()).for_each(drop);
    }
}

/// Replaces the word at a position.
fn replace_word(input: &mut Vec<u8>, at: usize, word: &[u8]) {
    let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let start = at - input[..at].iter().rev().take_while(is_word).count();
    let end = at + input[at..].iter().take_while(is_word).count();
    input.splice(start..end, word.iter().copied()).for_each(drop);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_mutates_alike_and_long_inputs_are_accepted() {
        let seeds = vec![b"{\"model\": \"m\", \"n\": 1}".to_vec(), Vec::new()];
        let inputs = |seed| {
            let mut mutator = Mutator::new(seeds.clone(), Dice::new(seed));
            (0..2_000).map(|_| mutator.mutated()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(1).iter().any(|input| input.windows(5).any(|part| part == b"1e999")));
    }

    #[test]
    fn a_word_replaces_another() {
        let mut text = b"{\"n\": 17}".to_vec();
        replace_word(&mut text, 7, b"-1");
        assert_eq!(text, b"{\"n\": -1}");
    }
}
