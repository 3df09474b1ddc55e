//! Memory that was replaced or unlinked and that a reader may still see.
//!
//! Pieces are collected into batches for the epoch collector, which frees a batch once every thread that was pinned
//! at that time has unpinned. Batching pays, because pinning and deferring cost about as much as changing a span.
#![allow(unsafe_code)]

use crate::body::Head;
use crate::child_lengths::ChildLengths;
use crate::children::Table;
use crate::node::{NodePtr, free_body, free_child_lengths};

/// Most pieces in one batch, and most bytes.
const ITEMS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 16;

/// One piece of retired memory. New readers cannot reach it.
pub(crate) enum Retired {
    Node(NodePtr),
    Body(*mut Head),
    ChildLengths(*mut ChildLengths),
    Table(Table),
}

// SAFETY: a `Retired` owns its piece: nothing in the tree points to it any more.
unsafe impl Send for Retired {}

impl Retired {
    /// # Safety
    /// No thread that could have seen the piece is still pinned.
    unsafe fn free(self) {
        // SAFETY: the caller's contract, and a `Retired` is made once for each piece.
        unsafe {
            match self {
                Retired::Node(node) => node.free(),
                Retired::Body(body) => free_body(body),
                Retired::ChildLengths(child_lengths) => free_child_lengths(child_lengths),
                Retired::Table(table) => table.free(),
            }
        }
    }
}

/// A batch that is being collected.
#[derive(Default)]
pub(crate) struct RetiredBatch {
    pieces: Vec<Retired>,
    bytes: usize,
}

impl RetiredBatch {
    /// Adds a piece, and hands the batch over once it is full.
    ///
    /// # Safety
    /// The piece is unlinked: no reader that is pinned from now on can find it. It is added once.
    pub unsafe fn add(&mut self, retired: Retired, bytes: usize) {
        let is_large = matches!(retired, Retired::Table(_));
        self.pieces.push(retired);
        self.bytes += bytes;
        if is_large || self.pieces.len() >= ITEMS_MAX || self.bytes >= BYTES_MAX {
            self.flush();
        }
    }

    /// Hands the batch to the collector.
    pub fn flush(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        self.bytes = 0;
        let pieces = std::mem::take(&mut self.pieces);
        let guard = crossbeam_epoch::pin();
        // SAFETY: the pieces were unlinked before this pin, so only threads pinned earlier can see them, and the
        // closure runs after those have unpinned.
        unsafe { guard.defer_unchecked(move || pieces.into_iter().for_each(|piece| piece.free())) };
        guard.flush();
    }
}

impl Drop for RetiredBatch {
    fn drop(&mut self) {
        self.flush();
    }
}
