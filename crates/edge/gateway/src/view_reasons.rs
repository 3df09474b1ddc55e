//! Why a worker's cache is known no better than it is, in words that somebody can act on.
//!
//! Whoever follows engines' events writes here what it has written to the log, so that both say the same; `GET /workers`
//! shows it.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use warmroute_types::{Address, CacheView};

/// Nobody has looked yet.
const NOT_QUERIED: &str =
    "its engine has not been asked for KV events: kv-events is off, or the worker is not ready yet";

/// The last word on each worker.
#[derive(Default)]
pub(crate) struct ViewReasons {
    by_worker: RwLock<BTreeMap<Address, String>>,
}

impl ViewReasons {
    /// `None`: there is nothing to say.
    pub(crate) fn set(&self, worker: &Address, why: Option<String>) {
        let mut by_worker = self.by_worker.write();
        match why {
            Some(why) => _ = by_worker.insert(worker.clone(), why),
            None => _ = by_worker.remove(worker),
        }
    }

    /// Nothing where all is well.
    pub(crate) fn for_worker(&self, worker: &Address, view: CacheView) -> Option<String> {
        let said = self.by_worker.read().get(worker).cloned();
        said.or_else(|| (view == CacheView::Presumed).then(|| NOT_QUERIED.to_owned()))
    }
}
