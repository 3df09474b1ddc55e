//! Hearing other routers, and being heard.

use std::sync::Arc;

use warmroute_fleet::{Booking, Work, Worker};
use warmroute_index::{RootKey, Span};
use warmroute_peers::{BadMessage, Booked, Config, Effect, Health, Letter, Message, Over, Peers, Prompt};
use warmroute_policy::Policy;
use warmroute_types::{CacheView, Micros, RouterId, WorkerId, WorkerState};

use super::Router;
use crate::PromptChunks;
use crate::memory::Memory;
use crate::pool::PRESUMED_CHUNKS_MAX;
use crate::presumed::Presumed;
use crate::prospect::{self, Found};
use crate::sharing::{Heard, Mirrored, Sharing, SharingView};

/// The workers' health is looked at this often.
const EXAMINED_EVERY: Micros = Micros::from_millis(200);

/// A worker that a peer finds failing is passed over for so long, and again while the peer says so.
const PASSED_OVER_FOR: Micros = Micros::from_millis(500);

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
    pub fn speak(&self, now: Micros) -> Vec<Letter> {
        let Some(sharing) = self.sharing.get() else { return Vec::new() };
        let _pools = self.pools.read();
        let mut effects = Vec::new();
        let mut heard = sharing.heard();
        heard.peers.expire(now, &mut effects);
        self.take_in(sharing, &mut heard, &effects, now);
        sharing.set_place(heard.peers.place());
        if heard.examined.is_none_or(|examined| now.since(examined) >= EXAMINED_EVERY) {
            heard.examined = Some(now);
            self.examine(sharing, &heard, now);
        }
        drop(heard);
        sharing.with(|heard, own| heard.peers.speak(own, now))
    }

    /// A request was routed: what is to be said of it at once.
    pub fn speak_up(&self, now: Micros) -> Vec<Letter> {
        let Some(sharing) = self.sharing.get() else { return Vec::new() };
        sharing.with(|heard, own| heard.peers.speak_up(own, now))
    }

    /// Takes in what another router said; what is to be answered.
    pub fn hear(&self, bytes: &[u8], now: Micros) -> Result<Vec<Letter>, BadMessage> {
        let Some(sharing) = self.sharing.get() else { return Ok(Vec::new()) };
        // Nobody's seat changes meanwhile.
        let pools = self.pools.read();
        let mut effects = Vec::new();
        let answers = sharing.with(|heard, own| heard.peers.hear(bytes, own, now, &mut effects))?;
        self.take_in(sharing, &mut sharing.heard(), &effects, now);
        drop(pools);
        effects.iter().for_each(|effect| self.take_in_view(sharing, effect, now));
        Ok(answers)
    }

    /// The same from one whom the transport knows: nobody speaks for another.
    pub fn hear_from(&self, from: RouterId, bytes: &[u8], now: Micros) -> Result<Vec<Letter>, BadMessage> {
        if Message::sender(bytes).is_some_and(|claimed| claimed != from) {
            self.sharing.get().into_iter().for_each(|sharing| sharing.heard().peers.bad_messages += 1);
            return Ok(Vec::new());
        }
        self.hear(bytes, now)
    }

    /// The conversation in numbers; `None` for a router on its own.
    pub fn sharing(&self, now: Micros) -> Option<SharingView> {
        self.sharing.get().map(|sharing| sharing.view(now))
    }

    /// Tells the others who is failing, and heeds what they tell.
    fn examine(&self, sharing: &Sharing, heard: &Heard, now: Micros) {
        let members = self.fleet.members();
        let found = |state| match state {
            WorkerState::Unhealthy | WorkerState::Recovering => Health::Failing,
            WorkerState::Starting | WorkerState::Ready | WorkerState::Draining => Health::Well,
        };
        let found = members.iter().map(|view| (view.worker.identity, found(view.desk.state))).collect();
        sharing.examine(&found);
        for identity in heard.peers.failing(&found.into_keys().collect()) {
            let worker = sharing.worker(identity);
            let serves = |age: Micros| age <= OWN_EVIDENCE;
            let doubted = worker.filter(|worker| !sharing.answered_for(worker.id, now).is_some_and(serves));
            doubted.into_iter().for_each(|worker| self.fleet.rest(&worker, now + PASSED_OVER_FOR));
        }
    }

    fn take_in(&self, sharing: &Sharing, heard: &mut Heard, effects: &[Effect], now: Micros) {
        for effect in effects {
            match effect {
                Effect::Booked { router, trip, booked } => {
                    let mirrored = self.mirror(sharing, booked, now);
                    mirrored.into_iter().for_each(|one| _ = heard.trips.insert((*router, *trip), one));
                }
                Effect::Computed { router, trip } => {
                    let one = heard.trips.get_mut(&(*router, *trip));
                    one.into_iter().for_each(|one| self.computed(one, now));
                }
                Effect::Over { router, trip, over } => {
                    let one = heard.trips.remove(&(*router, *trip));
                    one.into_iter().for_each(|one| self.over(one, *over, now));
                }
                Effect::Emptied { worker } => {
                    let worker = sharing.worker(*worker);
                    let presumed =
                        worker.filter(|worker| self.fleet.desk_view(worker.id).view == CacheView::Presumed);
                    presumed.into_iter().for_each(|worker| self.index.clear_presumed(worker.id));
                }
                // Those take long, and a lock of their own.
                Effect::ViewAsked { .. } | Effect::View { .. } => {}
                Effect::Reported { .. }
                | Effect::Reached { .. }
                | Effect::ReplayAsked { .. }
                | Effect::Replayed { .. } => heard.leave(effect.clone()),
            }
        }
    }

    /// Tells, or takes in, all that is presumed: somebody has just come.
    fn take_in_view(&self, sharing: &Sharing, effect: &Effect, now: Micros) {
        match effect {
            Effect::ViewAsked { router } => {
                // The time of day is of no use to one who reads it at once.
                let bytes = self.remember(now, 0).encode();
                sharing.heard().peers.tell_view(*router, &bytes);
            }
            Effect::View { bytes } => match Memory::decode(bytes) {
                Ok(memory) if memory.is_of(&self.config.index) => self.learn_view(sharing, &memory, now),
                _ => sharing.heard().peers.bad_messages += 1,
            },
            _ => {}
        }
    }

    /// What is presumed of workers elsewhere, and known of them here by nothing better.
    fn learn_view(&self, sharing: &Sharing, memory: &Memory, now: Micros) {
        let _pools = self.pools.read();
        for known in &memory.workers {
            let worker = sharing.worker(Worker::identity_of(&known.address));
            let presumed =
                worker.filter(|worker| self.fleet.desk_view(worker.id).view == CacheView::Presumed);
            if let Some(worker) = presumed {
                // Where the index is full, what is left out costs a hit later.
                _ = self.index.learn(&memory.snapshot, WorkerId(known.seat), worker.id, now);
            }
        }
    }

    /// Books and presumes what another router has sent to a worker; nothing where the worker is not known here.
    fn mirror(&self, sharing: &Sharing, booked: &Booked, now: Micros) -> Option<Mirrored> {
        let Booked { prompt_tokens, cached_tokens, restorable_tokens, .. } = *booked;
        let prompt = booked.prompt.clone().filter(is_sane);
        let worker = sharing.worker(booked.worker)?;
        let (desk, outlook) = (self.fleet.desk_view(worker.id), self.fleet.outlook(worker.id, now));
        let found = Found { prompt_tokens, overlap_tokens: cached_tokens, restorable_tokens };
        let work = Work {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens),
            context_tokens: prompt_tokens,
            effort: prospect::effort(&desk, &outlook, found),
            delivery: booked.delivery,
        };
        let booking = Booking::elsewhere(&self.fleet, worker.id, work, now);
        let bookings = self.fleet.bookings(worker.id);
        let presumed = prompt.as_ref().and_then(|prompt| {
            let root = RootKey::presumed_from_bits(prompt.root);
            Presumed::make(&self.index, worker.id, root, &spans(prompt), now)
        });
        Some(Mirrored { worker, booking, presumed, view: desk.view, made: now, bookings, prompt })
    }

    /// As [`Router::observe`] does with a first token.
    fn computed(&self, mirrored: &mut Mirrored, now: Micros) {
        mirrored.booking.computed_elsewhere(now);
        match mirrored.presumed.take() {
            Some(presumed) if mirrored.view == CacheView::Reported => {
                self.speculations.await_event(presumed, mirrored.worker.id, mirrored.made);
            }
            Some(mut presumed) => presumed.confirm(),
            None => {}
        }
    }

    fn over(&self, mut mirrored: Mirrored, over: Over, now: Micros) {
        if over > Over::Left {
            self.computed(&mut mirrored, now);
        }
        if let (Over::Found { chunks }, Some(prompt)) = (over, &mirrored.prompt) {
            let prompt = PromptChunks {
                root: RootKey::presumed_from_bits(prompt.root),
                digests: &prompt.digests,
                chunk_bytes: prompt.chunk_bytes,
                bytes: prompt.chunk_bytes.saturating_mul(prompt.digests.len() as u32),
            };
            match mirrored.view {
                CacheView::Reported => self.cut_presumed(&mirrored.worker, mirrored.bookings, prompt, chunks),
                _ => self.correct(&mirrored.worker, mirrored.bookings, prompt, chunks, now),
            }
        }
    }
}

/// Whether it can be a prompt of a router like this one.
fn is_sane(prompt: &Prompt) -> bool {
    (1..=CHUNK_BYTES_MAX).contains(&prompt.chunk_bytes) && prompt.digests.len() <= PRESUMED_CHUNKS_MAX
}

fn spans(prompt: &Prompt) -> Vec<Span> {
    let tokens = prompt.chunk_tokens.clamp(1, Span::TOKENS_MAX);
    let span = |&digest: &u64| Span { digest, bytes: prompt.chunk_bytes, tokens };
    prompt.digests.iter().map(span).collect()
}
