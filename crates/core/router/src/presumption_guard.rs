//! The presumption that a decision makes about its worker's cache.

use std::fmt;
use std::sync::Arc;

use warmroute_index::{Index, Presumption, RootKey, Span};
use warmroute_types::{Micros, WorkerId};

/// A prompt presumed to be in a worker's cache soon. Dropped before confirmation, it is withdrawn: the
/// request failed or its client left before the prompt was computed.
pub(crate) struct PresumptionGuard {
    index: Arc<Index>,
    open: Option<Presumption>,
}

impl PresumptionGuard {
    /// Presumes a prompt. Waits for no other writer and allocates nothing; the caller calls [`Index::apply_pending`]
    /// afterwards.
    pub(crate) fn make(
        index: &Arc<Index>,
        worker: WorkerId,
        root: RootKey,
        spans: &Arc<Vec<Span>>,
        now: Micros,
    ) -> Option<PresumptionGuard> {
        let open = index.presume_later(worker.into(), root, spans, now).ok()?;
        Some(PresumptionGuard { index: Arc::clone(index), open: Some(open) })
    }

    /// Confirms the presumption: the prompt has been computed.
    pub(crate) fn confirm(&mut self) {
        if let Some(presumption) = self.open.take() {
            self.index.confirm(presumption);
        }
    }
}

impl Drop for PresumptionGuard {
    fn drop(&mut self) {
        if let Some(presumption) = self.open.take() {
            self.index.withdraw(presumption);
        }
    }
}

impl fmt::Debug for PresumptionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presumed(..)")
    }
}
