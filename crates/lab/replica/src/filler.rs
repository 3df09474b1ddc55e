//! The text of a simulated engine: meaningless words, each a function of the text before it.
//!
//! It must not be mistaken for a model's answer. A repeated request must get the same answer, because the answer's
//! tokens are cached and may return in the next turn. And a request that ends with the beginning of an answer must get
//! the rest of that answer, as from a model at temperature 0: the next token depends on all bytes before it, and not on
//! where the prompt ended or how it was cut into tokens. The text is plain ASCII that JSON need not escape.

use xxhash_rust::xxh3::Xxh3;

use crate::tokens::{self, Token};

const WORDS: [&[u8; 4]; 32] = [
    b"oak ", b"sea ", b"sky ", b"elm ", b"fig ", b"dew ", b"ash ", b"bay ", b"fir ", b"ivy ", b"sun ",
    b"fog ", b"ice ", b"ray ", b"fen ", b"oat ", b"rye ", b"yew ", b"cap ", b"inn ", b"owl ", b"bee ",
    b"cub ", b"elk ", b"gem ", b"jar ", b"key ", b"log ", b"map ", b"net ", b"on. ", b"it. ",
];

const SYLLABLES: [&[u8; 2]; 16] = [
    b"ba", b"ce", b"di", b"fo", b"gu", b"ha", b"je", b"ki", b"lo", b"mu", b"na", b"pe", b"a ", b"o ", b"i ",
    b". ",
];

/// All text so far. Text of tokens and special tokens differ: no UTF-8 text contains the byte 0xff.
#[derive(Clone)]
pub(crate) struct TextSoFar(Xxh3);

impl TextSoFar {
    /// The text of a prompt. Another seed means other answers.
    pub(crate) fn of_prompt(seed: u64, prompt: &[Token]) -> TextSoFar {
        let mut text = Xxh3::with_seed(seed);
        for &token in prompt {
            match tokens::is_special(token) {
                true => text.update(&[0xff, token as u8]),
                false => text.update(&tokens::decode(&[token])),
            }
        }
        TextSoFar(text)
    }

    /// The next tokens of this many bytes each, as text.
    pub(crate) fn continue_by(mut self, count: u32, token_bytes: usize) -> String {
        let mut said = String::with_capacity(count as usize * token_bytes);
        for _ in 0..count {
            let piece = piece(self.0.digest(), token_bytes);
            self.0.update(piece.as_bytes());
            said.push_str(piece);
        }
        said
    }
}

fn piece(choice: u64, token_bytes: usize) -> &'static str {
    let bytes: &'static [u8] = match token_bytes {
        2 => SYLLABLES[(choice % 16) as usize],
        _ => WORDS[(choice % 32) as usize],
    };
    std::str::from_utf8(bytes).expect("ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokenizer;

    fn prompt(text: &str, tokenizer: Tokenizer) -> Vec<Token> {
        let mut prompt = vec![tokens::BOS];
        tokenizer.encode(text.as_bytes(), &mut prompt);
        prompt
    }

    fn said(seed: u64, text: &str, count: u32) -> String {
        TextSoFar::of_prompt(seed, &prompt(text, Tokenizer::Quads)).continue_by(count, 4)
    }

    #[test]
    fn the_same_prompt_gets_the_same_answer_and_another_does_not() {
        assert_eq!(said(7, "hello", 100), said(7, "hello", 100));
        assert_ne!(said(7, "hello", 100), said(8, "hello", 100));
        assert_ne!(said(7, "hello", 100), said(7, "hallo", 100));
    }

    #[test]
    fn a_prompt_that_ends_with_the_beginning_of_an_answer_gets_the_rest() {
        for tokenizer in [Tokenizer::Quads, Tokenizer::Pairs] {
            let bytes = tokenizer.chunk_bytes();
            let so_far = |text: &str| TextSoFar::of_prompt(3, &prompt(text, tokenizer));
            let whole = so_far("a prompt").continue_by(40, bytes);
            for begun in 0..40 {
                let text = format!("a prompt{}", &whole[..begun * bytes]);
                let rest = so_far(&text).continue_by(40 - begun as u32, bytes);
                assert_eq!(rest, whole[begun * bytes..], "{begun}");
            }
        }
    }

    #[test]
    fn it_has_the_asked_length_and_needs_no_escaping() {
        for count in [0, 1, 4, 999] {
            let text = said(11, "x", count);
            assert_eq!(text.len(), count as usize * 4);
            assert!(text.chars().all(|c| c.is_ascii_alphabetic() || " .".contains(c)), "{text}");
        }
        assert!(said(11, "x", 999).contains(". "));
    }
}
