//! Chunk digests of a prompt.
//!
//! The canonical bytes are written to a reused buffer in one pass, then digested. (Digesting while writing
//! was slower: chunk boundaries cost more than the copy.) Prompts that share their first bytes share the
//! digests of exactly the whole chunks in them.

use crate::canonical::MEDIA;
use crate::{Body, ChunkSizes, write_prompt};

/// Bytes of a prompt's first chunks: about four engine blocks of 16 tokens. Smaller chunks cost more memory
/// per prompt, larger ones lose more of a prompt's end. Later chunks are longer: see [`ChunkSizes`].
pub const CHUNK_BYTES: usize = 256;

const SIZES: ChunkSizes = ChunkSizes::of_unit(CHUNK_BYTES as u32);

/// Chunks of one prompt. Reusing the value avoids allocation.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    canonical: Vec<u8>,
    digests: Vec<u64>,
}

impl Chunks {
    /// Cuts the body's prompt into chunks and digests each with `digest`.
    pub fn cut(&mut self, body: &Body<'_>, digest: impl FnMut(&[u8]) -> u64) {
        self.canonical.clear();
        write_prompt(body, &mut self.canonical);
        self.digests.clear();
        self.digests.extend(SIZES.cut(&self.canonical).map(digest));
    }

    /// Cuts and digests a prompt that was rendered elsewhere.
    pub fn cut_text(text: &[u8], digest: impl FnMut(&[u8]) -> u64) -> Vec<u64> {
        SIZES.cut(text).map(digest).collect()
    }

    /// Digests of the whole chunks, in order.
    pub fn digests(&self) -> &[u64] {
        &self.digests
    }

    /// Whether the prompt has media, whose tokens only an engine can count.
    pub fn has_media(&self) -> bool {
        memchr::memchr(MEDIA, &self.canonical).is_some()
    }

    /// Bytes of the prompt, including an incomplete last chunk.
    pub fn bytes(&self) -> usize {
        self.canonical.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use xxhash_rust::xxh3::xxh3_64;

    fn chunks_of(text: &str) -> Chunks {
        let mut chunks = Chunks::default();
        chunks.cut(&Body::read(text.as_bytes()).unwrap(), xxh3_64);
        chunks
    }

    #[test]
    fn an_image_counts_as_media() {
        let chat =
            |part: &str| chunks_of(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#));
        assert!(chat(r#"{"type":"image_url","image_url":{"url":"http://a/b.png"}}"#).has_media());
        assert!(!chat(r#"{"type":"text","text":"ü image_url"}"#).has_media());
    }

    proptest! {
        /// The digests equal those of the canonical string, however the body is escaped and split into turns.
        #[test]
        fn chunks_are_those_of_the_canonical_string(turns in prop::collection::vec("[a-z\\n\"é]{0,700}", 0..6)) {
            let messages: Vec<_> = turns.iter().map(|text| json!({"role": "user", "content": text})).collect();
            let text = json!({"messages": messages}).to_string();
            let mut canonical = Vec::new();
            write_prompt(&Body::read(text.as_bytes()).unwrap(), &mut canonical);
            let chunks = chunks_of(&text);
            let truth: Vec<u64> = SIZES.cut(&canonical).map(xxh3_64).collect();
            prop_assert_eq!(chunks.digests(), truth);
            prop_assert_eq!(chunks.bytes(), canonical.len());
        }

        /// Two prompts share exactly the whole chunks of their common prefix.
        #[test]
        fn shared_prefixes_share_exactly_their_whole_chunks(shared in 0_usize..2_000, left in 1_usize..600, right in 1_usize..600) {
            let prompt = |end: &str, n: usize| json!({"prompt": "s".repeat(shared) + &end.repeat(n)}).to_string();
            let (a, b) = (chunks_of(&prompt("a", left)), chunks_of(&prompt("b", right)));
            let common = a.digests().iter().zip(b.digests()).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common, shared / CHUNK_BYTES);
        }
    }
}
