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

use crate::candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, NextBest, Preview};
use crate::estimate::{EstimateTime, PromptOverlap, WorkerEstimate};
use crate::policies::Policies;
use crate::presumed_shortfall::PresumedShortfall;
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::{PromptChunks, PromptText};
use crate::reported::Unit;
use crate::reported_overlap::{CachePrediction, PredictionWeights, ReportedOverlap, whole_blocks};
use crate::sampled_reuse::SampledReuse;
use crate::scratch::Scratch;
use crate::token_rate::TokenRate;

/// One model's workers.
#[derive(Default)]
pub(crate) struct Pool {
    section: Mutex<DecisionState>,
    /// Each moves on with every presumption of a prompt whose head falls to it.
    versions: Versions,
    /// How many tokens this model makes of a byte.
    pub(crate) tokens: TokenRate,
    /// How often its answers are found again by prompts that repeat them.
    pub(crate) sampled_reuse: SampledReuse,
    /// How many tokens more than presumed its engines find.
    pub(crate) presumed_shortfall: PresumedShortfall,
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
struct DecisionState {
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    /// The rest of each candidate, at the same index. Apart, because policies take a slice of [`Candidate`].
    details: Vec<CandidateDetails>,
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
    /// What its engine's events prediction; `None` without them.
    pub prediction: Option<CachePrediction>,
}

/// A candidate beyond what its policy sees.
struct CandidateDetails {
    /// Index into the members.
    member: usize,
    expectation: Expectation,
    features: PrefillFeatures,
}

/// What a decision needs besides the policy.
pub(crate) struct PlacementInput<'a> {
    pub request: PolicyRequest,
    pub prompt: Option<PromptChunks<'a>>,
    pub texts: &'a [PromptText<'a>],
    /// How often what was stored while decoding is found again.
    pub sampled_weight: f32,
    /// How many tokens more than presumed engines find.
    pub shortfall: u32,
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
    NoWorker,
    /// All who are there have as many as they may.
    Full,
    /// Somebody would take it.
    Free,
}

/// What becomes of workers that asked to be left alone for now.
#[derive(Clone, Copy, PartialEq)]
enum PausedWorkers {
    Skip,
    Include,
}

/// A booked choice.
pub(crate) struct Placement {
    pub worker: Arc<Worker>,
    pub reason: &'static str,
    pub cached_tokens: Option<u32>,
    pub longest_match: Option<u32>,
    pub prompt_tokens: u32,
    pub expectation: Expectation,
    pub bookings: u32,
    pub booking: Booking,
    pub presumed: Option<PresumptionGuard>,
    pub candidate_records: [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX],
}

