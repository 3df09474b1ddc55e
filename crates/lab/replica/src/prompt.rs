//! From a conversation to prompt tokens: the toy chat template.
//!
//! `bos (header content end-of-turn)* header(assistant)`. Chunks restart with every piece of content, so an answer that
//! comes back as an assistant message in the next turn has exactly the tokens it was generated with, and is found in
//! the cache. That is what a good chat template does, too.

use xxhash_rust::xxh3::xxh3_64;

use crate::model;
use crate::tokens::{self, Token, Tokenizer};

/// A prompt being rendered.
pub(crate) struct Prompt {
    tokenizer: Tokenizer,
    tokens: Vec<Token>,
    /// Of pairs: text that is not cut yet. A real tokenizer sees the rendered prompt as one text in which it looks for
    /// special tokens, so pieces that touch are cut together and a special token that a user wrote is one.
    text: String,
}

impl Prompt {
    /// An empty prompt: only its beginning.
    pub(crate) fn new(tokenizer: Tokenizer) -> Prompt {
        Prompt { tokenizer, tokens: vec![tokens::BOS], text: String::new() }
    }

    /// A prompt of plain text, as the completions API has it.
    pub(crate) fn of_text(text: &str, tokenizer: Tokenizer) -> Vec<Token> {
        let mut prompt = Prompt::new(tokenizer);
        prompt.text(text);
        prompt.into_tokens()
    }

    /// How it is cut.
    pub(crate) fn tokenizer(&self) -> Tokenizer {
        self.tokenizer
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

    /// A piece of text inside a turn.
    pub(crate) fn text(&mut self, text: &str) {
        match self.tokenizer {
            Tokenizer::Quads => self.tokenizer.encode(text.as_bytes(), &mut self.tokens),
            Tokenizer::Pairs => self.text.push_str(text),
        }
    }

    /// An image inside a turn, given by whatever identifies it (its URL or its data). A real engine computes an
    /// embedding; here its hash is enough to tell images apart.
    pub(crate) fn image(&mut self, identity: &str) {
        self.special(tokens::IMAGE);
        self.tokenizer.encode(&xxh3_64(identity.as_bytes()).to_be_bytes(), &mut self.tokens);
    }

    /// Closes a turn.
    pub(crate) fn close(&mut self) {
        self.special(tokens::END_OF_TURN);
    }

    /// The prompt as the model gets it when it is its turn to speak.
    pub(crate) fn for_answer(mut self) -> Vec<Token> {
        self.open("assistant");
        self.into_tokens()
    }

    /// The prompt as far as it is rendered.
    pub(crate) fn into_tokens(mut self) -> Vec<Token> {
        self.cut_text();
        self.tokens
    }

    fn special(&mut self, token: Token) {
        self.cut_text();
        self.tokens.push(token);
    }

    /// Cuts what is waiting, at the special tokens that are written in it.
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
    fn an_answer_that_comes_back_keeps_its_tokens() {
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
    fn images_are_distinguished_by_a_few_tokens() {
        let [mut cat, mut dog] = [Prompt::new(Tokenizer::Quads), Prompt::new(Tokenizer::Quads)];
        cat.image("https://example.com/cat.png");
        dog.image("https://example.com/dog.png");
        let (cat, dog) = (cat.into_tokens(), dog.into_tokens());
        assert_ne!(cat, dog);
        assert!(cat.len() <= 5, "{cat:?}");
    }
}
