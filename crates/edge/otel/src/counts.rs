//! What became of spans.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Spans by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Accepted by the collector.
    pub sent: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Lost because the collector could not be reached or answered with an error.
    pub failed: u64,
    /// Refused by the collector, within a request that it accepted.
    pub rejected: u64,
}

/// Counts spans.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

impl SpanCounters {
    pub(crate) fn read(&self) -> SpanCounts {
        SpanCounts {
            sent: self.sent.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
        }
    }

    /// Counts an accepted batch.
    pub(crate) fn count_sent(&self, spans: u64, rejected: u64) {
        let rejected = rejected.min(spans);
        self.sent.fetch_add(spans - rejected, Relaxed);
        self.rejected.fetch_add(rejected, Relaxed);
    }

    pub(crate) fn count_dropped(&self, spans: u64) {
        self.dropped.fetch_add(spans, Relaxed);
    }

    pub(crate) fn count_failed(&self, spans: u64) {
        self.failed.fetch_add(spans, Relaxed);
    }
}
