//! Sharing with peers: announces this router's assignments and applies those of peers.
//!
//! A peer's assignment is booked on the same load and presumed in the same index as an own one. Every policy
//! therefore sees the sum, and every prompt finds what any router's requests cached. No request waits for a
//! peer: it records its assignment, and the driver sends it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use warmroute_fleet::{Booking, Worker, WorkerView};
use warmroute_peers::{
    AssignmentEnd, BookingRecord, Effect, Envelope, Ledger, LedgerUpdates, LimitMessage, OwnLedger,
    PeerStatus, Peers, StoredResponse, WorkerHealth,
};
use warmroute_types::{MAX_WORKERS, Micros, RouterId, WorkerId};

use crate::presumption_guard::PresumptionGuard;
use crate::unpropagated_load::UnpropagatedLoad;
use crate::waiting_assignments::WaitingAssignments;

/// The sharing state of this router.
pub(crate) struct Sharing {
    /// This router's id.
    me: RouterId,
    /// Own assignments. Every request writes here, so other holders of the lock only take or copy a little.
    own: Mutex<OwnLedger>,
    /// State received from peers, held while messages are read and written. No request takes this lock; never
    /// taken while holding the pools.
    peer_state: Mutex<PeerState>,
    /// Members of the fleet by identity.
    workers: RwLock<BTreeMap<u64, Arc<Worker>>>,
    /// Time of the last own first token by worker index, in microseconds.
    answered_at: Box<[AtomicU64]>,
    /// Number of peers with a lower id.
    rank: AtomicU32,
    routers: AtomicU32,
    /// Load that peers may have assigned without this router knowing, in microseconds.
    unpropagated_load_us: AtomicU64,
}

/// State received from peers.
pub(crate) struct PeerState {
    pub peers: Peers,
    /// Open assignments of peers.
    pub assignments: BTreeMap<(RouterId, u64), PeerAssignment>,
    /// Assignments to workers that are not members here.
    pub waiting_assignments: WaitingAssignments,
    /// Estimate of unpropagated load.
    pub unpropagated_load: UnpropagatedLoad,
    /// Time of the last health exchange.
    pub examined: Option<Micros>,
}

/// A peer's assignment, booked here.
pub(crate) struct PeerAssignment {
    pub worker: Arc<Worker>,
    pub booking: Booking,
    pub presumed: Option<PresumptionGuard>,
    /// The worker's events will report the prompt.
    pub awaits_event: bool,
    pub made: Micros,
    /// The worker's booking count at that time.
    pub bookings: u32,
}

/// The result of a received message.
#[derive(Debug, Default)]
pub struct Received {
    /// Messages to send.
    pub answers: Vec<Envelope>,
    /// Tasks for [`Peering::run`](crate::Peering::run), in this order, in the background: peers drop a router
    /// that is silent for as long as the tasks take.
    pub tasks: Vec<PeerTask>,
    /// Messages about tenants' limits, which the router does not read.
    pub limits: Vec<(RouterId, Vec<LimitMessage>)>,
    /// Reports about requests that this router has routed, for the driver.
    pub reports: Vec<Vec<u8>>,
}

/// A task that takes long.
#[derive(Debug)]
pub enum PeerTask {
    /// Send a snapshot of the presumed caches.
    SendSnapshot,
    /// Merge a peer's snapshot of presumed caches.
    MergeSnapshot {
        /// The encoded snapshot.
        bytes: Vec<u8>,
        /// Maximum age of the snapshot when received.
        age: Micros,
        /// When it was received.
        received_at: Micros,
    },
}

impl PeerTask {
    pub(crate) fn of(effect: Effect, now: Micros) -> Option<PeerTask> {
        match effect {
            Effect::SnapshotRequested => Some(PeerTask::SendSnapshot),
            Effect::SnapshotReceived { bytes, age } => {
                Some(PeerTask::MergeSnapshot { bytes, age, received_at: now })
            }
            _ => None,
        }
    }
}

/// Sharing in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingView {
    /// This router's id.
    pub me: RouterId,
    /// The peers that are known now, and how much of their state has arrived.
    pub peers: Vec<PeerStatus>,
    /// Own open assignments.
    pub open: usize,
    /// Prompts left out of messages because of size limits.
    pub dropped_prompts: u64,
    /// Prompts of peers' open assignments dropped for lack of room.
    pub forgotten_prompts: u64,
    /// Unreadable messages.
    pub bad_messages: u64,
    /// Missing batches requested.
    pub asked: u64,
    /// Peers lost by timeout.
    pub lost_peers: u64,
    /// Answers truncated to the size limit.
    pub cut_answers: u64,
}

impl Sharing {
    pub fn new(peers: Peers, members: &[WorkerView]) -> Sharing {
        let sharing = Sharing {
            me: peers.own_id(),
            own: Mutex::default(),
            peer_state: Mutex::new(PeerState {
                peers,
                assignments: BTreeMap::new(),
                waiting_assignments: WaitingAssignments::default(),
                unpropagated_load: UnpropagatedLoad::default(),
                examined: None,
            }),
            workers: RwLock::default(),
            answered_at: (0..MAX_WORKERS).map(|_| AtomicU64::new(0)).collect(),
            rank: AtomicU32::new(0),
            routers: AtomicU32::new(1),
            unpropagated_load_us: AtomicU64::new(0),
        };
        sharing.set_members(members);
        sharing
    }

