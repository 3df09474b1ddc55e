//! The workers that serve one model, and the critical section that chooses and books one.
//!
//! The index is walked before the section. A presumption made inside increments a version, and a walk of the
//! same prompt head that began earlier is repeated inside. A sibling therefore sees the assignment before it,
//! and other requests do not pay.

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
    /// Incremented by every presumption of a prompt whose first chunk maps to it.
    versions: Versions,
    /// Tokens per byte of this model.
    pub(crate) tokens: TokenRate,
    /// Share of sampled tokens that later prompts find cached.
    pub(crate) sampled_reuse: SampledReuse,
    /// Tokens that engines find beyond the presumed overlap.
    pub(crate) presumed_shortfall: PresumedShortfall,
}

/// Versions of presumptions, by the first chunk of a prompt. Unrelated prompts hardly ever share one.
struct Versions([AtomicU64; 64]);

impl Default for Versions {
    fn default() -> Versions {
        Versions([const { AtomicU64::new(0) }; 64])
    }
}

impl Versions {
    /// A prompt shorter than a chunk presumes and finds nothing, so any version will do.
    fn of(&self, prompt: PromptChunks<'_>) -> &AtomicU64 {
        &self.0[prompt.digests.first().map_or(0, |digest| *digest as usize % 64)]
    }
}

/// The state inside the critical section. Memory is reserved when members change, not per decision.
#[derive(Default)]
struct DecisionState {
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    /// The rest of each candidate, at the same index. Apart, because policies take a slice of [`Candidate`].
    details: Vec<CandidateDetails>,
    /// The candidates with the lowest expected-TTFT cost.
    next_best: NextBest,
    /// The longest overlap of any candidate, in tokens.
    longest_match: u32,
    /// Presumed overlap of the current prompt in bytes, by worker index; zero between decisions.
    overlap_bytes: Vec<u32>,
    turn: u64,
}

/// A worker, with the fields that every decision reads copied beside the pointer. Following thousands of
/// pointers would dominate the cost of a decision.
struct Member {
    id: WorkerId,
    identity: u64,
    worker: Arc<Worker>,
}

/// The prediction for a worker's cache, and its basis.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expectation {
    pub view: CacheView,
    /// Generation of the cache.
    pub generation: u32,
    /// Presumed overlap in bytes.
    pub presumed_bytes: u32,
    /// Prediction from the engine's events; `None` without them.
    pub prediction: Option<CachePrediction>,
}

/// A candidate beyond what its policy sees.
struct CandidateDetails {
    /// Index into the members.
    member: usize,
    expectation: Expectation,
    features: PrefillFeatures,
}

/// The input of a decision besides the policy.
pub(crate) struct PlacementInput<'a> {
    pub request: PolicyRequest,
    pub prompt: Option<PromptChunks<'a>>,
    pub texts: &'a [PromptText<'a>],
    /// Share of sampled tokens that later prompts find.
    pub sampled_weight: f32,
    /// Tokens that engines find beyond the presumed overlap.
    pub shortfall: u32,
    pub avoid: &'a [WorkerId],
    /// Exact overlap by worker index, where the caller knows it (the lab does).
    pub known_tokens: Option<&'a [u32]>,
    /// Whether the answer streams.
    pub delivery: Delivery,
    pub now: Micros,
    pub report_age_max: Micros,
    pub in_flight_max: u32,
}

/// Whether a worker can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// No worker is ready, full or not.
    NoWorker,
    /// All ready workers are at their concurrency limit.
    Full,
    /// A worker can take the request.
    Free,
}

/// Whether paused workers are candidates.
#[derive(Clone, Copy, PartialEq)]
enum PausedWorkers {
    Skip,
    Include,
}

/// A booked decision.
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
    /// Replaces the members; the turn count continues. Once this returns, no decision can choose a former
    /// member.
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

    /// Whether a member outside `avoid` can take a request now.
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

    /// Tokens of a prompt: those that engines have counted plus an estimate of the rest.
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

    /// Chooses, books and presumes in one step. `None` if no member outside `avoid` is ready.
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
            // After the presumption: a reader of the new version must see it.
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

    /// The decision that [`Pool::place`] would make now, with all candidates. Has no effects.
    pub(crate) fn preview<P: Policy>(
        &self,
        fleet: &Fleet,
        index: &Index,
        policy: &P,
        mut input: PlacementInput<'_>,
        scratch: &mut Scratch,
    ) -> Option<Preview> {
        // Allocates outside the section: decisions wait while it is held.
        let mut candidates = Vec::with_capacity(self.section.lock().members.len());
        let section = self.enter(fleet, index, &mut input, scratch)?;
        let Choice { index: chosen, reason } = policy.choose(&input.request, &section.candidates);
        candidates.extend((0..section.candidates.len()).map(|index| section.record(index)));
        let prompt_tokens = input.request.prompt_tokens;
        Some(Preview { policy: policy.name(), reason, prompt_tokens, chosen, candidates })
    }

    /// Looks the prompt up, enters the section and fills the candidates; `None` if there are none.
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
        // A paused worker is better than none. A retried request does not fall back to paused workers,
        // because one of them has probably just refused it.
        if section.candidates.is_empty() && input.avoid.is_empty() {
            section.fill_candidates(fleet, input, &self.tokens, scratch, PausedWorkers::Include);
        }
        input.request.turn = section.turn;
        (!section.candidates.is_empty()).then_some(section)
    }
}

