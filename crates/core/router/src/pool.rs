//! The workers that serve one model, and the critical section in which one is chosen and booked.
//!
//! The index is walked before the section is entered. Whoever presumes something inside moves a version on, and a walk of
//! the same head that began before that is repeated inside: so a sibling sees what the one before it was given, and
//! everybody else does not pay for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use warmroute_fleet::{BookedWork, Booking, Fleet, PrefillFeatures, Worker, WorkerLoadView};
use warmroute_index::{Index, Reach};
use warmroute_policy::{Candidate, Choice, ExpectedTtft, Policy, PolicyRequest};
use warmroute_types::{CacheView, Delivery, MAX_WORKERS, Micros, WorkerId};

use crate::considered::{CONSIDERED_MAX, Considered, NextBest, Preview};
use crate::held::{Held, Promise, Weights};
use crate::policies::Policies;
use crate::presumed::Presumed;
use crate::prompt::{PromptChunks, PromptText};
use crate::prospect::{Found, Moment, Prospect};
use crate::reported::Unit;
use crate::scratch::Scratch;
use crate::token_rate::TokenRate;
use crate::underpromise::Underpromise;
use crate::unproven::Unproven;

/// One model's workers.
#[derive(Default)]
pub(crate) struct Pool {
    section: Mutex<Section>,
    /// Each moves on with every presumption of a prompt whose head falls to it.
    versions: Versions,
    /// How many tokens this model makes of a byte.
    pub(crate) tokens: TokenRate,
    /// How often its answers are found again by prompts that repeat them.
    pub(crate) unproven: Unproven,
    /// How many tokens more than presumed its engines find.
    pub(crate) underpromise: Underpromise,
}

/// Versions of what is presumed, by the first chunk of a prompt: prompts that share nothing hardly ever share one.
struct Versions([AtomicU64; 64]);

impl Default for Versions {
    fn default() -> Versions {
        Versions([const { AtomicU64::new(0) }; 64])
    }
}

impl Versions {
    /// A prompt shorter than a chunk presumes nothing and finds nothing; any will do.
    fn of(&self, prompt: PromptChunks<'_>) -> &AtomicU64 {
        &self.0[prompt.digests.first().map_or(0, |digest| *digest as usize % 64)]
    }
}

/// What the critical section works on. The candidates' memory is reserved when members change, not per decision.
#[derive(Default)]
struct Section {
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    /// For each candidate, which member it is.
    seats: Vec<usize>,
    /// For each candidate, what is known of its cache.
    expectations: Vec<Expectation>,
    /// For each candidate, what its prefill time is predicted from.
    features: Vec<PrefillFeatures>,
    /// Which candidates are best by the rule that counts in milliseconds.
    next_best: NextBest,
    /// Prompt tokens that the best of them is believed to hold.
    longest_match: u32,
    /// For each seat of the fleet, how many bytes of the prompt at hand it holds; zero between decisions.
    overlap_bytes: Vec<u32>,
    turn: u64,
}

/// A worker, with what every decision reads of it copied beside the pointer: following thousands of pointers would be
/// most of a decision's cost.
struct Member {
    id: WorkerId,
    identity: u64,
    worker: Arc<Worker>,
}

/// What is expected of a worker's cache, and by what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expectation {
    pub view: CacheView,
    /// In which of the cache's lives.
    pub generation: u32,
    /// Bytes of the prompt that it is presumed to hold.
    pub presumed_bytes: u32,
    /// What its engine's events promise; `None` without them.
    pub promise: Option<Promise>,
}

/// What a decision needs besides the policy.
pub(crate) struct Terms<'a> {
    pub ask: PolicyRequest,
    pub prompt: Option<PromptChunks<'a>>,
    pub texts: &'a [PromptText<'a>],
    /// How often what was stored while decoding is found again.
    pub unproven: f32,
    /// How many tokens more than presumed engines find.
    pub underpromised: u32,
    pub avoid: &'a [WorkerId],
    /// By seat, how many tokens of the prompt are known to be held, where somebody knows for certain.
    pub known_tokens: Option<&'a [u32]>,
    /// How its answer will come.
    pub delivery: Delivery,
    pub now: Micros,
    pub report_age_max: Micros,
    pub in_flight_max: u32,
}

/// Whether a request could be sent anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// Nobody is there to take it, full or not.
    Nobody,
    /// All who are there have as many as they may.
    Full,
    /// Somebody would take it.
    Free,
}

/// What becomes of workers that asked to be left alone for now.
#[derive(Clone, Copy, PartialEq)]
enum Resting {
    PassedOver,
    Asked,
}

