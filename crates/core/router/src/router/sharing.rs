//! Hearing other routers, and being heard.
//!
//! Of the locks, what was heard is taken first and the pools after it, for a moment: so whoever changes the fleet, and the requests that
//! wait behind that, never wait for messages that are being read. What follows from a message is taken in before the next one is
//! read, whoever drives: order is what effects mean.

use std::collections::BTreeMap;
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

use super::Router;
use crate::PromptChunks;
use crate::estimate::{self, PromptOverlap};
use crate::peer_snapshot::{self, View};
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::PRESUMED_CHUNKS_MAX;
use crate::sharing::{PeerAssignment, PeerState, PeerTask, Received, Sharing, SharingView};

/// The workers' health is looked at this often.
const EXAMINED_EVERY: Micros = Micros::from_millis(200);

/// A worker that a peer finds failing is passed over for so long, and again while the peer says so.
const PASSED_OVER_FOR: Micros = Micros::from_millis(500);

/// So many things are taken in at a time.
const EFFECTS_AT_ONCE: usize = 16;

/// No router cuts prompts into larger pieces.
const CHUNK_BYTES_MAX: u32 = 1 << 16;

/// One that has answered us within this time is well, whatever others say.
const OWN_EVIDENCE: Micros = Micros::from_secs(2);

impl<P: Policy> Router<P> {
    /// From now on this router is one of several. Saying it twice changes nothing.
    pub fn share(&self, me: RouterId, config: Config) {
        let _pools = self.pools.write();
        self.sharing.get_or_init(|| Arc::new(Sharing::new(Peers::new(me, config), &self.fleet.members())));
    }

    /// What is to be said to the others now. To be asked every few milliseconds.
    pub fn compose_messages(&self, now: Micros) -> Vec<Envelope> {
        let Some(sharing) = self.sharing.get() else { return Vec::new() };
        let (mut heard, mut effects) = (sharing.peer_state(), Vec::new());
        heard.peers.expire(now, &mut effects);
        self.take_in(sharing, &mut heard, &effects, now);
        self.look_around(sharing, &mut heard, now);
        sharing.set_rank(heard.peers.rank());
        let others = heard.peers.ids().count();
        sharing.set_unpropagated_load(heard.unpropagated_load.expected(
            others,
            heard.peers.one_way_delay(),
            now,
        ));
        heard.peers.compose(sharing.take_news(), now)
    }

    /// A request was routed: what is to be said of it at once. For whoever carries messages, not for the request: messages that are
    /// being read keep this waiting.
    pub fn compose_urgent(&self, now: Micros) -> Vec<Envelope> {
        let Some(sharing) = self.sharing.get() else { return Vec::new() };
        let mut heard = sharing.peer_state();
        if heard.peers.may_send_now(now) { heard.peers.compose(sharing.take_news(), now) } else { Vec::new() }
    }

    /// Takes in what another router said; what is to be answered.
    pub fn receive(&self, bytes: &[u8], now: Micros) -> Result<Vec<Envelope>, BadMessage> {
        let Received { answers, tasks } = self.receive_message(bytes, now)?;
        tasks.into_iter().for_each(|task| self.run(task, now));
        Ok(answers)
    }

    /// The same from one whom the transport knows: nobody speaks for another. What takes long is left to be done.
    pub fn receive_from(&self, from: RouterId, bytes: &[u8], now: Micros) -> Result<Received, BadMessage> {
        if PeerMessage::claimed_sender(bytes).is_some_and(|claimed| claimed != from) {
            self.sharing.get().into_iter().for_each(|sharing| sharing.peer_state().peers.bad_messages += 1);
            return Ok(Received::default());
        }
        self.receive_message(bytes, now)
    }

    fn receive_message(&self, bytes: &[u8], now: Micros) -> Result<Received, BadMessage> {
        let Some(sharing) = self.sharing.get() else { return Ok(Received::default()) };
        let (mut heard, mut effects) = (sharing.peer_state(), Vec::new());
        let answers = heard.peers.receive(bytes, now, &mut effects)?;
        self.take_in(sharing, &mut heard, &effects, now);
        drop(heard);
        let states = effects.iter().filter(|effect| matches!(effect, Effect::LedgerRequested { .. }));
        states.for_each(|effect| self.tell_state(sharing, effect));
        let tasks = effects.into_iter().filter_map(|effect| PeerTask::of(effect, now)).collect();
        Ok(Received { answers, tasks })
    }

