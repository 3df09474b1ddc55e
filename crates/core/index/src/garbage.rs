//! What was replaced or unlinked and may still be under a reader's eyes.
//!
//! It waits here until a batch is worth handing to the epoch collector, which frees it once every reader that was
//! pinned at that time has gone. Batches, because pinning and deferring cost about as much as changing a span.
#![allow(unsafe_code)]

use crate::body::Head;
use crate::children::Table;
use crate::fan::Fan;
use crate::node::{NodeRef, free_body, free_fan};

/// Pieces in one batch, and their bytes, at most.
const PIECES_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 16;

/// One piece of waste. It is unreachable for new readers.
pub(crate) enum Waste {
    Node(NodeRef),
    Body(*mut Head),
    Fan(*mut Fan),
    Table(Table),
}

// SAFETY: a piece is owned by whoever holds the `Waste`: nothing in the tree points to it any more.
unsafe impl Send for Waste {}

impl Waste {
    /// # Safety
    /// No reader that could have seen the piece is left.
    unsafe fn free(self) {
        // SAFETY: the caller's contract, and a `Waste` is made once for each piece.
        unsafe {
            match self {
                Waste::Node(node) => node.free(),
                Waste::Body(body) => free_body(body),
                Waste::Fan(fan) => free_fan(fan),
                Waste::Table(table) => table.free(),
            }
        }
    }
}

/// A batch in the making.
#[derive(Default)]
pub(crate) struct Garbage {
    pieces: Vec<Waste>,
    bytes: usize,
}

impl Garbage {
    pub fn put(&mut self, waste: Waste, bytes: usize) {
        let is_large = matches!(waste, Waste::Table(_));
        self.pieces.push(waste);
        self.bytes += bytes;
        if is_large || self.pieces.len() >= PIECES_MAX || self.bytes >= BYTES_MAX {
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
        // SAFETY: the pieces were unlinked before this pin, so only readers pinned earlier can see them, and the
        // closure runs after those have gone.
        unsafe { guard.defer_unchecked(move || pieces.into_iter().for_each(|piece| piece.free())) };
        guard.flush();
    }
}

impl Drop for Garbage {
    fn drop(&mut self) {
        self.flush();
    }
}