impl Pool {
    /// Replaces the members; the count of turns goes on. When this returns, no decision can choose a former member.
    pub(crate) fn set_members(&self, members: Vec<Arc<Worker>>) {
        let mut section = self.section.lock();
        section.candidates = Vec::with_capacity(members.len());
        section.details = Vec::with_capacity(members.len());
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
            return Vacancy::NoWorker;
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
        mut input: PlacementInput<'_>,
        scratch: &mut Scratch,
    ) -> Option<Placement> {
        input.prompt.into_iter().for_each(|prompt| scratch.cut(prompt, &self.tokens));
        let mut section = self.enter(fleet, index, &mut input, scratch)?;
        section.turn = section.turn.wrapping_add(1);
        let Choice { index: chosen, reason } = policies.choose(&input.request, &section.candidates);
        let expectation = section.details[chosen].expectation;
        let is_looked_up =
            input.prompt.is_some() || expectation.prediction.is_some() || input.known_tokens.is_some();
        let cached_tokens = is_looked_up.then_some(section.candidates[chosen].overlap_tokens);
        let longest_match = is_looked_up.then_some(section.longest_match);
        let candidate_records = section.candidate_records(chosen);
        let worker = Arc::clone(&section.members[section.details[chosen].member].worker);
        let prompt_tokens = input.request.prompt_tokens;
        let work = BookedWork {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens.unwrap_or(0)),
            context_tokens: prompt_tokens,
            features: section.details[chosen].features,
            delivery: input.delivery,
        };
        let booking = Booking::make(fleet, worker.id, work, input.now);
        let bookings = fleet.bookings(worker.id);
        let presumed = input.prompt.and_then(|prompt| {
            let presumed = PresumptionGuard::make(index, worker.id, prompt.root, &scratch.spans, input.now);
            // After it, not before: whoever reads the new version must see what it stands for.
            self.versions.of(prompt).fetch_add(1, Ordering::Release);
            presumed
        });
        Some(Placement {
            worker,
            reason,
            cached_tokens,
            longest_match,
            prompt_tokens,
            expectation,
            bookings,
            booking,
            presumed,
            candidate_records,
        })
    }

    /// What [`Pool::place`] would choose now, and among whom. It leaves no trace.
    pub(crate) fn preview<P: Policy>(
        &self,
        fleet: &Fleet,
        index: &Index,
        policy: &P,
        mut input: PlacementInput<'_>,
        scratch: &mut Scratch,
    ) -> Option<Preview> {
        // Decisions wait while this one copies: they shall not wait for the allocator too.
        let mut candidates = Vec::with_capacity(self.section.lock().members.len());
        let section = self.enter(fleet, index, &mut input, scratch)?;
        let Choice { index: chosen, reason } = policy.choose(&input.request, &section.candidates);
        candidates.extend((0..section.candidates.len()).map(|index| section.record(index)));
        let prompt_tokens = input.request.prompt_tokens;
        Some(Preview { policy: policy.name(), reason, prompt_tokens, chosen, candidates })
    }

    /// Looks the prompt up, enters the section and lines up the candidates; `None` when there are none.
    fn enter(
        &self,
        fleet: &Fleet,
        index: &Index,
        input: &mut PlacementInput<'_>,
        scratch: &mut Scratch,
    ) -> Option<MutexGuard<'_, DecisionState>> {
        let version = |prompt| self.versions.of(prompt).load(Ordering::Acquire);
        let walked = input.prompt.map(version);
        input.prompt.into_iter().for_each(|prompt| scratch.walk(index, prompt));
        scratch.walk_texts(index, input.texts);
        if let Some(text) = input.texts.first() {
            input.request.prompt_tokens = self.count(*text, input.prompt, scratch.furthest());
        }
        let mut section = self.section.lock();
        if let Some(prompt) = input.prompt.filter(|&prompt| walked != Some(version(prompt))) {
            scratch.walk(index, prompt);
        }
        section.fill_candidates(fleet, input, &self.tokens, scratch, PausedWorkers::Skip);
        // Better a worker that asked to be left alone than none. But one that has just turned this request away, or stands
        // beside one that did, is not asked in its place.
        if section.candidates.is_empty() && input.avoid.is_empty() {
            section.fill_candidates(fleet, input, &self.tokens, scratch, PausedWorkers::Include);
        }
        input.request.turn = section.turn;
        (!section.candidates.is_empty()).then_some(section)
    }
}

impl DecisionState {
    /// A candidate, to be remembered.
    fn record(&self, index: usize) -> CandidateRecord {
        CandidateRecord {
            worker: Arc::clone(&self.members[self.details[index].member].worker),
            view: self.details[index].expectation.view,
            numbers: self.candidates[index],
        }
    }

    /// The chosen one and the next best.
    fn candidate_records(&self, chosen: usize) -> [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX] {
        let mut indices = self.next_best.after(chosen);
        std::array::from_fn(|_| indices.next().map(|index| self.record(index)))
    }

