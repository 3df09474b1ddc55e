//! A prompt as the index knows it.

use warmroute_index::RootKey;

/// A prompt cut into chunks.
#[derive(Clone, Copy, Debug)]
pub struct PromptChunks<'a> {
    /// Its namespace.
    pub root: RootKey,
    /// Digests of its whole chunks, in order.
    pub digests: &'a [u64],
    /// Bytes of each of them.
    pub chunk_bytes: u32,
    /// Bytes in all, the last part of a chunk included.
    pub bytes: u32,
}
