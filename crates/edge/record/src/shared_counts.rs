//! Counts of entries, shared by the recorder and its writer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counts.
#[derive(Debug, Default)]
pub struct SharedCounts {
    pub written: AtomicU64,
    pub dropped: AtomicU64,
    pub failed: AtomicU64,
}

impl SharedCounts {
    pub fn wrote(&self, lines: u64) {
        self.written.fetch_add(lines, Relaxed);
    }

    pub fn failed(&self, lines: u64) {
        self.failed.fetch_add(lines, Relaxed);
    }
}
