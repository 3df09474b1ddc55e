//! Says why a worker's cache is known no better than it is: once in the log, and for as long as it holds in `GET /workers`.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_types::Address;

use super::why::Why;

/// What was said last of each worker.
pub struct Notices {
    gateway: Arc<Gateway>,
    said: BTreeMap<Address, Why>,
}

impl Notices {
    pub fn new(gateway: Arc<Gateway>) -> Notices {
        Notices { gateway, said: BTreeMap::new() }
    }

    /// `None`: all is well.
    pub fn note(&mut self, worker: &Worker, why: Option<Why>) {
        if self.said.get(&worker.address) == why.as_ref() {
            return;
        }
        self.gateway.set_view_reason(&worker.address, why.as_ref().map(Why::to_string));
        let Some(why) = why else {
            self.said.remove(&worker.address);
            return;
        };
        if why.is_trouble() {
            tracing::warn!(worker = %worker.label, %why, "its cache is not known as well as it could be");
        } else {
            tracing::info!(worker = %worker.label, %why, "its cache is presumed");
        }
        self.said.insert(worker.address.clone(), why);
    }

    /// A worker has left.
    pub fn forget(&mut self, worker: &Address) {
        self.said.remove(worker);
        self.gateway.set_view_reason(worker, None);
    }
}
