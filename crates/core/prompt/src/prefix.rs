//! Prefix key of a prompt: prompts with the same key go to the same worker.
//!
//! The beginning is defined in one of three ways. The default is the first 1,024 tokens, at four bytes per
//! token: a key that ends inside a system prompt shared by all requests would send all of them to one worker.
//! The cache salt is part of every key, because caches are not shared across salts. The model is not, because
//! every model has its own pool of workers.

use blake2::digest::consts::U8;
use blake2::{Blake2b, Digest};
use warmroute_types::OptionValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::body::BYTES_PER_TOKEN;
use crate::{Body, Sink, write_prompt, write_system};

/// Size, reach and stride of the windows of [`PrefixSpan::Windows`], in bytes.
const WINDOW_BYTES: usize = 256 * BYTES_PER_TOKEN;
const REACH_BYTES: usize = 4_000 * BYTES_PER_TOKEN;
const STRIDE_BYTES: usize = 64 * BYTES_PER_TOKEN;

/// Part of the prompt that makes the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixSpan {
    /// The first tokens. A shorter prompt is keyed by everything up to the end of the first user turn: that
    /// part stays the same while a conversation grows, and differs between conversations with one system
    /// prompt.
    #[default]
    Tokens,
    /// Tools and system prompt.
    System,
    /// The smallest hash of all windows of 256 tokens in the first 4,000 tokens. Prompts that share most
    /// windows probably share the smallest hash, even at different positions.
    Windows,
}

impl OptionValue for PrefixSpan {
    const VALUES: &'static [(PrefixSpan, &'static str, &'static str)] = &[
        (PrefixSpan::Tokens, "tokens", "The first tokens of the prompt"),
        (PrefixSpan::System, "system", "Tools and system prompt"),
        (
            PrefixSpan::Windows,
            "windows",
            "The smallest hash of all 256-token windows in the first 4,000 tokens",
        ),
    ];
}

/// Hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixHash {
    /// Fast; the default.
    #[default]
    Xxh3,
    /// Cryptographic, so that clients cannot steer requests with collisions.
    Blake2b,
}

impl OptionValue for PrefixHash {
    const VALUES: &'static [(PrefixHash, &'static str, &'static str)] =
        &[(PrefixHash::Xxh3, "xxh3", "Fast"), (PrefixHash::Blake2b, "blake2b", "Cryptographic, slower")];
}

/// Rule for prefix keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRule {
    /// Part of the prompt.
    pub span: PrefixSpan,
    /// Length of [`PrefixSpan::Tokens`].
    pub tokens: u32,
    /// Hash function.
    pub hash: PrefixHash,
}

impl Default for PrefixRule {
    fn default() -> PrefixRule {
        PrefixRule { span: PrefixSpan::Tokens, tokens: 1_024, hash: PrefixHash::Xxh3 }
    }
}

impl PrefixHash {
    fn of(self, bytes: &[u8]) -> u64 {
        match self {
            PrefixHash::Xxh3 => xxh3_64(bytes),
            PrefixHash::Blake2b => u64::from_le_bytes(Blake2b::<U8>::digest(bytes).into()),
        }
    }
}

impl PrefixRule {
    /// Key of a prompt; `None` without a prompt. `scratch` is overwritten; reusing it avoids allocation.
    pub fn key(&self, body: &Body<'_>, scratch: &mut Vec<u8>) -> Option<u64> {
        scratch.clear();
        let key = match self.span {
            PrefixSpan::Tokens => {
                let head = self.head(body, scratch, (self.tokens as usize).max(1) * BYTES_PER_TOKEN);
                self.hash_of(&scratch[..head])
            }
            PrefixSpan::System => {
                write_system(body, scratch);
                self.hash_of(scratch)
            }
            PrefixSpan::Windows => {
                let head = self.head(body, scratch, REACH_BYTES);
                self.least_window(&scratch[..head])
            }
        };
        key.map(|key| key ^ self.namespace(body))
    }

    /// Writes the first `reach` bytes of the prompt. Returns how many of them make its key.
    fn head(&self, body: &Body<'_>, scratch: &mut Vec<u8>, reach: usize) -> usize {
        let mut head = Head { bytes: scratch, reach, first_user_turn: None };
        write_prompt(body, &mut head);
        if head.is_full() { reach } else { head.first_user_turn.unwrap_or(head.bytes.len()) }
    }

    fn hash_of(&self, bytes: &[u8]) -> Option<u64> {
        (!bytes.is_empty()).then(|| self.hash.of(bytes))
    }

    fn least_window(&self, head: &[u8]) -> Option<u64> {
        if head.len() < WINDOW_BYTES {
            return self.hash_of(head);
        }
        head.windows(WINDOW_BYTES).step_by(STRIDE_BYTES).map(|window| self.hash.of(window)).min()
    }

