//! Text for prompts that have none: what is the same token is the same word, and nothing else is.
//!
//! Four bytes a token, because that is how simulated engines cut text, so a prompt has as many tokens in real time as in virtual
//! time. An answer is what the engine said: a later prompt of the session that repeats it must say the same to find it cached.

use std::collections::HashMap;

use warmroute_sim::{Piece, token_ids};

/// Bytes of a token.
const TOKEN_BYTES: usize = 4;

/// What one session's pieces say.
#[derive(Default)]
pub struct Speech {
    /// Answers, by their piece's number.
    heard: HashMap<u64, String>,
}

impl Speech {
    /// The text of a prompt.
    pub fn prompt(&self, pieces: &[Piece]) -> String {
        let mut text = String::new();
        pieces.iter().for_each(|&piece| self.say(piece, &mut text));
        text
    }

    fn say(&self, piece: Piece, text: &mut String) {
        let heard = self.heard.get(&piece.content).map_or("", |heard| cut(heard, piece.tokens).0);
        text.push_str(heard);
        let mut ids = Vec::new();
        let from = (heard.len() / TOKEN_BYTES) as u32;
        token_ids([piece].into_iter(), from, piece.tokens, &mut ids);
        ids.into_iter().for_each(|id| word(id, text));
    }

    /// Remembers what the pieces of an answer turned out to be.
    pub fn hear(&mut self, answer: &[Piece], mut text: &str) {
        for piece in answer {
            let (own, rest) = cut(text, piece.tokens);
            self.heard.insert(piece.content, own.to_owned());
            text = rest;
        }
    }
}

/// The first so many tokens of a text, and the rest.
fn cut(text: &str, tokens: u32) -> (&str, &str) {
    text.split_at(text.floor_char_boundary(tokens as usize * TOKEN_BYTES))
}

/// A space and three letters.
fn word(id: u32, text: &mut String) {
    let letter = |at: u32| char::from(b'a' + (id / 26_u32.pow(at) % 26) as u8);
    text.extend([' ', letter(0), letter(1), letter(2)]);
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
        let speech = Speech::default();
        let one = speech.prompt(&[piece(1, 30), piece(2, 5)]);
        let other = speech.prompt(&[piece(1, 20), piece(3, 15)]);
        assert_eq!((one.len(), other.len()), (140, 140));
        let shared = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        assert_eq!(shared / TOKEN_BYTES, 20);
    }

    #[test]
    fn an_answer_is_repeated_as_it_was_given() {
        let mut speech = Speech::default();
        speech.hear(&[piece(1, 2), piece(2, 2)], "Amber oak calm. ");
        assert_eq!(speech.prompt(&[piece(1, 2), piece(2, 1)]), "Amber oak ca");
        let longer = speech.prompt(&[piece(2, 4)]);
        assert_eq!((&longer[..8], longer.len()), ("k calm. ", 16));
    }
}
