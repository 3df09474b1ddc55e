//! Receives messages from peers and composes messages to them.
//!
//! Lock order: the peer state first, then `peer_bookings`, briefly. Changes of the fleet therefore never wait for
//! messages being read. The effects of one message are applied before the next is read, because their order matters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLockReadGuard;
use warmroute_fleet::{BookedWork, Booking};
use warmroute_index::{BoundedSnapshot, RootKey, Span};
use warmroute_peers::{
    AssignmentEnd, BadMessage, BookingRecord, Config, Effect, Envelope, Ledger, PeerMessage, Peers,
    PromptDigests, SNAPSHOT_BYTES_MAX, WorkerHealth,
};
use warmroute_policy::Policy;
use warmroute_prompt::ChunkSizes;
use warmroute_types::{CacheView, Micros, RouterId, WorkerId, WorkerState};

use super::Peering;
use crate::PromptChunks;
use crate::estimate::{self, PromptOverlap};
use crate::peer_snapshot::{self, PeerSnapshot};
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::PRESUMED_CHUNKS_MAX;
use crate::sharing::{PeerAssignment, PeerState, PeerTask, Received, Sharing, SharingView};

/// Interval of the health exchange.
const EXAMINED_EVERY: Micros = Micros::from_millis(200);

/// How long a worker that a peer reports as failing is skipped; extended while the peer repeats it.
const PASSED_OVER_FOR: Micros = Micros::from_millis(500);

/// Effects applied per hold of `peer_bookings`.
const EFFECTS_AT_ONCE: usize = 16;

/// Maximum chunk size that a peer may use.
const CHUNK_BYTES_MAX: u32 = 1 << 16;

/// A worker that answered this router within this time is healthy, whatever peers report.
const OWN_EVIDENCE: Micros = Micros::from_secs(2);

