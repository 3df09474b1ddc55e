//! One router among others: what it tells them of its requests, and theirs, kept here as if they were its own.
//!
//! A request that another router has sent to a worker is booked on the same load and presumed in the same index as one of ours,
//! so every policy sees the sum and every prompt finds what anybody's requests have left behind; nothing else has to know that
//! there are several routers. A request here waits for nobody there: it leaves a note, and the driver does the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use warmroute_fleet::{Booking, Worker, WorkerView};
use warmroute_peers::{
    AssignmentEnd, BookingRecord, Effect, Envelope, Ledger, LedgerUpdates, OwnLedger, PeerStatus, Peers,
    PromptDigests, RelayCounts, WorkerHealth,
};
use warmroute_types::{CacheView, Delivery, MAX_WORKERS, Micros, RouterId, WorkerId};

use crate::PromptChunks;
use crate::pool::Placement;
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::PRESUMED_CHUNKS_MAX;
use crate::relay_inbox::RelayInbox;
use crate::scratch::Scratch;
use crate::unpropagated_load::UnpropagatedLoad;
use crate::waiting_assignments::WaitingAssignments;

/// A router's part in the conversation.
pub(crate) struct Sharing {
    /// Every request writes to it. So whoever else takes it takes something out or copies a little, and does the work afterwards.
    own: Mutex<OwnLedger>,
    /// No request takes it: it is held while messages are read and written. Nobody takes it who holds the pools.
    peer_state: Mutex<PeerState>,
    /// By identity, who is in the fleet.
    workers: RwLock<BTreeMap<u64, Arc<Worker>>>,
    /// By seat, when a first token of one of our own requests last came from there, in microseconds.
    answered_at: Box<[AtomicU64]>,
    /// How many routers come before this one.
    place: AtomicU32,
    /// Work that others may have sent to the worker that seems best here, and that is not known of yet, in microseconds.
    unpropagated_load_us: AtomicU64,
}

/// What others have said.
pub(crate) struct PeerState {
    pub peers: Peers,
    /// Their requests that are open.
    pub assignments: BTreeMap<(RouterId, u64), PeerAssignment>,
    /// Those at workers that are not here.
    pub waiting_assignments: WaitingAssignments,
    /// What others send.
    pub unpropagated_load: UnpropagatedLoad,
    /// When the workers' health was last looked at.
    pub examined: Option<Micros>,
    /// What concerns engines' streams: for whoever drives their feeds.
    pub relay_inbox: RelayInbox,
}

impl PeerState {
    /// Leaves news of a stream for whoever drives its feed. Where nobody does, who asks is not kept waiting.
    pub fn leave(&mut self, news: Effect) {
        match news {
            news if self.relay_inbox.is_followed => self.relay_inbox.push(news),
            Effect::ReplayRequested { router, range: wanted } => {
                self.peers.answer_replay(router, wanted.worker, &[])
            }
            _ => {}
        }
    }
}

/// Another router's request, here.
pub(crate) struct PeerAssignment {
    pub worker: Arc<Worker>,
    pub booking: Booking,
    pub presumed: Option<PresumptionGuard>,
    /// How its worker's cache was known then.
    pub view: CacheView,
    pub made: Micros,
    /// How many bookings its worker had had by then.
    pub bookings: u32,
}

/// What came of a message.
#[derive(Debug, Default)]
pub struct Received {
    /// To be sent.
    pub answers: Vec<Envelope>,
    /// To be done by [`Router::run`](crate::Router::run), in this order, beside what is said and heard meanwhile: who is silent for as long
    /// as they take is given up by the others.
    pub tasks: Vec<PeerTask>,
}

/// Something that takes long.
#[derive(Debug)]
pub enum PeerTask {
    /// All that is presumed is asked for.
    Tell,
    /// All that another presumes has come.
    Learn {
        /// As it was written there.
        bytes: Vec<u8>,
        /// How old it was then at most.
        age: Micros,
        /// When.
        heard: Micros,
    },
}

impl PeerTask {
    pub(crate) fn of(effect: Effect, now: Micros) -> Option<PeerTask> {
        match effect {
            Effect::SnapshotRequested => Some(PeerTask::Tell),
            Effect::SnapshotReceived { bytes, age } => Some(PeerTask::Learn { bytes, age, heard: now }),
            _ => None,
        }
    }
}

/// The conversation in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingView {
    /// This router's number.
    pub me: RouterId,
    /// Who else is there.
    pub peers: Vec<PeerStatus>,
    /// Own requests that are open.
    pub open: usize,
    /// Prompts that were not told because there was too much to tell.
    pub dropped_prompts: u64,
    /// Prompts of others' open requests that were forgotten for want of room.
    pub forgotten_prompts: u64,
    /// Messages that could not be read.
    pub bad_messages: u64,
    /// Holes that were asked for.
    pub asked: u64,
    /// Peers that fell silent.
    pub lost_peers: u64,
    /// Answers of which some was left out: there was more than can be told.
    pub cut_answers: u64,
    /// Engines' events that were passed on.
    pub relayed: RelayCounts,
    /// What others passed on and nobody here took in time.
    pub overrun: u64,
}