    /// Number of the cache namespace; zero without a salt.
    fn namespace(&self, body: &Body<'_>) -> u64 {
        body.salt().map_or(0, |salt| self.hash.of(&salt))
    }
}

/// Sink that keeps the first `reach` bytes.
struct Head<'a> {
    bytes: &'a mut Vec<u8>,
    reach: usize,
    /// End of the first user turn.
    first_user_turn: Option<usize>,
}

impl Sink for Head<'_> {
    fn push(&mut self, bytes: &[u8]) {
        let room = self.reach - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn user_turn_ended(&mut self) {
        self.first_user_turn.get_or_insert(self.bytes.len());
    }

    fn is_full(&self) -> bool {
        self.bytes.len() == self.reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(rule: PrefixRule, system: &str, turns: &[&str]) -> Option<u64> {
        let mut messages = vec![json!({"role": "system", "content": system})];
        messages.extend(turns.iter().map(|text| json!({"role": "user", "content": text})));
        let text = json!({ "messages": messages }).to_string();
        rule.key(&Body::read(text.as_bytes()).unwrap(), &mut Vec::new())
    }

    fn text(word: &str, bytes: usize) -> String {
        word.repeat(bytes / word.len() + 1)[..bytes].to_owned()
    }

    #[test]
    fn prompts_with_the_same_beginning_have_one_key() {
        for hash in [PrefixHash::Xxh3, PrefixHash::Blake2b] {
            let rule = PrefixRule { hash, ..PrefixRule::default() };
            let head = text("shared ", 5_000);
            assert_eq!(key(rule, &head, &["one"]), key(rule, &head, &["two"]));
            assert_ne!(key(rule, &text("other ", 5_000), &["one"]), key(rule, &head, &["one"]));
        }
    }

    #[test]
    fn no_length_of_a_shared_system_prompt_herds_by_default() {
        let rule = PrefixRule::default();
        for head_tokens in [10, 100, 300, 500, 600, 900] {
            for question_tokens in [5, 50, 300, 2_000] {
                let head = text("You are helpful. ", head_tokens * 4);
                let ask = |word: &str| key(rule, &head, &[&text(word, question_tokens * 4)]);
                assert_ne!(ask("one "), ask("two "), "{head_tokens} + {question_tokens} tokens");
            }
        }
        let short = PrefixRule { tokens: 200, ..rule };
        let head = text("You are helpful. ", 1_000);
        assert_eq!(key(short, &head, &["one"]), key(short, &head, &["two"]), "a key that ends inside does");
    }

    #[test]
    fn a_growing_conversation_changes_its_key_once() {
        let rule = PrefixRule::default();
        let turn = text("and then ", 200);
        let mut keys: Vec<_> = (1..60).map(|turns| key(rule, "Be brief.", &vec![&*turn; turns])).collect();
        keys.dedup();
        assert_eq!(keys.len(), 2, "when it grows past the key's reach");
    }

    #[test]
    fn a_different_salt_gives_a_different_key() {
        let with = |salt: &str| {
            let text = json!({"prompt": "Once upon", "cache_salt": salt}).to_string();
            PrefixRule::default().key(&Body::read(text.as_bytes()).unwrap(), &mut Vec::new())
        };
        assert_eq!(with("a"), with("a"));
        assert_ne!(with("a"), with("b"));
    }

    #[test]
    fn the_system_key_ignores_user_turns() {
        let rule = PrefixRule { span: PrefixSpan::System, ..PrefixRule::default() };
        assert_eq!(key(rule, "Be brief.", &["one"]), key(rule, "Be brief.", &["two", "three"]));
        assert_ne!(key(rule, "Be brief.", &["one"]), key(rule, "Be kind.", &["one"]));
    }

    #[test]
    fn windows_find_shared_text_at_another_position() {
        let rule = PrefixRule { span: PrefixSpan::Windows, ..PrefixRule::default() };
        // Numbered words, so that all windows differ.
        let document: String = (0..2_400).map(|n| format!("{n:05} ")).collect();
        // The other question is longer by a whole number of strides of 64 tokens.
        let same = (0..40).filter(|n| {
            let document = &document[n * 12..];
            let (ask, ask_longer) = (text("why ", 256), text("why ", 512));
            key(rule, &ask, &[document]) == key(rule, &ask_longer, &[document])
        });
        let same = same.count();
        assert!(same >= 30, "most keys agree: {same} of 40");
    }

    #[test]
    fn an_empty_prompt_has_no_key() {
        let body = Body::read(b"{}").unwrap();
        for span in [PrefixSpan::Tokens, PrefixSpan::System, PrefixSpan::Windows] {
            assert_eq!(PrefixRule { span, ..PrefixRule::default() }.key(&body, &mut Vec::new()), None);
        }
    }
}