impl<P: Policy> Peering<'_, P> {
    /// Starts sharing with peers. Further calls have no effect.
    pub fn start(&self, me: RouterId, config: Config) {
        let _changes = self.router.changes.lock();
        self.router
            .sharing
            .get_or_init(|| Arc::new(Sharing::new(Peers::new(me, config), &self.router.fleet.members())));
    }

    /// Whether sharing with peers is on.
    pub fn is_sharing(&self) -> bool {
        self.router.sharing.get().is_some()
    }

    /// The messages to send now. Call it again after [`Peering::next_compose_in`].
    pub fn compose_messages(&self, now: Micros) -> Vec<Envelope> {
        let Some(sharing) = self.router.sharing.get() else { return Vec::new() };
        let (mut peer_state, mut effects) = (sharing.peer_state(), Vec::new());
        peer_state.peers.expire(now, &mut effects);
        self.take_in(sharing, &mut peer_state, &effects, now);
        self.apply_local_changes(sharing, &mut peer_state, now);
        sharing.set_rank(peer_state.peers.rank());
        let others = peer_state.peers.ids().count();
        sharing.set_routers(others + 1);
        sharing.set_unpropagated_load(peer_state.unpropagated_load.expected(
            others,
            peer_state.peers.one_way_delay(),
            now,
        ));
        peer_state.peers.compose(sharing.take_news(), now)
    }

    /// Whether a decision or a first token may be sent at once; see [`Peers::may_send_now`].
    pub fn may_send_now(&self, now: Micros) -> bool {
        self.router.sharing.get().is_some_and(|sharing| sharing.peer_state().peers.may_send_now(now))
    }

    /// When to call [`Peering::compose_messages`] next.
    pub fn next_compose_in(&self, now: Micros) -> Micros {
        let sharing = self.router.sharing.get();
        sharing.map_or(Config::default().idle_interval, |sharing| {
            sharing.peer_state().peers.next_compose_in(now)
        })
    }

    /// A report to the peer that has routed a request, to send at once; `None` without sharing.
    pub fn compose_report(&self, to: RouterId, report: Vec<u8>) -> Option<Envelope> {
        let sharing = self.router.sharing.get()?;
        Some(Envelope::report(sharing.own_id(), to, report))
    }

    /// This router's id; `None` without sharing.
    pub fn own_id(&self) -> Option<RouterId> {
        self.router.sharing.get().map(|sharing| sharing.own_id())
    }

    /// Applies a peer's message; returns the answers.
    pub fn receive(&self, bytes: &[u8], now: Micros) -> Result<Vec<Envelope>, BadMessage> {
        let Received { answers, tasks, .. } = self.receive_message(bytes, now)?;
        tasks.into_iter().for_each(|task| self.run(task, now));
        Ok(answers)
    }

    /// Applies a message of an authenticated peer; messages that claim another sender are rejected. Long
    /// tasks are returned.
    pub fn receive_from(&self, from: RouterId, bytes: &[u8], now: Micros) -> Result<Received, BadMessage> {
        if PeerMessage::claimed_sender(bytes).is_some_and(|claimed| claimed != from) {
            self.router
                .sharing
                .get()
                .into_iter()
                .for_each(|sharing| sharing.peer_state().peers.bad_messages += 1);
            return Ok(Received::default());
        }
        self.receive_message(bytes, now)
    }

    fn receive_message(&self, bytes: &[u8], now: Micros) -> Result<Received, BadMessage> {
        let Some(sharing) = self.router.sharing.get() else { return Ok(Received::default()) };
        let (mut peer_state, mut effects) = (sharing.peer_state(), Vec::new());
        let answers = peer_state.peers.receive(bytes, now, &mut effects)?;
        self.take_in(sharing, &mut peer_state, &effects, now);
        drop(peer_state);
        let states = effects.iter().filter(|effect| matches!(effect, Effect::LedgerRequested { .. }));
        states.for_each(|effect| self.send_ledger(sharing, effect));
        let (mut tasks, mut limits, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::LimitsReceived { router, messages } => limits.push((router, messages)),
                Effect::Reported { bytes, .. } => reports.push(bytes),
                effect => tasks.extend(PeerTask::of(effect, now)),
            }
        }
        Ok(Received { answers, tasks, limits, reports })
    }

    /// Sends or merges a snapshot of the presumed caches, for a new peer. May take seconds and runs beside
    /// everything else.
    pub fn run(&self, task: PeerTask, now: Micros) {
        let Some(sharing) = self.router.sharing.get() else { return };
        match task {
            PeerTask::SendSnapshot => self.send_snapshot(sharing, now),
            PeerTask::MergeSnapshot { bytes, age, received_at } => {
                match peer_snapshot::read(&bytes, self.router.index.digester()) {
                    Ok(received) => self.merge_snapshot(sharing, received, received_at, age),
                    Err(_) => sharing.peer_state().peers.bad_messages += 1,
                }
            }
        }
    }

    /// Peers that share tenants' limits.
    pub fn limit_sharers(&self) -> BTreeSet<RouterId> {
        let sharing = self.router.sharing.get();
        sharing.map(|sharing| sharing.peer_state().peers.limit_sharers().collect()).unwrap_or_default()
    }

    /// Sharing in numbers; `None` without sharing.
    pub fn view(&self, now: Micros) -> Option<SharingView> {
        self.router.sharing.get().map(|sharing| sharing.view(now))
    }

    /// Applies local changes since the last call.
    fn apply_local_changes(&self, sharing: &Sharing, peer_state: &mut PeerState, now: Micros) {
        let _workers = self.router.peer_bookings.read();
        self.book_waiting(sharing, peer_state, now);
        if peer_state.examined.is_none_or(|examined| now.since(examined) >= EXAMINED_EVERY) {
            peer_state.examined = Some(now);
            self.examine(sharing, peer_state, now);
        }
    }

    /// Books peers' assignments to workers that have joined since.
    fn book_waiting(&self, sharing: &Sharing, peer_state: &mut PeerState, now: Micros) {
        for (key, waiting) in peer_state.waiting_assignments.take(|worker| sharing.worker(worker).is_some()) {
            let Some(mut one) = self.mirror(sharing, &waiting.booked, now) else { continue };
            if waiting.is_computed {
                self.computed(&mut one, now);
            }
            peer_state.assignments.insert(key, one);
        }
    }

    /// Announces failing workers and skips those that peers report.
    fn examine(&self, sharing: &Sharing, peer_state: &mut PeerState, now: Micros) {
        let members = self.router.fleet.members();
        let found = |state| match state {
            WorkerState::Unhealthy | WorkerState::Recovering => WorkerHealth::Failing,
            WorkerState::Starting
            | WorkerState::Ready
            | WorkerState::Draining
            | WorkerState::Unready
            | WorkerState::Sleeping => WorkerHealth::Healthy,
        };
        let found = members.iter().map(|view| (view.worker.identity, found(view.load.state))).collect();
        sharing.examine(&found);
        let members = found.into_keys().collect();
        peer_state.peers.compare_workers(&members, now);
        for identity in peer_state.peers.failing_workers(&members) {
            let worker = sharing.worker(identity);
            let serves = |age: Micros| age <= OWN_EVIDENCE;
            let doubted = worker.filter(|worker| !sharing.answered_for(worker.id, now).is_some_and(serves));
            doubted.into_iter().for_each(|worker| self.router.fleet.pause(&worker, now + PASSED_OVER_FOR));
        }
    }

    /// Applies effects in small groups: the lock holds up changes of the fleet.
    fn take_in(&self, sharing: &Sharing, peer_state: &mut PeerState, effects: &[Effect], now: Micros) {
        for some in effects.chunks(EFFECTS_AT_ONCE) {
            let _workers = self.router.peer_bookings.read();
            some.iter().for_each(|effect| self.take_in_one(sharing, peer_state, effect, now));
        }
    }

    fn take_in_one(&self, sharing: &Sharing, peer_state: &mut PeerState, effect: &Effect, now: Micros) {
        match effect {
            Effect::Booked { router, assignment, booking: booked } => {
                match self.mirror(sharing, booked, now) {
                    Some(one) => {
                        peer_state.unpropagated_load.note(one.booking.expected_ms(now), now);
                        peer_state.assignments.insert((*router, *assignment), one);
                    }
                    None => peer_state.waiting_assignments.add((*router, *assignment), booked.clone()),
                }
            }
            Effect::Prefilled { router, assignment } => {
                match peer_state.assignments.get_mut(&(*router, *assignment)) {
                    Some(one) => self.computed(one, now),
                    None => peer_state.waiting_assignments.computed((*router, *assignment)),
                }
            }
            Effect::Ended { router, assignment, end: over, prompt } => {
                match peer_state.assignments.remove(&(*router, *assignment)) {
                    Some(one) => self.over(one, *over, prompt.as_ref(), now),
                    None => _ = peer_state.waiting_assignments.remove((*router, *assignment)),
                }
            }
            Effect::CacheCleared { worker } => {
                let worker = sharing.worker(*worker);
                let presumed = worker
                    .filter(|worker| self.router.fleet.load_view(worker.id).view == CacheView::Presumed);
                presumed.into_iter().for_each(|worker| self.router.index.clear_presumed(worker.id.into()));
            }
            Effect::ResponseStored { id, stored } => _ = self.router.stored.learn(*id, *stored),
            // The gateway's, or long tasks with locks of their own.
            Effect::LimitsReceived { .. }
            | Effect::Reported { .. }
            | Effect::LedgerRequested { .. }
            | Effect::SnapshotRequested
            | Effect::SnapshotReceived { .. } => {}
        }
    }

    /// Sends all open assignments to a peer that is new or has missed many.
    fn send_ledger(&self, sharing: &Sharing, asked: &Effect) {
        if let Effect::LedgerRequested { router, up_to, low_water } = asked {
            let stored = self.router.stored.all().into_iter().collect();
            let state = Ledger { low_water: *low_water, stored, ..sharing.state() };
            sharing.peer_state().peers.answer_ledger(*router, *up_to, state);
        }
    }

    /// Sends the most recently used presumptions up to the size limit.
    fn send_snapshot(&self, sharing: &Sharing, now: Micros) {
        let BoundedSnapshot { snapshot, is_truncated } =
            self.router.index.snapshot_newest(now, SNAPSHOT_BYTES_MAX);
        let members = self.router.fleet.members();
        let identities: BTreeMap<WorkerId, u64> =
            members.iter().map(|view| (view.worker.id, view.worker.identity)).collect();
        let identity_of = |worker| identities.get(&worker).copied();
        let bytes = peer_snapshot::write(&snapshot, self.router.index.digester(), identity_of).into();
        let mut peer_state = sharing.peer_state();
        peer_state.peers.truncated_answers += u64::from(is_truncated);
        peer_state.peers.answer_snapshot(bytes);
    }

    /// Merges a peer's presumptions for workers that have no better view here. The fleet may change between
    /// two prompts.
    fn merge_snapshot(&self, sharing: &Sharing, received: PeerSnapshot, received_at: Micros, age: Micros) {
        let PeerSnapshot { workers, snapshot } = received;
        let recalled = self.router.index.begin_restore(snapshot, received_at, age);
        let mut workers_here = self.router.peer_bookings.read();
        for (number, identity) in workers {
            let presumed = || {
                let worker = sharing.worker(identity);
                worker.filter(|worker| self.router.fleet.load_view(worker.id).view == CacheView::Presumed)
            };
            let Some(worker) = presumed() else { continue };
            let is_there = || {
                RwLockReadGuard::bump(&mut workers_here);
                presumed().is_some_and(|now| Arc::ptr_eq(&now, &worker))
            };
            // A full index drops the rest, which costs hits later.
            _ = self.router.index.merge(&recalled, number.into(), worker.id.into(), is_there);
        }
    }

    /// Books and presumes a peer's assignment; `None` if the worker is not a member here.
    fn mirror(&self, sharing: &Sharing, booked: &BookingRecord, now: Micros) -> Option<PeerAssignment> {
        let BookingRecord { prompt_tokens, cached_tokens, restorable_tokens, .. } = *booked;
        let prompt = booked.prompt.as_ref().filter(|prompt| is_sane(prompt));
        let worker = sharing.worker(booked.worker)?;
        let (load, forecast) =
            (self.router.fleet.load_summary(worker.id), self.router.fleet.forecast(worker.id, now));
        let found = PromptOverlap {
            prompt_tokens,
            overlap_tokens: cached_tokens,
            restorable_tokens,
            shortfall_tokens: 0,
        };
        let work = BookedWork {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens),
            context_tokens: prompt_tokens,
            features: estimate::features(&load, &forecast, found),
            delivery: booked.delivery,
        };
        let booking = Booking::of_peer(&self.router.fleet, worker.id, work, now);
        let bookings = self.router.fleet.bookings(worker.id);
        let presumed = prompt.and_then(|prompt| {
            let root = RootKey::presumed_from_bits(prompt.root);
            PresumptionGuard::make(&self.router.index, worker.id, root, &Arc::new(spans(prompt)), now)
        });
        self.router.index.apply_pending();
        let is_rendered = !prompt.is_some_and(|prompt| prompt.is_unrendered);
        let awaits_event = is_rendered && self.router.fleet.load_view(worker.id).view == CacheView::Reported;
        Some(PeerAssignment { worker, booking, presumed, awaits_event, made: now, bookings })
    }

    /// Records a peer's first token, as [`Router::observe`](super::Router::observe) does for an own one.
    fn computed(&self, peer_assignment: &mut PeerAssignment, now: Micros) {
        peer_assignment.booking.first_token_at_peer(now);
        match peer_assignment.presumed.take() {
            Some(presumed) if peer_assignment.awaits_event => {
                self.router.speculations.await_event(
                    presumed,
                    peer_assignment.worker.id,
                    peer_assignment.made,
                );
            }
            Some(mut presumed) => presumed.confirm(),
            None => {}
        }
    }

    fn over(
        &self,
        mut peer_assignment: PeerAssignment,
        over: AssignmentEnd,
        prompt: Option<&PromptDigests>,
        now: Micros,
    ) {
        if over > AssignmentEnd::Abandoned {
            self.computed(&mut peer_assignment, now);
        }
        if let (AssignmentEnd::Stale { found_chunks: chunks }, Some(prompt)) =
            (over, prompt.filter(|prompt| is_sane(prompt)))
        {
            let rate = prompt.chunk_tokens as f32 / prompt.chunk_bytes as f32;
            let prompt = as_chunks(prompt);
            let PeerAssignment { worker, bookings, awaits_event, .. } = &peer_assignment;
            match awaits_event {
                true => self.router.cut_presumed(worker, *bookings, prompt, chunks),
                false => self.router.correct(worker, *bookings, (prompt, rate), chunks, now),
            }
        }
    }
}

/// Whether a peer's prompt is within the limits.
fn is_sane(prompt: &PromptDigests) -> bool {
    (1..=CHUNK_BYTES_MAX).contains(&prompt.chunk_bytes) && prompt.digests.len() <= PRESUMED_CHUNKS_MAX
}

fn spans(prompt: &PromptDigests) -> Vec<Span> {
    let units = |bytes: u32| bytes / prompt.chunk_bytes.max(1);
    as_chunks(prompt).spans(|bytes| prompt.chunk_tokens.saturating_mul(units(bytes))).collect()
}

fn as_chunks(prompt: &PromptDigests) -> PromptChunks<'_> {
    let bytes = ChunkSizes::of_unit(prompt.chunk_bytes).bytes_before(prompt.digests.len());
    PromptChunks {
        root: RootKey::presumed_from_bits(prompt.root),
        digests: &prompt.digests,
        chunk_bytes: prompt.chunk_bytes,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
    }
}
