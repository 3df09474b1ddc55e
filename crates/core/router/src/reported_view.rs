//! The three views that the router keeps of a reported cache.
//!
//! The index identifies holders by number. A worker with events has three holder numbers, so that one lookup
//! answers three questions:
//!
//! - *proven*: blocks of prompts. Their text tokenizes to the same tokens again.
//! - *sampled*: proven blocks plus blocks stored while decoding. Sampled tokens may differ from the
//!   tokenization of their text, so a prompt that repeats an answer may or may not hit them. Blocks confirmed
//!   by feedback become proven.
//! - *all tiers*: sampled blocks plus blocks in slower memory. Kept only once an engine reports slower
//!   memory, starting as a copy of *sampled*. It counts in how many tiers a block is stored, not in which.

use warmroute_index::HolderId;
use warmroute_types::{MAX_WORKERS, WorkerId};

/// One view of a worker's reported cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedView {
    /// Blocks of prompts.
    Proven = 0,
    /// Proven blocks and blocks stored while decoding.
    Sampled = 1,
    /// Sampled blocks and blocks in slower memory.
    AllTiers = 2,
}

impl ReportedView {
    pub(crate) const ALL: [ReportedView; 3] =
        [ReportedView::Proven, ReportedView::Sampled, ReportedView::AllTiers];

    /// The index's holder number of this worker in this view.
    pub(crate) fn holder(self, worker: WorkerId) -> HolderId {
        HolderId(worker.0 + self as u16 * MAX_WORKERS as u16)
    }

    /// The worker and view of a holder number.
    pub(crate) fn split(holder: HolderId) -> (WorkerId, ReportedView) {
        let reported_view = ReportedView::ALL[(holder.index() / MAX_WORKERS).min(2)];
        (WorkerId((holder.index() % MAX_WORKERS) as u16), reported_view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_numbers_are_distinct() {
        for worker in [0, 1, 63, MAX_WORKERS as u16 - 1].map(WorkerId) {
            for reported_view in ReportedView::ALL {
                assert_eq!(ReportedView::split(reported_view.holder(worker)), (worker, reported_view));
            }
        }
    }
}
