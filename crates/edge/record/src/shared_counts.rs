//! Counts of lines, shared by requests and the thread that writes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of lines so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines in files.
    pub written: u64,
    /// Lines dropped because the writer was behind.
    pub dropped: u64,
    /// Lines that could not be written.
    pub failed: u64,
}

/// Lines written, dropped and failed, counted by the writer's thread and read for metrics.
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

    pub fn read(&self) -> Counts {
        Counts {
            written: self.written.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
        }
    }
}
