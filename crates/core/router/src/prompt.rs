//! A prompt as the index knows it.

use warmroute_index::{RootKey, Span};
use warmroute_prompt::ChunkSizes;

use crate::Unit;

/// No more chunks of a prompt are presumed: 26 MB, several times the longest contexts of today. The index presumes no more than the
/// worker's KV cache holds.
pub(crate) const PRESUMED_CHUNKS_MAX: usize = 8_192;

/// A prompt cut into chunks.
#[derive(Clone, Copy, Debug)]
pub struct PromptChunks<'a> {
    /// Its namespace.
    pub root: RootKey,
    /// Digests of its whole chunks, in order.
    pub digests: &'a [u64],
    /// Bytes of the first of them; later ones are longer, by [`ChunkSizes`].
    pub chunk_bytes: u32,
    /// Bytes in all, the last part of a chunk included.
    pub bytes: u32,
}

impl PromptChunks<'_> {
    fn sizes(&self) -> ChunkSizes {
        ChunkSizes::of_unit(self.chunk_bytes)
    }

    /// The chunks as spans, with the tokens that each is believed to have.
    pub(crate) fn spans(&self, tokens_in: impl Fn(u32) -> u32) -> impl Iterator<Item = Span> {
        let sizes = self.sizes();
        let digests = self.digests.iter().take(PRESUMED_CHUNKS_MAX).enumerate();
        digests.map(move |(chunk, &digest)| {
            let bytes = sizes.bytes_of(chunk).min(Span::BYTES_MAX);
            Span { digest, bytes, tokens: tokens_in(bytes).clamp(1, Span::TOKENS_MAX) }
        })
    }

    /// How many chunks so many bytes reach into, the last one perhaps in part.
    pub(crate) fn chunks_in(&self, bytes: u32) -> u32 {
        let whole = self.sizes().whole(bytes.into());
        let is_partial = self.sizes().bytes_before(whole) < u64::from(bytes);
        whole as u32 + u32::from(is_partial)
    }

    /// Bytes of the chunk at so many bytes from the start: by so much a match may be too short there.
    pub(crate) fn chunk_bytes_at(&self, bytes: u32) -> u32 {
        self.sizes().bytes_of(self.sizes().whole(bytes.into()))
    }
}

/// A prompt in the units in which a family of engines reports what it holds: the text that they tokenize, or its tokens.
#[derive(Clone, Copy, Debug)]
pub struct PromptText<'a> {
    /// Its namespace, by [`Router::text_root`](crate::Router::text_root).
    pub root: RootKey,
    /// From its beginning to its end, or to the first thing in it that is no text.
    pub bytes: &'a [u8],
    /// What it is made of.
    pub unit: Unit,
}
