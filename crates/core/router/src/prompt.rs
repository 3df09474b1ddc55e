//! Prompts in the form that the index looks up.

use warmroute_index::{RootKey, Span};
use warmroute_prompt::ChunkSizes;

use crate::Unit;

/// Maximum of presumed chunks: 26 MB, several times the longest contexts of today. The index presumes at most
/// the worker's KV cache.
pub(crate) const PRESUMED_CHUNKS_MAX: usize = 8_192;

/// A prompt cut into chunks.
#[derive(Clone, Copy, Debug)]
pub struct PromptChunks<'a> {
    /// Root of its namespace.
    pub root: RootKey,
    /// Digests of its whole chunks, in order.
    pub digests: &'a [u64],
    /// Length of the first chunk in bytes; later ones are longer, see [`ChunkSizes`].
    pub chunk_bytes: u32,
    /// Length of the prompt in bytes, the incomplete last chunk included.
    pub bytes: u32,
}

impl PromptChunks<'_> {
    fn sizes(&self) -> ChunkSizes {
        ChunkSizes::of_unit(self.chunk_bytes)
    }

    /// The chunks as spans, with their estimated tokens.
    pub(crate) fn spans(&self, tokens_in: impl Fn(u32) -> u32) -> impl Iterator<Item = Span> {
        let sizes = self.sizes();
        let digests = self.digests.iter().take(PRESUMED_CHUNKS_MAX).enumerate();
        digests.map(move |(chunk, &digest)| {
            let bytes = sizes.bytes_of(chunk).min(Span::BYTES_MAX);
            Span { digest, bytes, tokens: tokens_in(bytes).clamp(1, Span::TOKENS_MAX) }
        })
    }

    /// Number of chunks in the first `bytes`, a partial one included.
    pub(crate) fn chunks_in(&self, bytes: u32) -> u32 {
        let whole = self.sizes().whole(bytes.into());
        let is_partial = self.sizes().bytes_before(whole) < u64::from(bytes);
        whole as u32 + u32::from(is_partial)
    }

    /// Length of the chunk at this offset: the resolution of a match there.
    pub(crate) fn chunk_bytes_at(&self, bytes: u32) -> u32 {
        self.sizes().bytes_of(self.sizes().whole(bytes.into()))
    }
}

/// A prompt in the unit in which a family of engines reports its cache: text or tokens.
#[derive(Clone, Copy, Debug)]
pub struct PromptText<'a> {
    /// Root of its namespace, by [`Inspect::text_root`](crate::Inspect::text_root).
    pub root: RootKey,
    /// The prompt up to its end or its first part that is not text.
    pub bytes: &'a [u8],
    /// Whether the engines' blocks are compared as bytes or as tokens.
    pub unit: Unit,
}
