//! Text for traces that have none: equal tokens become equal words, and different tokens different words.
//!
//! Each token gets as many bytes as the engines count for one, so that prompts have the same length in real and
//! virtual time: four for simulated engines, two for those that publish events. Answers keep the engine's own text,
//! so that a later prompt that repeats one finds it cached.

use std::collections::HashMap;

use crate::{Piece, token_ids};

/// The text of one session.
pub struct SessionText {
    token_bytes: usize,
    /// The engine's answers, by content number.
    answers: HashMap<u64, String>,
}

impl SessionText {
    /// A session without answers yet.
    pub fn new(token_bytes: u8) -> SessionText {
        SessionText { token_bytes: token_bytes.into(), answers: HashMap::new() }
    }

    /// The text of a prompt.
    pub fn prompt(&self, pieces: &[Piece]) -> String {
        let mut text = String::new();
        pieces.iter().for_each(|&piece| self.push_piece(piece, &mut text));
        text
    }

    fn push_piece(&self, piece: Piece, text: &mut String) {
        let answer = self.answers.get(&piece.content).map_or("", |answer| self.cut(answer, piece.tokens).0);
        text.push_str(answer);
        let mut ids = Vec::new();
        let from = (answer.len() / self.token_bytes) as u32;
        token_ids([piece].into_iter(), from, piece.tokens, &mut ids);
        ids.into_iter().for_each(|id| push_word(id, self.token_bytes, text));
    }

    /// Stores the text of an answer's pieces.
    pub fn add_answer(&mut self, answer: &[Piece], mut text: &str) {
        for piece in answer {
            let (own, rest) = self.cut(text, piece.tokens);
            self.answers.insert(piece.content, own.to_owned());
            text = rest;
        }
    }

    /// Splits a text after this many tokens.
    fn cut<'a>(&self, text: &'a str, tokens: u32) -> (&'a str, &'a str) {
        text.split_at(text.floor_char_boundary(tokens as usize * self.token_bytes))
    }
}

/// Appends a word of this many bytes: a space and letters, or only letters if there are at most three bytes.
fn push_word(mut id: u32, bytes: usize, text: &mut String) {
    let space = usize::from(bytes > 3);
    text.extend(std::iter::repeat_n(' ', space));
    for _ in space..bytes {
        text.push(char::from(b'a' + (id % 26) as u8));
        id /= 26;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    fn piece(text: u64, tokens: u32) -> Piece {
        Piece { content: mix(text), tokens }
    }

    #[test]
    fn prompts_share_the_text_of_the_tokens_they_share() {
        for token_bytes in [2, 4, 7] {
            let texts = SessionText::new(token_bytes);
            let one = texts.prompt(&[piece(1, 30), piece(2, 5)]);
            let other = texts.prompt(&[piece(1, 20), piece(3, 15)]);
            let bytes = usize::from(token_bytes);
            assert_eq!((one.len(), other.len()), (35 * bytes, 35 * bytes));
            let shared = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            assert_eq!(shared / bytes, 20);
        }
    }

    #[test]
    fn an_answer_is_repeated_as_it_was_given() {
        let mut texts = SessionText::new(4);
        texts.add_answer(&[piece(1, 2), piece(2, 2)], "Amber oak calm. ");
        assert_eq!(texts.prompt(&[piece(1, 2), piece(2, 1)]), "Amber oak ca");
        let longer = texts.prompt(&[piece(2, 4)]);
        assert_eq!((&longer[..8], longer.len()), ("k calm. ", 16));
    }
}
