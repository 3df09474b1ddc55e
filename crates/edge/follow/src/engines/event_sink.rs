//! Applies events from feeds to the router.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_events::{EventSink, Step, View};
use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_router::{Change, Ingested};
use warmroute_types::{Address, WorkerId};

/// The router as the receiver of feeds' events.
pub struct RouterSink {
    gateway: Arc<Gateway>,
    /// Workers whose events are applied. A worker that leaves and returns is a new worker.
    workers: RwLock<BTreeMap<Address, Arc<Worker>>>,
    /// Workers whose engine publishes events; reports about them are refused.
    streams: RwLock<BTreeSet<Address>>,
}

/// Where a worker's events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOrigin {
    /// Reports posted to `POST /events`.
    Reporter,
    /// The engine's own stream or polls.
    Engine,
    /// Nowhere: the worker's prompts cannot be compared with events yet.
    Unaligned,
}

impl RouterSink {
    pub fn new(gateway: Arc<Gateway>) -> RouterSink {
        RouterSink { gateway, workers: RwLock::default(), streams: RwLock::default() }
    }

    /// Applies events of this address to this worker from now on.
    pub fn add_worker(&self, worker: Arc<Worker>) {
        self.workers.write().insert(worker.address.clone(), worker);
    }

    pub fn forget(&self, address: &Address) {
        self.workers.write().remove(address);
        self.streams.write().remove(address);
    }

    /// Records that a worker's engine publishes events.
    pub fn follow_stream(&self, address: Address) {
        self.streams.write().insert(address);
    }

    fn worker(&self, address: &Address) -> Option<Arc<Worker>> {
        self.workers.read().get(address).cloned()
    }

    /// Where a worker's events come from.
    pub fn event_origin(&self, address: &Address) -> EventOrigin {
        match self.workers.read().contains_key(address) {
            _ if self.streams.read().contains(address) => EventOrigin::Engine,
            true => EventOrigin::Reporter,
            false => EventOrigin::Unaligned,
        }
    }

    /// Whether the router can read a worker's events. A worker that left and returned must be aligned again.
    pub fn is_aligned(&self, worker: WorkerId) -> bool {
        self.gateway.router().inspect().feed_report(worker).is_some()
    }

    /// What the router did with a worker's events, and how answers compared with them.
    pub fn ingested(&self, worker: WorkerId) -> Ingested {
        self.gateway
            .router()
            .inspect()
            .feed_report(worker)
            .map_or(Ingested::default(), |report| report.ingested)
    }

    /// The router's current view of a worker's cache.
    pub fn view_of(&self, worker: WorkerId) -> View {
        self.gateway.router().inspect().cache_view(worker).into()
    }

    /// How many requests the router has sent to a worker.
    pub fn requests(&self, worker: WorkerId) -> u32 {
        self.gateway.router().inspect().bookings(worker)
    }

    /// Stops formatting prompts for an engine.
    pub fn unalign(&self, engine: &str) {
        self.gateway.unalign(engine);
    }

    pub fn apply_change(&self, change: Change) {
        self.gateway.router().apply(change);
    }
}

impl EventSink for RouterSink {
    fn apply(&self, address: &Address, steps: &mut Vec<Step>) {
        let Some(worker) = self.worker(address) else { return };
        for step in steps.drain(..) {
            if let Step::View(view) = step {
                tracing::info!(worker = %worker.label, %view, "the view of this worker's events changed");
            }
            Change::from_feed(&worker, step).into_iter().for_each(|change| self.apply_change(change));
        }
    }
}
