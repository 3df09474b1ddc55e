//! The inputs and results of operations on the index.

use crate::root::RootKey;

/// The predecessor of a stored chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// None: the chain begins a prompt.
    Root(RootKey),
    /// The span that the same holder stored under this name.
    Name(u64),
}

/// A prompt to look up.
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Digests of its chunks, for roots whose spans are cut the same way.
    Chunks(&'a [u64]),
    /// Its bytes, for roots whose spans have any length. Lookups digest them with [`Index::digester`](crate::Index::digester).
    Bytes(&'a [u8]),
}

/// The result of a store. `placed`, `parked` and `refused` add up to the spans offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Spans that are now in the index.
    pub placed: usize,
    /// Spans that wait for their parent, which this holder has not stored.
    pub parked: usize,
    /// Spans refused because the budget is exhausted or their size cannot be indexed, and all spans behind them.
    pub refused: usize,
    /// Spans that waited for one of these and are now in the index too.
    pub grafted: usize,
}

/// The result of a removal. Both counts add up to the names given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that the holder held, or that waited for their parent.
    pub known: usize,
    /// Names that were never stored, or were removed as often as stored.
    pub unknown: usize,
}
