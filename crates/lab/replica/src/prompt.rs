//! Prompt tokens of a conversation: a simple chat template.
//!
//! `bos (header content end-of-turn)* header(assistant)`. Chunks restart with every piece of content. An
//! answer that returns as an assistant message in the next turn therefore has exactly its generated tokens,
//! and hits the cache, as with real chat templates.

use crate::model;
use crate::tokens::{self, Token, Tokenizer};

/// A prompt being rendered.
pub(crate) struct Prompt {
    tokenizer: Tokenizer,
    tokens: Vec<Token>,
    /// With `Pairs`, text not cut yet. A real tokenizer sees the rendered prompt as one text and searches it
    /// for special tokens, so adjacent pieces are cut together and special tokens written by users count.
    text: String,
}

impl Prompt {
    /// An empty prompt: only its first token.
    pub(crate) fn new(tokenizer: Tokenizer) -> Prompt {
        Prompt { tokenizer, tokens: vec![tokens::BOS], text: String::new() }
    }

    /// Tokens of a plain prompt, as in the completions API.
    pub(crate) fn of_text(text: &str, tokenizer: Tokenizer) -> Vec<Token> {
        let mut prompt = Prompt::new(tokenizer);
        prompt.text(text);
        prompt.into_tokens()
    }

    /// Tokenizer of the prompt.
    pub(crate) fn tokenizer(&self) -> Tokenizer {
        self.tokenizer
    }

    /// Number of tokens so far.
    pub(crate) fn len(&mut self) -> usize {
        self.cut_text();
        self.tokens.len()
    }

    /// Opens a turn.
    pub(crate) fn open(&mut self, role: &str) {
        match tokens::header(role) {
            Some(header) => self.special(header),
            None => {
                self.special(tokens::HEADER_OTHER);
                self.text(role);
            }
        }
    }

    /// Adds text to the open turn.
    pub(crate) fn text(&mut self, text: &str) {
        match self.tokenizer {
            Tokenizer::Quads => self.tokenizer.encode(text.as_bytes(), &mut self.tokens),
            Tokenizer::Pairs => self.text.push_str(text),
        }
    }

    /// Adds an image, given by its URL or data. A real engine computes an embedding; here a hash
    /// distinguishes images.
    pub(crate) fn image(&mut self, identity: &str) {
        self.cut_text();
        self.tokens.extend(tokens::image(identity));
    }

    /// Closes a turn.
    pub(crate) fn close(&mut self) {
        self.special(tokens::END_OF_TURN);
    }

    /// The finished prompt, up to the assistant's turn.
    pub(crate) fn for_answer(mut self) -> Vec<Token> {
        self.open("assistant");
        self.into_tokens()
    }

    /// The prompt rendered so far.
    pub(crate) fn into_tokens(mut self) -> Vec<Token> {
        self.cut_text();
        self.tokens
    }

    fn special(&mut self, token: Token) {
        self.cut_text();
        self.tokens.push(token);
    }

    /// Cuts the pending text at the special tokens in it.
    fn cut_text(&mut self) {
        let text = std::mem::take(&mut self.text);
        let mut rest = text.as_str();
        while let Some((at, token, length)) = model::first_special(rest) {
            self.tokenizer.encode(&rest.as_bytes()[..at], &mut self.tokens);
            self.tokens.push(token);
            rest = &rest[at + length..];
        }
        self.tokenizer.encode(rest.as_bytes(), &mut self.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(prompt: &mut Prompt, role: &str, text: &str) {
        prompt.open(role);
        prompt.text(text);
        prompt.close();
    }

    #[test]
    fn a_returned_answer_keeps_its_tokens() {
        let mut first = Prompt::new(Tokenizer::Quads);
        turn(&mut first, "user", "hello");
        let mut generated = first.for_answer();
        Tokenizer::Quads.encode(b"words as generated", &mut generated);
        generated.push(tokens::END_OF_TURN);

        let mut second = Prompt::new(Tokenizer::Quads);
        turn(&mut second, "user", "hello");
        turn(&mut second, "assistant", "words as generated");
        turn(&mut second, "user", "more");
        assert_eq!(second.into_tokens()[..generated.len()], generated);
    }

    #[test]
    fn special_tokens_in_the_text_are_special_where_a_real_tokenizer_sees_them() {
        let cut = |text: &str| Prompt::of_text(text, Tokenizer::Pairs);
        let plain = cut("abcdef");
        let special = cut("abc<|end|>def");
        assert_eq!(special[0], tokens::BOS);
        assert_eq!(special[3], tokens::END_OF_TURN);
        assert_eq!((plain.len(), special.len()), (4, 6));
        assert_eq!(cut("<|endless|>").len(), 1 + 6);
    }

    #[test]
    fn an_unknown_role_is_part_of_the_prompt() {
        let [mut critic, mut editor] = [Prompt::new(Tokenizer::Quads), Prompt::new(Tokenizer::Quads)];
        turn(&mut critic, "critic", "fine");
        turn(&mut editor, "editor", "fine");
        assert_ne!(critic.into_tokens(), editor.into_tokens());
    }

    #[test]
    fn images_are_distinguished_by_their_tokens() {
        let [mut cat, mut dog] = [Prompt::new(Tokenizer::Quads), Prompt::new(Tokenizer::Quads)];
        cat.image("https://example.com/cat.png");
        dog.image("https://example.com/dog.png");
        let (cat, dog) = (cat.into_tokens(), dog.into_tokens());
        assert_ne!(cat, dog);
        assert!((21..=51).contains(&cat.len()), "{cat:?}");
        assert!(cat[1..].iter().all(|token| tokens::seen(*token) == tokens::IMAGE));
    }
}
