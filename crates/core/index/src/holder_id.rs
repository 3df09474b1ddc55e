//! The number of a holder of spans.

use std::fmt;

use warmroute_types::WorkerId;

/// A holder: one worker's cache in one respect. A worker has several, for instance what it certainly holds and what it may
/// hold. The first one has the worker's own number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u16);

impl HolderId {
    /// The number as an index of arrays.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl From<WorkerId> for HolderId {
    fn from(worker: WorkerId) -> HolderId {
        HolderId(worker.0)
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