/// A booked choice.
pub(crate) struct Placed {
    pub worker: Arc<Worker>,
    pub reason: &'static str,
    pub cached_tokens: Option<u32>,
    pub longest_match: Option<u32>,
    pub prompt_tokens: u32,
    pub expectation: Expectation,
    pub bookings: u32,
    pub booking: Booking,
    pub presumed: Option<Presumed>,
    pub considered: [Option<Considered>; CONSIDERED_MAX],
}

impl Pool {
    /// Replaces the members; the count of turns goes on. When this returns, no decision can choose a former member.
    pub(crate) fn set_members(&self, members: Vec<Arc<Worker>>) {
        let mut section = self.section.lock();
        section.candidates = Vec::with_capacity(members.len());
        section.seats = Vec::with_capacity(members.len());
        section.expectations = Vec::with_capacity(members.len());
        section.features = Vec::with_capacity(members.len());
        section.overlap_bytes.resize(MAX_WORKERS, 0);
        section.members = members.into_iter().map(Member::from).collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.section.lock().members.is_empty()
    }

    /// Whether a member would take a request now, other than those to be avoided.
    pub(crate) fn vacancy(&self, fleet: &Fleet, avoid: &[WorkerId], in_flight_max: u32) -> Vacancy {
        let section = self.section.lock();
        let others = section.members.iter().filter(|member| !avoid.contains(&member.id));
        let mut ready =
            others.map(|member| fleet.load_view(member.id)).filter(WorkerLoadView::takes_requests).peekable();
        if ready.peek().is_none() {
            return Vacancy::Nobody;
        }
        if ready.any(|load| load.in_flight < in_flight_max) { Vacancy::Free } else { Vacancy::Full }
    }

    /// Tokens of a prompt: those that engines have counted, and what its rest is believed to have.
    fn count(&self, text: PromptText<'_>, prompt: Option<PromptChunks<'_>>, known: Reach) -> u32 {
        let len = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        match text.unit {
            Unit::Token => len / 4,
            Unit::Byte => {
                let bytes = prompt.map_or(len, |prompt| prompt.bytes);
                known.tokens.saturating_add(self.tokens.tokens_in(bytes.saturating_sub(known.bytes)))
            }
        }
    }

    /// Chooses, books and presumes in one step. `None`: no member is ready, or all ready ones are to be avoided.
    pub(crate) fn place<P: Policy>(
        &self,
        fleet: &Arc<Fleet>,
        index: &Arc<Index>,
        policies: &Policies<P>,
        mut terms: Terms<'_>,
        scratch: &mut Scratch,
    ) -> Option<Placed> {
        terms.prompt.into_iter().for_each(|prompt| scratch.cut(prompt, &self.tokens));
        let mut section = self.enter(fleet, index, &mut terms, scratch)?;
        section.turn = section.turn.wrapping_add(1);
        let Choice { index: chosen, reason } = policies.choose(&terms.ask, &section.candidates);
        let expectation = section.expectations[chosen];
        let is_looked_up =
            terms.prompt.is_some() || expectation.promise.is_some() || terms.known_tokens.is_some();
        let cached_tokens = is_looked_up.then_some(section.candidates[chosen].overlap_tokens);
        let longest_match = is_looked_up.then_some(section.longest_match);
        let considered = section.considered(chosen);
        let worker = Arc::clone(&section.members[section.seats[chosen]].worker);
        let prompt_tokens = terms.ask.prompt_tokens;
        let work = BookedWork {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens.unwrap_or(0)),
            context_tokens: prompt_tokens,
            features: section.features[chosen],
            delivery: terms.delivery,
        };
        let booking = Booking::make(fleet, worker.id, work, terms.now);
        let bookings = fleet.bookings(worker.id);
        let presumed = terms.prompt.and_then(|prompt| {
            let presumed = Presumed::make(index, worker.id, prompt.root, &scratch.spans, terms.now);
            // After it, not before: whoever reads the new version must see what it stands for.
            self.versions.of(prompt).fetch_add(1, Ordering::Release);
            presumed
        });
        Some(Placed {
            worker,
            reason,
            cached_tokens,
            longest_match,
            prompt_tokens,
            expectation,
            bookings,
            booking,
            presumed,
            considered,
        })
    }

    /// What [`Pool::place`] would choose now, and among whom. It leaves no trace.
    pub(crate) fn preview<P: Policy>(
        &self,
        fleet: &Fleet,
        index: &Index,
        policy: &P,
        mut terms: Terms<'_>,
        scratch: &mut Scratch,
    ) -> Option<Preview> {
        // Decisions wait while this one copies: they shall not wait for the allocator too.
        let mut candidates = Vec::with_capacity(self.section.lock().members.len());
        let section = self.enter(fleet, index, &mut terms, scratch)?;
        let Choice { index: chosen, reason } = policy.choose(&terms.ask, &section.candidates);
        candidates.extend((0..section.candidates.len()).map(|index| section.consider(index)));
        let prompt_tokens = terms.ask.prompt_tokens;
        Some(Preview { policy: policy.name(), reason, prompt_tokens, chosen, candidates })
    }

    /// Looks the prompt up, enters the section and lines up the candidates; `None` when there are none.
    fn enter(
        &self,
        fleet: &Fleet,
        index: &Index,
        terms: &mut Terms<'_>,
        scratch: &mut Scratch,
    ) -> Option<MutexGuard<'_, Section>> {
        let version = |prompt| self.versions.of(prompt).load(Ordering::Acquire);
        let walked = terms.prompt.map(version);
        terms.prompt.into_iter().for_each(|prompt| scratch.walk(index, prompt));
        scratch.walk_texts(index, terms.texts);
        if let Some(text) = terms.texts.first() {
            terms.ask.prompt_tokens = self.count(*text, terms.prompt, scratch.furthest());
        }
        let mut section = self.section.lock();
        if let Some(prompt) = terms.prompt.filter(|&prompt| walked != Some(version(prompt))) {
            scratch.walk(index, prompt);
        }
        section.line_up(fleet, terms, &self.tokens, scratch, Resting::PassedOver);
        // Better a worker that asked to be left alone than none. But one that has just turned this request away, or stands
        // beside one that did, is not asked in its place.
        if section.candidates.is_empty() && terms.avoid.is_empty() {
            section.line_up(fleet, terms, &self.tokens, scratch, Resting::Asked);
        }
        terms.ask.turn = section.turn;
        (!section.candidates.is_empty()).then_some(section)
    }
}