    /// Tells, or takes in, all that is presumed: somebody has just come. It may take seconds, and may be done beside all else.
    pub fn run(&self, task: PeerTask, now: Micros) {
        let Some(sharing) = self.sharing.get() else { return };
        match task {
            PeerTask::Tell => self.tell_view(sharing, now),
            PeerTask::Learn { bytes, age, heard } => match peer_snapshot::read(&bytes, self.index.digester())
            {
                Ok(view) => self.learn_view(sharing, view, heard, age),
                Err(_) => sharing.peer_state().peers.bad_messages += 1,
            },
        }
    }

    /// The conversation in numbers; `None` for a router on its own.
    pub fn sharing(&self, now: Micros) -> Option<SharingView> {
        self.sharing.get().map(|sharing| sharing.view(now))
    }

    /// Looks at what may have changed here since the last time.
    fn look_around(&self, sharing: &Sharing, heard: &mut PeerState, now: Micros) {
        let _pools = self.pools.read();
        self.seat_waiting(sharing, heard, now);
        if heard.examined.is_none_or(|examined| now.since(examined) >= EXAMINED_EVERY) {
            heard.examined = Some(now);
            self.examine(sharing, heard, now);
        }
    }

    /// Books what others have sent to workers that have joined here since.
    fn seat_waiting(&self, sharing: &Sharing, heard: &mut PeerState, now: Micros) {
        for (key, waiting) in heard.waiting_assignments.take(|worker| sharing.worker(worker).is_some()) {
            let Some(mut one) = self.mirror(sharing, &waiting.booked, now) else { continue };
            if waiting.is_computed {
                self.computed(&mut one, now);
            }
            heard.assignments.insert(key, one);
        }
    }

    /// Tells the others who is failing, and heeds what they tell.
    fn examine(&self, sharing: &Sharing, heard: &mut PeerState, now: Micros) {
        let members = self.fleet.members();
        let found = |state| match state {
            WorkerState::Unhealthy | WorkerState::Recovering => WorkerHealth::Failing,
            WorkerState::Starting | WorkerState::Ready | WorkerState::Draining => WorkerHealth::Healthy,
        };
        let found = members.iter().map(|view| (view.worker.identity, found(view.load.state))).collect();
        sharing.examine(&found);
        let members = found.into_keys().collect();
        heard.peers.compare_workers(&members, now);
        for identity in heard.peers.failing_workers(&members) {
            let worker = sharing.worker(identity);
            let serves = |age: Micros| age <= OWN_EVIDENCE;
            let doubted = worker.filter(|worker| !sharing.answered_for(worker.id, now).is_some_and(serves));
            doubted.into_iter().for_each(|worker| self.fleet.pause(&worker, now + PASSED_OVER_FOR));
        }
    }

    /// A few at a time: nobody's seat changes meanwhile, and whoever wants one to must not wait, for requests wait with it.
    fn take_in(&self, sharing: &Sharing, heard: &mut PeerState, effects: &[Effect], now: Micros) {
        for some in effects.chunks(EFFECTS_AT_ONCE) {
            let _pools = self.pools.read();
            some.iter().for_each(|effect| self.take_in_one(sharing, heard, effect, now));
        }
    }

    fn take_in_one(&self, sharing: &Sharing, heard: &mut PeerState, effect: &Effect, now: Micros) {
        match effect {
            Effect::Booked { router, assignment, booking: booked } => {
                match self.mirror(sharing, booked, now) {
                    Some(one) => {
                        heard.unpropagated_load.note(one.booking.expected_ms(now), now);
                        heard.assignments.insert((*router, *assignment), one);
                    }
                    None => heard.waiting_assignments.add((*router, *assignment), booked.clone()),
                }
            }
            Effect::Prefilled { router, assignment } => {
                match heard.assignments.get_mut(&(*router, *assignment)) {
                    Some(one) => self.computed(one, now),
                    None => heard.waiting_assignments.computed((*router, *assignment)),
                }
            }
            Effect::Ended { router, assignment, end: over, prompt } => {
                match heard.assignments.remove(&(*router, *assignment)) {
                    Some(one) => self.over(one, *over, prompt.as_ref(), now),
                    None => _ = heard.waiting_assignments.remove((*router, *assignment)),
                }
            }
            Effect::CacheCleared { worker } => {
                let worker = sharing.worker(*worker);
                let presumed =
                    worker.filter(|worker| self.fleet.load_view(worker.id).view == CacheView::Presumed);
                presumed.into_iter().for_each(|worker| self.index.clear_presumed(worker.id));
            }
            // Those take long, and locks of their own.
            Effect::LedgerRequested { .. } | Effect::SnapshotRequested | Effect::SnapshotReceived { .. } => {}
            Effect::BatchRelayed { .. }
            | Effect::PositionReported { .. }
            | Effect::ReplayRequested { .. }
            | Effect::ReplayReceived { .. } => heard.leave(effect.clone()),
        }
    }

