//! Applies events from feeds to the router, and passes them to peers through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_events::{BatchId, EventSink, FeedHandle, PeerPresence, Step, View};
use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_peers::{RelayedBatch, StreamPosition, StreamRange};
use warmroute_router::{Change, Ingested, StreamNews};
use warmroute_types::{Address, EventBatch, Micros, RouterId, WorkerId};

/// How long after its start a router that shares waits for a first sign of peers before it counts as alone.
const PEER_DISCOVERY: Micros = Micros::from_secs(3);

/// The router as the receiver of feeds' events.
pub struct RouterSink {
    gateway: Arc<Gateway>,
    /// When this router started. The router's clock does not start at zero.
    started: Micros,
    /// Workers whose events are applied. A worker that leaves and returns is a new worker.
    workers: RwLock<BTreeMap<Address, Arc<Worker>>>,
    /// Workers whose engine publishes events; reports about them are refused.
    streams: RwLock<BTreeSet<Address>>,
    /// The feeds of those workers.
    feeds: RwLock<BTreeMap<Address, Arc<FeedHandle>>>,
    /// For each worker, the peer that last sent something about its stream.
    stream_peers: RwLock<BTreeMap<Address, RouterId>>,
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
        RouterSink {
            started: gateway.now(),
            gateway,
            workers: RwLock::default(),
            streams: RwLock::default(),
            feeds: RwLock::default(),
            stream_peers: RwLock::default(),
        }
    }

    /// Applies events of this address to this worker from now on.
    pub fn add_worker(&self, worker: Arc<Worker>) {
        self.workers.write().insert(worker.address.clone(), worker);
    }

    pub fn forget(&self, address: &Address) {
        self.workers.write().remove(address);
        self.streams.write().remove(address);
        self.feeds.write().remove(address);
        self.stream_peers.write().remove(address);
    }

    /// Registers the feed of a worker whose engine publishes events.
    pub fn follow_stream(&self, feed: Arc<FeedHandle>) {
        self.streams.write().insert(feed.worker.clone());
        self.feeds.write().insert(feed.worker.clone(), feed);
    }

    /// The feed of a worker whose engine publishes events.
    pub fn feed_of(&self, address: &Address) -> Option<Arc<FeedHandle>> {
        self.feeds.read().get(address).cloned()
    }

    /// Workers whose events are applied.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.workers.read().values().cloned().collect()
    }

    /// Records which peer sent something about a worker's stream. Replays are requested from that peer first.
    pub fn note_peer(&self, address: &Address, router: RouterId) {
        let is_known = self.stream_peers.read().get(address) == Some(&router);
        if !is_known {
            self.stream_peers.write().insert(address.clone(), router);
        }
    }

    /// Asks the router to collect what peers send about streams.
    pub fn follow_streams(&self) {
        self.gateway.router().follow_streams();
    }

    /// Takes what peers have sent about streams.
    pub fn take_streams(&self) -> Vec<(Arc<Worker>, StreamNews)> {
        self.gateway.router().take_streams()
    }

    /// Tells peers how far each stream was received here.
    pub fn set_positions(&self, positions: Vec<StreamPosition>) {
        self.gateway.router().set_reaches(positions);
    }

    /// The batches that a peer wants, if the router still keeps them.
    pub fn kept_batches(&self, wanted: StreamRange) -> Option<Vec<RelayedBatch>> {
        self.gateway.router().kept(wanted)
    }

    /// A worker's whole cache as known from its events.
    pub fn snapshot(&self, worker: WorkerId) -> Option<Arc<[u8]>> {
        self.gateway.router().known(worker)
    }

    /// Answers a peer's replay request.
    pub fn send_replay(&self, to: RouterId, worker: &Worker, reports: &[RelayedBatch]) {
        self.gateway.router().tell_replay(to, worker, reports);
    }

    /// Whether this router polls the engines that only one router can poll.
    pub fn is_poller(&self) -> bool {
        self.peer_presence() != PeerPresence::Unknown && self.gateway.router().is_first()
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
        self.gateway.router().feed_report(worker).is_some()
    }

    /// What the router did with a worker's events, and how answers compared with them.
    pub fn ingested(&self, worker: WorkerId) -> Ingested {
        self.gateway.router().feed_report(worker).map_or(Ingested::default(), |report| report.ingested)
    }

    /// The router's current view of a worker's cache.
    pub fn view_of(&self, worker: WorkerId) -> View {
        self.gateway.router().cache_view(worker).into()
    }

    /// How many requests the router has sent to a worker.
    pub fn requests(&self, worker: WorkerId) -> u32 {
        self.gateway.router().bookings(worker)
    }

    /// Stops formatting prompts for an engine.
    pub fn unalign(&self, engine: &str) {
        self.gateway.unalign(engine);
    }

    pub fn apply_change(&self, change: Change) {
        self.gateway.router().apply(change).expect("only a join can find the fleet full");
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

    fn prepare_relay(&self, address: &Address, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        self.gateway.router().digest(self.worker(address)?.id, batch)
    }

    fn relay(&self, address: &Address, which: BatchId, bytes: Arc<[u8]>) {
        if let Some(worker) = self.worker(address) {
            self.gateway.router().relay(&worker, which, bytes);
        }
    }

    fn request_replay(&self, address: &Address, source: u64, from_seq: u64) -> bool {
        let Some(worker) = self.worker(address) else { return false };
        let preferred = self.stream_peers.read().get(address).copied();
        self.gateway.router().want(&worker, (source, from_seq), preferred, self.gateway.now())
    }

    fn cancel_replay(&self, address: &Address) {
        if let Some(worker) = self.worker(address) {
            self.gateway.router().call_off(&worker);
        }
    }

    fn peer_presence(&self) -> PeerPresence {
        let router = self.gateway.router();
        match router.is_sharing() {
            true => presence(router.has_peers(), self.gateway.now().since(self.started)),
            false => PeerPresence::Absent,
        }
    }
}

/// Whether a router that shares has peers, by how long it has run.
fn presence(has_peers: bool, uptime: Micros) -> PeerPresence {
    match has_peers {
        true => PeerPresence::Present,
        false if uptime < PEER_DISCOVERY => PeerPresence::Unknown,
        false => PeerPresence::Absent,
    }
}

#[cfg(test)]
mod tests {
    use warmroute_policy::Standard;
    use warmroute_router::Router;

    use super::*;

    #[test]
    fn a_starting_router_waits_for_its_peers_before_it_counts_as_alone() {
        assert_eq!(presence(false, Micros::ZERO), PeerPresence::Unknown);
        assert_eq!(presence(false, PEER_DISCOVERY), PeerPresence::Absent);
        assert_eq!(presence(true, Micros::ZERO), PeerPresence::Present);
    }

    #[tokio::test]
    async fn the_wait_for_peers_starts_with_the_router_and_only_when_it_shares() {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let gateway = Gateway::new(Arc::clone(&router), warmroute_gateway::Config::default(), None).unwrap();
        let sink = RouterSink::new(gateway);
        assert_eq!(sink.peer_presence(), PeerPresence::Absent);
        router.share(RouterId(1), warmroute_peers::Config::default());
        assert_eq!(sink.peer_presence(), PeerPresence::Unknown);
        assert!(!sink.is_poller());
    }
}