impl Section {
    /// A candidate, to be remembered.
    fn consider(&self, index: usize) -> Considered {
        Considered {
            worker: Arc::clone(&self.members[self.seats[index]].worker),
            view: self.expectations[index].view,
            numbers: self.candidates[index],
        }
    }

    /// The chosen one and the next best.
    fn considered(&self, chosen: usize) -> [Option<Considered>; CONSIDERED_MAX] {
        let mut indices = self.next_best.after(chosen);
        std::array::from_fn(|_| indices.next().map(|index| self.consider(index)))
    }

    /// Writes the ready members' numbers into the candidates.
    fn line_up(
        &mut self,
        fleet: &Fleet,
        terms: &Terms<'_>,
        rate: &TokenRate,
        scratch: &Scratch,
        resting: Resting,
    ) {
        let overlaps = if terms.prompt.is_some() { scratch.presumed.as_slice() } else { &[] };
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = overlap.reach.bytes);
        // The last token is computed anew even when everything is cached: its logits are wanted.
        let usable = terms.ask.prompt_tokens.saturating_sub(1);
        self.candidates.clear();
        self.seats.clear();
        self.expectations.clear();
        self.features.clear();
        self.longest_match = 0;
        // Neighbours in the list mostly serve the same model: its cost is read once for all of them.
        let (mut kind, mut cost) = (0, fleet.prefill_cost(0));
        let moment = Moment { now: terms.now, report_age_max: terms.report_age_max };
        for (seat, member) in self.members.iter().enumerate() {
            let load = fleet.load_view(member.id);
            let is_passed_over = resting == Resting::PassedOver && load.is_paused(terms.now);
            let has_room = load.takes_requests() && load.in_flight < terms.in_flight_max;
            if !has_room || is_passed_over || terms.avoid.contains(&member.id) {
                continue;
            }
            self.seats.push(seat);
            let presumed_bytes = self.overlap_bytes[member.id.index()];
            let presumed = whole_blocks(rate.tokens_in(presumed_bytes).min(usable), &load);
            let promise = terms.promise(&load, || scratch.held(member.id));
            self.expectations.push(Expectation {
                view: load.view,
                generation: load.generation,
                presumed_bytes,
                promise,
            });
            // Never added: what was sent to a worker with events is presumed only until its event must have come.
            let believed = promise.map_or(presumed, |promise| promise.expected.max(presumed));
            let reported = promise.map_or(0, |promise| promise.expected + promise.restorable);
            let found = Found {
                prompt_tokens: terms.ask.prompt_tokens,
                overlap_tokens: terms.known_tokens.map_or(believed, |known| known[member.id.index()]),
                restorable_tokens: reported.saturating_sub(believed),
                underpromised_tokens: terms.underpromised(promise.is_none(), believed, usable),
            };
            let forecast = fleet.forecast(member.id, terms.now);
            if forecast.kind != kind {
                (kind, cost) = (forecast.kind, fleet.prefill_cost(forecast.kind));
            }
            let Prospect { features, estimate } = Prospect::of(&load, &forecast, &cost, found, moment);
            self.longest_match = self.longest_match.max(found.overlap_tokens);
            self.features.push(features);
            self.candidates.push(Candidate {
                worker: member.id,
                identity: member.identity,
                overlap_tokens: found.overlap_tokens,
                restorable_tokens: found.restorable_tokens,
                estimate,
                in_flight: load.in_flight,
                prefill_tokens: load.prefill_tokens,
                decode_tokens: load.decode_tokens,
                waiting: load.waiting(terms.now, terms.report_age_max),
            });
        }
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = 0);
        self.spare(fleet, terms.now);
        self.compare();
    }

    /// Sets apart what a worker would compute only because it is the one that lacks what the others have.
    fn spare(&mut self, fleet: &Fleet, now: Micros) {
        let common_tokens = common(self.candidates.iter().map(|candidate| candidate.overlap_tokens));
        for (candidate, features) in self.candidates.iter_mut().zip(&self.features) {
            let found_tokens = candidate.overlap_tokens + candidate.restorable_tokens;
            let lacking_tokens = common_tokens.saturating_sub(found_tokens).min(features.miss_tokens);
            if lacking_tokens > 0 {
                let like_others = PrefillFeatures {
                    miss_tokens: features.miss_tokens - lacking_tokens,
                    cached_tokens: features.cached_tokens + lacking_tokens,
                    ..*features
                };
                let like_others_ms = fleet.prefill_ms(candidate.worker, &like_others, now);
                candidate.estimate.lacking_ms = (candidate.estimate.prefill_ms - like_others_ms).max(0.0);
            }
        }
    }

    /// Tells each what the request would take anywhere, and notes who is best by the rule that counts in milliseconds.
    fn compare(&mut self) {
        let works_ms = self.candidates.iter().map(|candidate| candidate.estimate.work_ms());
        let anywhere_ms = works_ms.fold(f32::INFINITY, f32::min);
        self.next_best = NextBest::default();
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            candidate.estimate.anywhere_ms = anywhere_ms;
            self.next_best.offer(index, ExpectedTtft::default().cost_ms(candidate));
        }
    }
}

