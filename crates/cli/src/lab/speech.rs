//! Text for prompts that have none: what is the same token is the same word, and nothing else is.
//!
//! As many bytes a token as the engines take for one, so a prompt has as many tokens in real time as in virtual time: four for simulated
//! engines, two for those that publish events. An answer is what the engine said: a later prompt of the session that repeats it must say the same to find it cached.

use std::collections::HashMap;

use warmroute_sim::{Piece, token_ids};

/// What one session's pieces say.
pub struct Speech {
    token_bytes: usize,
    /// Answers, by their piece's number.
    heard: HashMap<u64, String>,
}

impl Speech {
    /// Nothing was said yet.
    pub fn new(token_bytes: u8) -> Speech {
        Speech { token_bytes: token_bytes.into(), heard: HashMap::new() }
    }

    /// The text of a prompt.
    pub fn prompt(&self, pieces: &[Piece]) -> String {
        let mut text = String::new();
        pieces.iter().for_each(|&piece| self.say(piece, &mut text));
        text
    }

    fn say(&self, piece: Piece, text: &mut String) {
        let heard = self.heard.get(&piece.content).map_or("", |heard| self.cut(heard, piece.tokens).0);
        text.push_str(heard);
        let mut ids = Vec::new();
        let from = (heard.len() / self.token_bytes) as u32;
        token_ids([piece].into_iter(), from, piece.tokens, &mut ids);
        ids.into_iter().for_each(|id| word(id, self.token_bytes, text));
    }

    /// Remembers what the pieces of an answer turned out to be.
    pub fn hear(&mut self, answer: &[Piece], mut text: &str) {
        for piece in answer {
            let (own, rest) = self.cut(text, piece.tokens);
            self.heard.insert(piece.content, own.to_owned());
            text = rest;
        }
    }

    /// The first so many tokens of a text, and the rest.
    fn cut<'a>(&self, text: &'a str, tokens: u32) -> (&'a str, &'a str) {
        text.split_at(text.floor_char_boundary(tokens as usize * self.token_bytes))
    }
}

/// A word of so many bytes: a space and letters, or only letters where there is little room for them.
fn word(mut id: u32, bytes: usize, text: &mut String) {
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
    use warmroute_sim::mix;

    fn piece(text: u64, tokens: u32) -> Piece {
        Piece { content: mix(text), tokens }
    }

    #[test]
    fn prompts_share_the_text_of_the_tokens_they_share() {
        for token_bytes in [2, 4, 7] {
            let speech = Speech::new(token_bytes);
            let one = speech.prompt(&[piece(1, 30), piece(2, 5)]);
            let other = speech.prompt(&[piece(1, 20), piece(3, 15)]);
            let bytes = usize::from(token_bytes);
            assert_eq!((one.len(), other.len()), (35 * bytes, 35 * bytes));
            let shared = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            assert_eq!(shared / bytes, 20);
        }
    }

    #[test]
    fn an_answer_is_repeated_as_it_was_given() {
        let mut speech = Speech::new(4);
        speech.hear(&[piece(1, 2), piece(2, 2)], "Amber oak calm. ");
        assert_eq!(speech.prompt(&[piece(1, 2), piece(2, 1)]), "Amber oak ca");
        let longer = speech.prompt(&[piece(2, 4)]);
        assert_eq!((&longer[..8], longer.len()), ("k calm. ", 16));
    }
}
