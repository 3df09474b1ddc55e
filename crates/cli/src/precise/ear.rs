//! Who hears the feeds: the router, through its one door; and through the same router the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_events::{BatchId, EventSink, FeedHandle, PeerPresence, Step, View};
use warmroute_fleet::Worker;
use warmroute_gateway::Gateway;
use warmroute_peers::{RelayedBatch, StreamPosition, StreamRange};
use warmroute_router::{Change, Ingested, StreamNews};
use warmroute_types::{Address, EventBatch, Micros, RouterId, WorkerId};

/// A router that shares and has heard nobody is not sure to be alone before this.
const OTHERS_WITHIN: Micros = Micros::from_secs(3);

/// Turns what feeds tell into changes of the router.
pub struct Ear {
    gateway: Arc<Gateway>,
    /// Whose feeds are heard. A worker that left and came back is another one.
    workers: RwLock<BTreeMap<Address, Arc<Worker>>>,
    /// Those of them that publish themselves: nobody else may speak for them.
    streams: RwLock<BTreeSet<Address>>,
    /// The feeds of those.
    desks: RwLock<BTreeMap<Address, Arc<FeedHandle>>>,
    /// By worker, the router that has last told something of its stream.
    tellers: RwLock<BTreeMap<Address, RouterId>>,
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
        Ear {
            gateway,
            workers: RwLock::default(),
            streams: RwLock::default(),
            desks: RwLock::default(),
            tellers: RwLock::default(),
        }
    }

    /// From now on what is told of this address is about this worker.
    pub fn listen_for(&self, worker: Arc<Worker>) {
        self.workers.write().insert(worker.address.clone(), worker);
    }

    pub fn forget(&self, address: &Address) {
        self.workers.write().remove(address);
        self.streams.write().remove(address);
        self.desks.write().remove(address);
        self.tellers.write().remove(address);
    }

    /// This worker's own stream is followed, here.
    pub fn follows(&self, desk: Arc<FeedHandle>) {
        self.streams.write().insert(desk.worker.clone());
        self.desks.write().insert(desk.worker.clone(), desk);
    }

    /// The feed of a worker that publishes itself.
    pub fn desk_of(&self, address: &Address) -> Option<Arc<FeedHandle>> {
        self.desks.read().get(address).cloned()
    }

    /// Whose feeds are heard.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.workers.read().values().cloned().collect()
    }

    /// That router has told something of a worker's stream: it is the first to be asked for more.
    pub fn told_by(&self, address: &Address, router: RouterId) {
        let is_known = self.tellers.read().get(address) == Some(&router);
        if !is_known {
            self.tellers.write().insert(address.clone(), router);
        }
    }

    /// From now on what other routers say of streams is asked for.
    pub fn follow_streams(&self) {
        self.gateway.router().follow_streams();
    }

    /// What other routers have said of streams.
    pub fn take_streams(&self) -> Vec<(Arc<Worker>, StreamNews)> {
        self.gateway.router().take_streams()
    }

    /// Tells them how far streams were heard here.
    pub fn set_reaches(&self, reaches: Vec<StreamPosition>) {
        self.gateway.router().set_reaches(reaches);
    }

    /// The batches that another router wants, where they are still there.
    pub fn kept(&self, wanted: StreamRange) -> Option<Vec<RelayedBatch>> {
        self.gateway.router().kept(wanted)
    }

    /// All that is known of a worker's cache by its events.
    pub fn known(&self, worker: WorkerId) -> Option<Arc<[u8]>> {
        self.gateway.router().known(worker)
    }

    /// Answers another router.
    pub fn tell_replay(&self, to: RouterId, worker: &Worker, reports: &[RelayedBatch]) {
        self.gateway.router().tell_replay(to, worker, reports);
    }

    /// Whether it is this router that polls engines which only one can poll.
    pub fn polls(&self) -> bool {
        self.peer_presence() != PeerPresence::Unknown && self.gateway.router().is_first()
    }

    fn worker(&self, address: &Address) -> Option<Arc<Worker>> {
        self.workers.read().get(address).cloned()
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

impl EventSink for Ear {
    fn apply(&self, address: &Address, steps: &mut Vec<Step>) {
        let Some(worker) = self.worker(address) else { return };
        for step in steps.drain(..) {
            if let Step::View(view) = step {
                tracing::info!(worker = %worker.label, %view, "what this worker's events are worth");
            }
            Change::from_feed(&worker, step).into_iter().for_each(|change| self.tell(change));
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
        let teller = self.tellers.read().get(address).copied();
        self.gateway.router().want(&worker, (source, from_seq), teller, self.gateway.now())
    }

    fn cancel_replay(&self, address: &Address) {
        if let Some(worker) = self.worker(address) {
            self.gateway.router().call_off(&worker);
        }
    }

    fn peer_presence(&self) -> PeerPresence {
        let router = self.gateway.router();
        match router.is_sharing() {
            true if router.has_peers() => PeerPresence::Present,
            true if self.gateway.now() < OTHERS_WITHIN => PeerPresence::Unknown,
            _ => PeerPresence::Absent,
        }
    }
}