impl Sharing {
    pub fn new(peers: Peers, members: &[WorkerView]) -> Sharing {
        let sharing = Sharing {
            own: Mutex::default(),
            peer_state: Mutex::new(PeerState {
                peers,
                assignments: BTreeMap::new(),
                waiting_assignments: WaitingAssignments::default(),
                unpropagated_load: UnpropagatedLoad::default(),
                examined: None,
                relay_inbox: RelayInbox::default(),
            }),
            workers: RwLock::default(),
            answered_at: (0..MAX_WORKERS).map(|_| AtomicU64::new(0)).collect(),
            place: AtomicU32::new(0),
            unpropagated_load_us: AtomicU64::new(0),
        };
        sharing.set_members(members);
        sharing
    }

    /// Takes down who is in the fleet.
    pub fn set_members(&self, members: &[WorkerView]) {
        let identified = |view: &WorkerView| (view.worker.identity, Arc::clone(&view.worker));
        *self.workers.write() = members.iter().map(identified).collect();
    }

    /// Takes down a decision, for the others to hear of.
    pub fn assignment_guard(
        self: &Arc<Sharing>,
        placement: &Placement,
        prompt: Option<PromptChunks<'_>>,
        delivery: Delivery,
        scratch: &Scratch,
    ) -> AssignmentGuard {
        let numbers = placement.candidate_records[0].as_ref().map(|chosen| chosen.numbers);
        let chunk_tokens = scratch.spans.first().map_or(1, |span| span.tokens);
        let chunks = |prompt: PromptChunks<'_>| PromptDigests {
            root: prompt.root.to_bits(),
            chunk_bytes: prompt.chunk_bytes,
            chunk_tokens,
            digests: prompt.digests[..prompt.digests.len().min(PRESUMED_CHUNKS_MAX)].into(),
        };
        let booked = BookingRecord {
            worker: placement.worker.identity,
            prompt_tokens: placement.prompt_tokens,
            cached_tokens: numbers.map_or(0, |numbers| numbers.overlap_tokens),
            restorable_tokens: numbers.map_or(0, |numbers| numbers.restorable_tokens),
            delivery,
            prompt: prompt.filter(|prompt| !prompt.digests.is_empty()).map(chunks),
        };
        let assignment = self.own.lock().begin(booked);
        AssignmentGuard { sharing: Arc::clone(self), assignment, over: AssignmentEnd::Abandoned }
    }

    /// A worker's cache has turned out to be empty.
    pub fn emptied(&self, worker: &Worker) {
        self.own.lock().report_cache_cleared(worker.identity);
    }

    /// What was found of the health of all members, for the others to hear of.
    pub fn examine(&self, members: &BTreeMap<u64, WorkerHealth>) {
        for (&worker, &health) in members {
            self.own.lock().report_health(worker, health);
        }
        self.own.lock().retract_departed(|worker| members.contains_key(&worker));
    }

    /// What has not been told to the others.
    pub fn take_news(&self) -> LedgerUpdates {
        self.own.lock().take_updates()
    }

    /// All that is open, a little at a time: requests go on in between.
    pub fn state(&self) -> Ledger {
        OwnLedger::collect_open(|number| self.own.lock().open_after(number))
    }

    pub fn worker(&self, identity: u64) -> Option<Arc<Worker>> {
        self.workers.read().get(&identity).cloned()
    }

    /// Since one of our own requests was last answered there; `None`: none ever was.
    pub fn answered_for(&self, worker: WorkerId, now: Micros) -> Option<Micros> {
        let at = Micros(self.answered_at[worker.index()].load(Relaxed));
        (at > Micros::ZERO).then(|| now.since(at))
    }

    /// Routers that come before this one, in the order of their numbers.
    pub fn rank(&self) -> u32 {
        self.place.load(Relaxed)
    }

    /// Work that others may have sent to the worker that seems best, and that nobody here has heard of.
    pub fn unpropagated_load(&self) -> Micros {
        Micros(self.unpropagated_load_us.load(Relaxed))
    }

    pub fn set_unpropagated_load(&self, work: Micros) {
        self.unpropagated_load_us.store(work.0, Relaxed);
    }

    pub fn set_rank(&self, place: usize) {
        self.place.store(place as u32, Relaxed);
    }

    /// Keeps others from writing, as a request does for a moment.
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
        let heard = self.peer_state();
        SharingView {
            me: heard.peers.own_id(),
            peers: heard.peers.statuses(now),
            open,
            dropped_prompts,
            forgotten_prompts: heard.peers.dropped_prompts,
            bad_messages: heard.peers.bad_messages,
            asked: heard.peers.batches_requested,
            lost_peers: heard.peers.lost_peers,
            cut_answers: heard.peers.truncated_answers,
            relayed: heard.peers.relay_counts(),
            overrun: heard.relay_inbox.dropped,
        }
    }
}

/// What the others are told of a request. Dropped with its decision, it says that the request is over.
pub(crate) struct AssignmentGuard {
    sharing: Arc<Sharing>,
    assignment: u64,
    over: AssignmentEnd,
}

impl AssignmentGuard {
    /// The first token has come.
    pub fn computed(&self, worker: WorkerId, at: Micros) {
        self.sharing.answered_at[worker.index()].store(at.0, Relaxed);
        self.sharing.own.lock().mark_prefilled(self.assignment);
    }

    /// It was answered to the end.
    pub fn answered(&mut self) {
        self.over = self.over.max(AssignmentEnd::Answered);
    }

    /// The engine had only so many chunks of what it was believed to hold.
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
