//! Block names: which prompts share which beginning.
//!
//! A block's name is a hash over its tokens, seeded with the name of the block before it; the first is seeded with
//! the namespace (model or adapter, cache salt). So, as in vLLM, equal names mean that everything up to the block is
//! equal.

use warmroute_engine::BlockName;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tokens::Token;

/// The names of a sequence's full blocks, growing token by token.
#[derive(Clone)]
pub(crate) struct Chain {
    names: Vec<BlockName>,
    /// Tokens since the last full block.
    tail: Vec<u8>,
    /// The last full block's name, or the namespace's.
    parent: u64,
    block_bytes: usize,
    tokens: u32,
}

/// Bytes that a token adds to what is hashed.
const TOKEN_BYTES: usize = size_of::<Token>();

impl Chain {
    /// An empty chain in the namespace of this model (an adapter's name where there is one) and salt.
    pub(crate) fn new(model: &str, salt: &str, block_size: u32) -> Chain {
        let model_seed = xxh3_64_with_seed(model.as_bytes(), 0);
        let parent = xxh3_64_with_seed(salt.as_bytes(), model_seed);
        let block_bytes = block_size as usize * TOKEN_BYTES;
        Chain { names: Vec::new(), tail: Vec::with_capacity(block_bytes), parent, block_bytes, tokens: 0 }
    }

    /// Appends tokens.
    pub(crate) fn extend(&mut self, tokens: impl IntoIterator<Item = Token>) {
        for token in tokens {
            self.tail.extend_from_slice(&token.to_le_bytes());
            self.tokens += 1;
            if self.tail.len() == self.block_bytes {
                self.fill_block();
            }
        }
    }

    fn fill_block(&mut self) {
        self.parent = xxh3_64_with_seed(&self.tail, self.parent);
        self.names.push(BlockName(self.parent));
        self.tail.clear();
    }

    /// Tokens so far.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The names, for the engine.
    pub(crate) fn into_names(self) -> Vec<BlockName> {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(model: &str, salt: &str, tokens: impl IntoIterator<Item = Token>) -> Vec<BlockName> {
        let mut chain = Chain::new(model, salt, 4);
        chain.extend(tokens);
        chain.into_names()
    }

    #[test]
    fn only_full_blocks_are_named() {
        assert_eq!(names("m", "", 0..3).len(), 0);
        assert_eq!(names("m", "", 0..8).len(), 2);
        assert_eq!(names("m", "", 0..11).len(), 2);
    }

    #[test]
    fn a_name_stands_for_everything_before_it() {
        let a = names("m", "", [1, 2, 3, 4, 9, 9, 9, 9]);
        let b = names("m", "", [1, 2, 3, 5, 9, 9, 9, 9]);
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1], b[1], "same tokens, other beginning");
    }

    #[test]
    fn model_and_salt_keep_prompts_apart() {
        let plain = names("m", "", 0..4);
        assert_ne!(plain, names("adapter", "", 0..4));
        assert_ne!(plain, names("m", "tenant", 0..4));
        assert_ne!(names("a", "b", 0..4), names("b", "a", 0..4));
        assert_eq!(plain, names("m", "", 0..4));
    }
}
