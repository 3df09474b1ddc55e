//! A text for some workers, in words that an operator can act on: why a worker's cache view is not better than it is,
//! or why its last probe failed.
//!
//! The code that follows KV events, and the probes, log a reason and store it here; `GET /workers` shows it.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use warmroute_types::Address;

/// The current text for each worker that has one.
#[derive(Default)]
pub(crate) struct WorkerTexts {
    by_worker: RwLock<BTreeMap<Address, String>>,
}

impl WorkerTexts {
    /// Sets a worker's text; `None` clears it.
    pub(crate) fn set(&self, worker: &Address, text: Option<String>) {
        let mut by_worker = self.by_worker.write();
        match text {
            Some(text) => _ = by_worker.insert(worker.clone(), text),
            None => _ = by_worker.remove(worker),
        }
    }

    /// A worker's text; `None` if there is no problem.
    pub(crate) fn get(&self, worker: &Address) -> Option<String> {
        self.by_worker.read().get(worker).cloned()
    }
}
