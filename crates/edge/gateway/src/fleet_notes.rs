//! What those who follow the fleet note about its workers: discovery, probes, and the readers of event streams.

use std::sync::OnceLock;

use crate::worker_texts::WorkerTexts;

/// Notes about workers, for operators and for the first requests.
#[derive(Default)]
pub(crate) struct FleetNotes {
    /// Why a worker's cache view is not better than it is.
    pub view_reasons: WorkerTexts,
    /// Why a worker's last probe failed.
    pub probe_problems: WorkerTexts,
    /// Set once all sources have listed their workers, or one is ready.
    workers_known: OnceLock<()>,
}

impl FleetNotes {
    /// Notes that the workers are known: a request that finds none will find none later either.
    pub(crate) fn set_workers_known(&self) {
        _ = self.workers_known.set(());
    }

    /// Whether the workers are known.
    pub(crate) fn are_workers_known(&self) -> bool {
        self.workers_known.get().is_some()
    }
}
