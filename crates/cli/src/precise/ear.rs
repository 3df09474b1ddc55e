//! Who hears the feeds: the router, through its one door.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_events::{Listener, Step, View};
use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_router::{Change, Ingested};
use warmroute_types::{Address, WorkerId};

/// Turns what feeds tell into changes of the router.
pub struct Ear {
    gateway: Arc<Gateway>,
    /// Whose feeds are heard. A worker that left and came back is another one.
    workers: RwLock<BTreeMap<Address, Arc<Worker>>>,
    /// Those of them that publish themselves: nobody else may speak for them.
    streams: RwLock<BTreeSet<Address>>,
}

/// Whether a reporter may speak for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// It may.
    ByReporter,
    /// The worker publishes itself.
    ByItself,
    /// Its prompts cannot be compared, or not yet.
    NotUnderstood,
}

impl Ear {
    pub fn new(gateway: Arc<Gateway>) -> Ear {
        Ear { gateway, workers: RwLock::default(), streams: RwLock::default() }
    }

    /// From now on what is told of this address is about this worker.
    pub fn listen_for(&self, worker: Arc<Worker>) {
        self.workers.write().insert(worker.address.clone(), worker);
    }

    pub fn forget(&self, address: &Address) {
        self.workers.write().remove(address);
        self.streams.write().remove(address);
    }

    /// This worker's own stream is followed.
    pub fn follows(&self, address: &Address) {
        self.streams.write().insert(address.clone());
    }

    /// Who speaks for a worker.
    pub fn spoken(&self, address: &Address) -> Spoken {
        match self.workers.read().contains_key(address) {
            _ if self.streams.read().contains(address) => Spoken::ByItself,
            true => Spoken::ByReporter,
            false => Spoken::NotUnderstood,
        }
    }

    /// Whether a worker's events can still be read: one that left and came back is a stranger again.
    pub fn is_aligned(&self, worker: WorkerId) -> bool {
        self.gateway.router().feed_report(worker).is_some()
    }

    /// What became of a worker's events, and whether answers met them.
    pub fn ingested(&self, worker: WorkerId) -> Ingested {
        self.gateway.router().feed_report(worker).map_or(Ingested::default(), |report| report.ingested)
    }

    /// What the router makes of a worker's events at this moment.
    pub fn view_of(&self, worker: WorkerId) -> View {
        self.gateway.router().cache_view(worker).into()
    }

    /// How many requests a worker has been sent.
    pub fn requests(&self, worker: WorkerId) -> u32 {
        self.gateway.router().bookings(worker)
    }

    /// An engine's prompts are not written for it any more.
    pub fn unalign(&self, engine: &str) {
        self.gateway.unalign(engine);
    }

    pub fn tell(&self, change: Change) {
        self.gateway.router().apply(change).expect("only a join can find the fleet full");
    }
}

impl Listener for Ear {
    fn hear(&self, address: &Address, steps: &mut Vec<Step>) {
        let Some(worker) = self.workers.read().get(address).cloned() else { return };
        for step in steps.drain(..) {
            if let Step::View(view) = step {
                tracing::info!(worker = %worker.label, %view, "what this worker's events are worth");
            }
            Change::from_feed(&worker, step).into_iter().for_each(|change| self.tell(change));
        }
    }
}
