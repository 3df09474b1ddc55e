//! Reports why a worker's cache is not known better: once in the log, and in `GET /workers` while the reason holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_types::Address;

use super::reasons::ViewReason;

/// The last logged reason of each worker.
pub struct ReasonLog {
    gateway: Arc<Gateway>,
    logged: BTreeMap<Address, ViewReason>,
}

impl ReasonLog {
    pub fn new(gateway: Arc<Gateway>) -> ReasonLog {
        ReasonLog { gateway, logged: BTreeMap::new() }
    }

    /// Sets a worker's reason. `None`: the view is as good as it can be.
    pub fn set(&mut self, worker: &Worker, reason: Option<ViewReason>) {
        if self.logged.get(&worker.address) == reason.as_ref() {
            return;
        }
        self.gateway.set_view_reason(&worker.address, reason.as_ref().map(ViewReason::to_string));
        let Some(reason) = reason else {
            self.logged.remove(&worker.address);
            return;
        };
        if reason.is_trouble() {
            tracing::warn!(worker = %worker.label, why = %reason, "the view of this worker's cache is limited");
        } else {
            tracing::info!(worker = %worker.label, why = %reason, "the view of this worker's cache is presumed");
        }
        self.logged.insert(worker.address.clone(), reason);
    }

    /// Forgets a worker that has left.
    pub fn forget(&mut self, worker: &Address) {
        self.logged.remove(worker);
        self.gateway.set_view_reason(worker, None);
    }
}
