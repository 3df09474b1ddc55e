//! The length of a prompt in tokens, without its tokenizer.

use crate::Body;
use crate::body::BYTES_PER_TOKEN;
use crate::canonical::{Sink, write_prompt};

impl Body<'_> {
    /// Prompt length in tokens: exact for token ids, estimated for text. An image counts as its mark in the
    /// canonical prompt, because only the engine knows its tokens.
    pub fn prompt_tokens(&self) -> u32 {
        let fields = [self.prompt.tools, self.prompt.system, self.prompt.turns];
        let has_media =
            self.prompt.turns.is_some_and(|turns| memchr::memmem::find(turns, b";base64,").is_some());
        let tokens = if has_media {
            let mut counted = Counted(0);
            write_prompt(self, &mut counted);
            counted.0.div_ceil(BYTES_PER_TOKEN)
        } else {
            fields.into_iter().flatten().map(tokens_of).sum()
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

/// Counts canonical bytes.
struct Counted(usize);

impl Sink for Counted {
    fn push(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Tokens of a value: an array of numbers has one token per number; anything else is text.
fn tokens_of(value: &[u8]) -> usize {
    let is_ids = value.iter().skip(1).find(|b| !b.is_ascii_whitespace()).is_some_and(u8::is_ascii_digit);
    if value.first() == Some(&b'[') && is_ids {
        return memchr::memchr_iter(b',', value).count() + 1;
    }
    value.len().div_ceil(BYTES_PER_TOKEN)
}