    pub fn own_id(&self) -> RouterId {
        self.me
    }

    /// Sets the members of the fleet.
    pub fn set_members(&self, members: &[WorkerView]) {
        let identified = |view: &WorkerView| (view.worker.identity, Arc::clone(&view.worker));
        *self.workers.write() = members.iter().map(identified).collect();
    }

    /// Announces an own booking to the peers.
    pub fn announce(self: &Arc<Sharing>, booking: BookingRecord) -> AssignmentGuard {
        let assignment = self.own.lock().begin(booking);
        AssignmentGuard { sharing: Arc::clone(self), assignment, over: AssignmentEnd::Abandoned }
    }

    /// Records that a worker's cache is empty.
    pub fn emptied(&self, worker: &Worker) {
        self.own.lock().report_cache_cleared(worker.identity);
    }

    /// Announces where a response is stored.
    pub fn announce_stored(&self, id: u128, stored: StoredResponse) {
        self.own.lock().report_stored(id, stored);
    }

    /// Records the health of all members for the peers.
    pub fn examine(&self, members: &BTreeMap<u64, WorkerHealth>) {
        for (&worker, &health) in members {
            self.own.lock().report_health(worker, health);
        }
        self.own.lock().retract_departed(|worker| members.contains_key(&worker));
    }

    /// Takes the updates not sent yet.
    pub fn take_news(&self) -> LedgerUpdates {
        self.own.lock().take_updates()
    }

    /// All open assignments, collected in small steps so that requests continue in between.
    pub fn state(&self) -> Ledger {
        OwnLedger::collect_open(|number| self.own.lock().open_after(number))
    }

    pub fn worker(&self, identity: u64) -> Option<Arc<Worker>> {
        self.workers.read().get(&identity).cloned()
    }

    /// Time since the last own answer of the worker; `None` without one.
    pub fn answered_for(&self, worker: WorkerId, now: Micros) -> Option<Micros> {
        let at = Micros(self.answered_at[worker.index()].load(Relaxed));
        (at > Micros::ZERO).then(|| now.since(at))
    }

    /// Number of peers with a lower id.
    pub fn rank(&self) -> u32 {
        self.rank.load(Relaxed)
    }

    /// Number of routers that share the fleet, this one included.
    pub fn routers(&self) -> u32 {
        self.routers.load(Relaxed).max(1)
    }

    pub fn set_routers(&self, routers: usize) {
        self.routers.store(routers as u32, Relaxed);
    }

    /// Load that peers may have assigned without this router knowing.
    pub fn unpropagated_load(&self) -> Micros {
        Micros(self.unpropagated_load_us.load(Relaxed))
    }

    pub fn set_unpropagated_load(&self, work: Micros) {
        self.unpropagated_load_us.store(work.0, Relaxed);
    }

    pub fn set_rank(&self, rank: usize) {
        self.rank.store(rank as u32, Relaxed);
    }

    /// Blocks writers, as a request does for a moment.
    #[cfg(test)]
    pub fn hold_own(&self) -> parking_lot::MutexGuard<'_, OwnLedger> {
        self.own.lock()
    }

    pub fn peer_state(&self) -> parking_lot::MutexGuard<'_, PeerState> {
        self.peer_state.lock()
    }

    pub fn view(&self, now: Micros) -> SharingView {
        let (open, dropped_prompts) = {
            let own = self.own.lock();
            (own.open_count(), own.dropped_prompts)
        };
        let peer_state = self.peer_state();
        SharingView {
            me: self.me,
            peers: peer_state.peers.statuses(now),
            open,
            dropped_prompts,
            forgotten_prompts: peer_state.peers.dropped_prompts,
            bad_messages: peer_state.peers.bad_messages,
            asked: peer_state.peers.batches_requested,
            lost_peers: peer_state.peers.lost_peers,
            cut_answers: peer_state.peers.truncated_answers,
        }
    }
}

/// Announces an assignment to the peers. Dropping it with its decision announces the end.
pub(crate) struct AssignmentGuard {
    sharing: Arc<Sharing>,
    assignment: u64,
    over: AssignmentEnd,
}

impl AssignmentGuard {
    /// Announces the first token.
    pub fn computed(&self, worker: WorkerId, at: Micros) {
        self.sharing.answered_at[worker.index()].store(at.0, Relaxed);
        self.sharing.own.lock().mark_prefilled(self.assignment);
    }

    /// Marks the request as answered.
    pub fn answered(&mut self) {
        self.over = self.over.max(AssignmentEnd::Answered);
    }

    /// Marks the prediction as stale: the engine found only this many chunks.
    pub fn found(&mut self, chunks: u32) {
        self.over = AssignmentEnd::Stale { found_chunks: chunks };
    }
}

impl Drop for AssignmentGuard {
    fn drop(&mut self) {
        self.sharing.own.lock().end(self.assignment, self.over);
    }
}

impl fmt::Debug for AssignmentGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AssignmentGuard({})", self.assignment)
    }
}
