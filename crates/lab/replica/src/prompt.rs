//! From a conversation to prompt tokens: the toy chat template.
//!
//! `bos (header content end-of-turn)* header(assistant)`. Chunks restart with every piece of content, so an answer that
//! comes back as an assistant message in the next turn has exactly the tokens it was generated with, and is found in
//! the cache. That is what a good chat template does, too.

use xxhash_rust::xxh3::xxh3_64;

use crate::tokens::{self, Token};

/// A prompt being rendered.
pub(crate) struct Prompt {
    tokens: Vec<Token>,
}

impl Prompt {
    /// An empty prompt: only its beginning.
    pub(crate) fn new() -> Prompt {
        Prompt { tokens: vec![tokens::BOS] }
    }

    /// A prompt of plain text, as the completions API has it.
    pub(crate) fn of_text(text: &str) -> Vec<Token> {
        let mut prompt = Prompt::new();
        prompt.text(text);
        prompt.tokens
    }

    /// Opens a turn.
    pub(crate) fn open(&mut self, role: &str) {
        match tokens::header(role) {
            Some(header) => self.tokens.push(header),
            None => {
                self.tokens.push(tokens::HEADER_OTHER);
                self.text(role);
            }
        }
    }

    /// A piece of text inside a turn.
    pub(crate) fn text(&mut self, text: &str) {
        tokens::encode(text.as_bytes(), &mut self.tokens);
    }

    /// An image inside a turn, given by whatever identifies it (its URL or its data). A real engine computes an
    /// embedding; here its hash is enough to tell images apart.
    pub(crate) fn image(&mut self, identity: &str) {
        self.tokens.push(tokens::IMAGE);
        tokens::encode(&xxh3_64(identity.as_bytes()).to_be_bytes(), &mut self.tokens);
    }

    /// Closes a turn.
    pub(crate) fn close(&mut self) {
        self.tokens.push(tokens::END_OF_TURN);
    }

    /// The prompt as the model gets it when it is its turn to speak.
    pub(crate) fn for_answer(mut self) -> Vec<Token> {
        self.open("assistant");
        self.tokens
    }

    /// The prompt as far as it is rendered.
    pub(crate) fn into_tokens(self) -> Vec<Token> {
        self.tokens
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
        let mut first = Prompt::new();
        turn(&mut first, "user", "hello");
        let mut generated = first.for_answer();
        tokens::encode(b"words as generated", &mut generated);
        generated.push(tokens::END_OF_TURN);

        let mut second = Prompt::new();
        turn(&mut second, "user", "hello");
        turn(&mut second, "assistant", "words as generated");
        turn(&mut second, "user", "more");
        assert_eq!(second.into_tokens()[..generated.len()], generated);
    }

    #[test]
    fn an_unknown_role_is_part_of_the_prompt() {
        let [mut critic, mut editor] = [Prompt::new(), Prompt::new()];
        turn(&mut critic, "critic", "fine");
        turn(&mut editor, "editor", "fine");
        assert_ne!(critic.into_tokens(), editor.into_tokens());
    }

    #[test]
    fn images_are_told_apart_in_a_few_tokens() {
        let [mut cat, mut dog] = [Prompt::new(), Prompt::new()];
        cat.image("https://example.com/cat.png");
        dog.image("https://example.com/dog.png");
        let (cat, dog) = (cat.into_tokens(), dog.into_tokens());
        assert_ne!(cat, dog);
        assert!(cat.len() <= 5, "{cat:?}");
    }
}
