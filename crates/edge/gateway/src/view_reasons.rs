//! Why a worker's cache view is not better than it is, in words that an operator can act on.
//!
//! The code that follows KV events logs a reason and stores it here; `GET /workers` shows it.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use warmroute_types::{Address, CacheView};

/// Shown for a worker whose engine has not been checked for KV events.
const NOT_QUERIED: &str = "KV events not checked yet: kv-events is off, or the worker is not ready";

/// The current reason for each worker.
#[derive(Default)]
pub(crate) struct ViewReasons {
    by_worker: RwLock<BTreeMap<Address, String>>,
}

impl ViewReasons {
    /// Sets a worker's reason; `None` clears it.
    pub(crate) fn set(&self, worker: &Address, why: Option<String>) {
        let mut by_worker = self.by_worker.write();
        match why {
            Some(why) => _ = by_worker.insert(worker.clone(), why),
            None => _ = by_worker.remove(worker),
        }
    }

    /// A worker's reason; `None` if there is no problem.
    pub(crate) fn for_worker(&self, worker: &Address, view: CacheView) -> Option<String> {
        let said = self.by_worker.read().get(worker).cloned();
        said.or_else(|| (view == CacheView::Presumed).then(|| NOT_QUERIED.to_owned()))
    }
}
