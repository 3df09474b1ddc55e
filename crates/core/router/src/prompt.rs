//! A prompt as the index knows it.

use warmroute_index::RootKey;

use crate::Unit;

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