    /// Tells all that is open: somebody has just come, or missed much.
    fn tell_state(&self, sharing: &Sharing, asked: &Effect) {
        if let Effect::LedgerRequested { router, up_to, low_water } = asked {
            let state = Ledger { low_water: *low_water, ..sharing.state() };
            sharing.peer_state().peers.answer_ledger(*router, *up_to, state);
        }
    }

    /// Tells what was used last of all that is presumed, as much as can be told.
    fn tell_view(&self, sharing: &Sharing, now: Micros) {
        let BoundedSnapshot { snapshot, is_truncated } = self.index.snapshot_newest(now, SNAPSHOT_BYTES_MAX);
        let members = self.fleet.members();
        let identities: BTreeMap<u16, u64> =
            members.iter().map(|view| (view.worker.id.0, view.worker.identity)).collect();
        let identity_of = |seat| identities.get(&seat).copied();
        let bytes = peer_snapshot::write(&snapshot, self.index.digester(), identity_of).into();
        let mut heard = sharing.peer_state();
        heard.peers.truncated_answers += u64::from(is_truncated);
        heard.peers.answer_snapshot(bytes);
    }

    /// What is presumed of workers elsewhere, and known of them here by nothing better. Between two prompts seats may change.
    fn learn_view(&self, sharing: &Sharing, view: View, heard: Micros, age: Micros) {
        let View { workers, snapshot } = view;
        let recalled = self.index.begin_restore(snapshot, heard, age);
        let mut pools = self.pools.read();
        for (place, identity) in (0..).zip(workers) {
            let presumed = || {
                let worker = sharing.worker(identity);
                worker.filter(|worker| self.fleet.load_view(worker.id).view == CacheView::Presumed)
            };
            let Some(worker) = presumed() else { continue };
            let is_there = || {
                RwLockReadGuard::bump(&mut pools);
                presumed().is_some_and(|now| Arc::ptr_eq(&now, &worker))
            };
            // Where the index is full, what is left out costs a hit later.
            _ = self.index.merge(&recalled, WorkerId(place), worker.id, is_there);
        }
    }

    /// Books and presumes what another router has sent to a worker; nothing where the worker is not known here.
    fn mirror(&self, sharing: &Sharing, booked: &BookingRecord, now: Micros) -> Option<PeerAssignment> {
        let BookingRecord { prompt_tokens, cached_tokens, restorable_tokens, .. } = *booked;
        let prompt = booked.prompt.as_ref().filter(|prompt| is_sane(prompt));
        let worker = sharing.worker(booked.worker)?;
        let (load, forecast) = (self.fleet.load_view(worker.id), self.fleet.forecast(worker.id, now));
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
        let booking = Booking::of_peer(&self.fleet, worker.id, work, now);
        let bookings = self.fleet.bookings(worker.id);
        let presumed = prompt.and_then(|prompt| {
            let root = RootKey::presumed_from_bits(prompt.root);
            PresumptionGuard::make(&self.index, worker.id, root, &spans(prompt), now)
        });
        Some(PeerAssignment { worker, booking, presumed, view: load.view, made: now, bookings })
    }

    /// As [`Router::observe`] does with a first token.
    fn computed(&self, peer_assignment: &mut PeerAssignment, now: Micros) {
        peer_assignment.booking.first_token_at_peer(now);
        match peer_assignment.presumed.take() {
            Some(presumed) if peer_assignment.view == CacheView::Reported => {
                self.speculations.await_event(presumed, peer_assignment.worker.id, peer_assignment.made);
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
            match peer_assignment.view {
                CacheView::Reported => {
                    self.cut_presumed(&peer_assignment.worker, peer_assignment.bookings, prompt, chunks)
                }
                _ => self.correct(
                    &peer_assignment.worker,
                    peer_assignment.bookings,
                    (prompt, rate),
                    chunks,
                    now,
                ),
            }
        }
    }
}

/// Whether it can be a prompt of a router like this one.
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