/// What workers hold of a prompt on average, the one that holds most left out: of a conversation that one worker has, nothing; of
/// a head that everybody shares, nearly all of it.
fn common(overlaps: impl Iterator<Item = u32>) -> u32 {
    let (sum, most, count) = overlaps.fold((0_u64, 0, 0_u64), |(sum, most, count), tokens| {
        (sum + u64::from(tokens), tokens.max(most), count + 1)
    });
    (sum - u64::from(most)).checked_div(count.saturating_sub(1)).unwrap_or(0) as u32
}

/// Caches hold whole blocks, where it is known how large they are.
fn whole_blocks(tokens: u32, load: &WorkerLoadView) -> u32 {
    tokens - tokens % load.block_tokens.unwrap_or(1).max(1)
}

impl Terms<'_> {
    /// What a worker without events probably holds beyond what is presumed. Of a prompt that it does not hold, nothing.
    fn underpromised(&self, is_presumed: bool, presumed: u32, usable: u32) -> u32 {
        let applies = is_presumed && presumed > 0 && self.known_tokens.is_none();
        if applies { self.underpromised.min((usable - presumed.min(usable)) / 2) } else { 0 }
    }

    /// What a worker's events promise of the prompt; `None` for one without them.
    fn promise(&self, load: &WorkerLoadView, held: impl FnOnce() -> Held) -> Option<Promise> {
        let first = self.texts.first().filter(|_| load.view != CacheView::Presumed)?;
        let held = held();
        // A worker holds something in its own family's writing only.
        let text = self.texts.get(usize::from(held.text)).unwrap_or(first);
        let block_tokens = load.block_tokens.unwrap_or(1);
        let prompt_bytes = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        let (view, trust) = (load.view, load.trust);
        let unproven = match text.unit {
            Unit::Byte => self.unproven,
            // Tokens that are the same are the same, sampled or not.
            Unit::Token => 1.0,
        };
        Some(held.promise(Weights { view, trust, unproven, block_tokens, prompt_bytes }))
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        Member { id: worker.id, identity: worker.identity, worker }
    }
}
