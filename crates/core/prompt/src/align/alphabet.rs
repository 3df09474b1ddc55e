//! Alphabet in which byte-level tokenizers spell bytes.
//!
//! GPT-2 gives each of the 256 bytes a printable character, so that a vocabulary can be a text file.
//! Printable bytes stay, the others map to U+0100 and following, in order.

/// Upper limit of the alphabet's characters.
const LETTERS: usize = 256 + 68;

/// Map from characters to bytes.
pub(crate) struct Alphabet([Option<u8>; LETTERS]);

impl Alphabet {
    pub fn new() -> Alphabet {
        let mut bytes = [None; LETTERS];
        let mut moved = 256;
        for byte in 0..=255_u8 {
            let letter = if is_printable(byte) { usize::from(byte) } else { moved };
            moved += usize::from(!is_printable(byte));
            bytes[letter] = Some(byte);
        }
        Alphabet(bytes)
    }

    /// Bytes that a token spells; `None` if it is not written in this alphabet.
    pub fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|letter| *self.0.get(letter as usize)?).collect()
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_letter() {
        let alphabet = Alphabet::new();
        let mut seen: Vec<u8> = alphabet.0.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn spelled_words_are_read_back() {
        let alphabet = Alphabet::new();
        assert_eq!(alphabet.bytes("ĠdogĊ").unwrap(), b" dog\n");
        assert_eq!(alphabet.bytes("Ã©").unwrap(), "é".as_bytes());
        assert_eq!(alphabet.bytes("狗"), None);
        assert_eq!(alphabet.bytes("a b"), None, "a space is not a letter");
    }
}