impl DecisionState {
    /// The record of a candidate.
    fn record(&self, index: usize) -> CandidateRecord {
        CandidateRecord {
            worker: Arc::clone(&self.members[self.details[index].member].worker),
            view: self.details[index].expectation.view,
            numbers: self.candidates[index],
        }
    }

    /// The records of the chosen and the next best candidates.
    fn candidate_records(&self, chosen: usize) -> [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX] {
        let mut indices = self.next_best.after(chosen);
        std::array::from_fn(|_| indices.next().map(|index| self.record(index)))
    }

    /// Fills the candidates from the ready members.
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
        // Engines always compute the last token for its logits.
        let usable = input.request.prompt_tokens.saturating_sub(1);
        self.candidates.clear();
        self.details.clear();
        self.longest_match = 0;
        // Neighbouring members mostly serve the same model, so its cost is read once.
        let (mut kind, mut cost) = (0, fleet.prefill_cost(0));
        let moment = EstimateTime { now: input.now, report_age_max: input.report_age_max };
        for (number, member) in self.members.iter().enumerate() {
            let load = fleet.load_view(member.id);
            let is_skipped = paused == PausedWorkers::Skip && load.is_paused(input.now);
            let has_room = load.takes_requests() && load.in_flight < input.in_flight_max;
            if !has_room || is_skipped || input.avoid.contains(&member.id) {
                continue;
            }
            let presumed_bytes = self.overlap_bytes[member.id.index()];
            let presumed =
                whole_blocks(rate.tokens_in(presumed_bytes).min(usable), load.block_tokens.unwrap_or(1));
            let prediction = input.prediction(&load, || scratch.held(member.id));
            let expectation =
                Expectation { view: load.view, generation: load.generation, presumed_bytes, prediction };
            // The maximum, not the sum: a presumption for a worker with events stands only until its event
            // must have arrived.
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

    /// Sets `lacking_ms`: the time for a prefix that the other candidates hold and this one lacks.
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

    /// Sets `anywhere_ms` and notes the candidates with the lowest expected-TTFT cost.
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

/// Mean overlap of the candidates without the longest: near zero for a conversation on one worker, near the
/// full length for a prefix that all workers hold.
fn common(overlaps: impl Iterator<Item = u32>) -> u32 {
    let (sum, most, count) = overlaps.fold((0_u64, 0, 0_u64), |(sum, most, count), tokens| {
        (sum + u64::from(tokens), tokens.max(most), count + 1)
    });
    (sum - u64::from(most)).checked_div(count.saturating_sub(1)).unwrap_or(0) as u32
}

impl PlacementInput<'_> {
    /// Tokens that a worker without events probably holds beyond the presumed overlap; 0 without an overlap.
    fn shortfall(&self, is_presumed: bool, presumed: u32, usable: u32) -> u32 {
        let applies = is_presumed && presumed > 0 && self.known_tokens.is_none();
        if applies { self.shortfall.min((usable - presumed.min(usable)) / 2) } else { 0 }
    }

    /// Prediction from the worker's events; `None` without events.
    fn prediction(
        &self,
        load: &WorkerLoadView,
        held: impl FnOnce() -> ReportedOverlap,
    ) -> Option<CachePrediction> {
        let first = self.texts.first().filter(|_| load.view != CacheView::Presumed)?;
        let held = held();
        // A worker matches only the text of its own family.
        let text = self.texts.get(usize::from(held.text)).unwrap_or(first);
        let block_tokens = load.block_tokens.unwrap_or(1);
        let prompt_bytes = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        let (view, trust) = (load.view, load.trust);
        let sampled_weight = match text.unit {
            Unit::Byte => self.sampled_weight,
            // Token ids match exactly, sampled or not.
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