    /// Writes the ready members' numbers into the candidates.
    fn fill_candidates(
        &mut self,
        fleet: &Fleet,
        input: &PlacementInput<'_>,
        rate: &TokenRate,
        scratch: &Scratch,
        paused: PausedWorkers,
    ) {
        let overlaps = if input.prompt.is_some() { scratch.presumed.as_slice() } else { &[] };
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = overlap.reach.bytes);
        // The last token is computed anew even when everything is cached: its logits are wanted.
        let usable = input.request.prompt_tokens.saturating_sub(1);
        self.candidates.clear();
        self.details.clear();
        self.longest_match = 0;
        // Neighbours in the list mostly serve the same model: its cost is read once for all of them.
        let (mut kind, mut cost) = (0, fleet.prefill_cost(0));
        let moment = EstimateTime { now: input.now, report_age_max: input.report_age_max };
        for (number, member) in self.members.iter().enumerate() {
            let load = fleet.load_view(member.id);
            let is_passed_over = paused == PausedWorkers::Skip && load.is_paused(input.now);
            let has_room = load.takes_requests() && load.in_flight < input.in_flight_max;
            if !has_room || is_passed_over || input.avoid.contains(&member.id) {
                continue;
            }
            let presumed_bytes = self.overlap_bytes[member.id.index()];
            let presumed =
                whole_blocks(rate.tokens_in(presumed_bytes).min(usable), load.block_tokens.unwrap_or(1));
            let prediction = input.prediction(&load, || scratch.held(member.id));
            let expectation =
                Expectation { view: load.view, generation: load.generation, presumed_bytes, prediction };
            // Never added: what was sent to a worker with events is presumed only until its event must have come.
            let believed = prediction.map_or(presumed, |prediction| prediction.expected.max(presumed));
            let reported = prediction.map_or(0, |prediction| prediction.expected + prediction.restorable);
            let found = PromptOverlap {
                prompt_tokens: input.request.prompt_tokens,
                overlap_tokens: input.known_tokens.map_or(believed, |known| known[member.id.index()]),
                restorable_tokens: reported.saturating_sub(believed),
                shortfall_tokens: input.shortfall(prediction.is_none(), believed, usable),
            };
            let forecast = fleet.forecast(member.id, input.now);
            if forecast.kind != kind {
                (kind, cost) = (forecast.kind, fleet.prefill_cost(forecast.kind));
            }
            let WorkerEstimate { features, estimate } =
                WorkerEstimate::of(&load, &forecast, &cost, found, moment);
            self.longest_match = self.longest_match.max(found.overlap_tokens);
            self.details.push(CandidateDetails { member: number, expectation, features });
            self.candidates.push(Candidate {
                worker: member.id,
                identity: member.identity,
                overlap_tokens: found.overlap_tokens,
                restorable_tokens: found.restorable_tokens,
                estimate,
                in_flight: load.in_flight,
                prefill_tokens: load.prefill_tokens,
                decode_tokens: load.decode_tokens,
                waiting: load.waiting(input.now, input.report_age_max),
            });
        }
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = 0);
        self.discount_common_prefix(fleet, input.now);
        self.rank();
    }

    /// Sets apart what a worker would compute only because it is the one that lacks what the others have.
    fn discount_common_prefix(&mut self, fleet: &Fleet, now: Micros) {
        let common_tokens = common(self.candidates.iter().map(|candidate| candidate.overlap_tokens));
        for (candidate, CandidateDetails { features, .. }) in self.candidates.iter_mut().zip(&self.details) {
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
    fn rank(&mut self) {
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

impl PlacementInput<'_> {
    /// What a worker without events probably holds beyond what is presumed. Of a prompt that it does not hold, nothing.
    fn shortfall(&self, is_presumed: bool, presumed: u32, usable: u32) -> u32 {
        let applies = is_presumed && presumed > 0 && self.known_tokens.is_none();
        if applies { self.shortfall.min((usable - presumed.min(usable)) / 2) } else { 0 }
    }

    /// What a worker's events prediction of the prompt; `None` for one without them.
    fn prediction(
        &self,
        load: &WorkerLoadView,
        held: impl FnOnce() -> ReportedOverlap,
    ) -> Option<CachePrediction> {
        let first = self.texts.first().filter(|_| load.view != CacheView::Presumed)?;
        let held = held();
        // A worker holds something in its own family's writing only.
        let text = self.texts.get(usize::from(held.text)).unwrap_or(first);
        let block_tokens = load.block_tokens.unwrap_or(1);
        let prompt_bytes = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        let (view, trust) = (load.view, load.trust);
        let sampled_weight = match text.unit {
            Unit::Byte => self.sampled_weight,
            // Tokens that are the same are the same, sampled or not.
            Unit::Token => 1.0,
        };
        Some(held.predict(PredictionWeights { view, trust, sampled_weight, block_tokens, prompt_bytes }))
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        Member { id: worker.id, identity: worker.identity, worker }
    }
}
