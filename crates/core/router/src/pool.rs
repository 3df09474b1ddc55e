//! The workers that serve one model, and the critical section that chooses and books one.
//!
//! The index is walked before the section. A presumption made inside increments a version, and a walk of the
//! same prompt head that began earlier is repeated inside. A sibling therefore sees the assignment before it,
//! and other requests do not pay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use warmroute_fleet::{BookedWork, Booking, Fleet, PrefillFeatures, Worker, WorkerLoadView, WorkerView};
use warmroute_index::{Index, Reach, Span};
use warmroute_policy::{Candidate, Choice, ExpectedTtft, PolicyRequest};
use warmroute_types::{CacheView, Micros, WorkerId, WorkerState};

use crate::candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, NextBest};
use crate::conversation_length::{ConversationLength, Turn};
use crate::decision::{Decision, Expectation};
use crate::demand::Demand;
use crate::estimate::{EstimateTime, PromptOverlap, WorkerEstimate};
use crate::group_table::GroupTable;
use crate::presumed_shortfall::PresumedShortfall;
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::{PromptChunks, PromptText};
use crate::reported_overlap::{CachePrediction, PredictionWeights, ReportedOverlap, whole_blocks};
use crate::reported_view::ReportedView;
use crate::request::{Request, Usable};
use crate::sampled_reuse::SampledReuse;
use crate::scratch::Scratch;
use crate::speculation::Speculations;
use crate::token_rate::TokenRate;
use crate::unit::Unit;
use crate::worker_group::{WorkerGroup, allows};

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
    /// In the order of their ids.
    members: Vec<Member>,
    /// The members that can take the request, in the members' order, as the policy sees them.
    candidates: Vec<Candidate>,
    /// The candidates with the lowest expected-TTFT cost.
    next_best: NextBest,
    /// The longest overlap of any candidate, in tokens.
    longest_match: u32,
    turn: u64,
    demand: Demand,
    conversation_length: ConversationLength,
}

/// A worker, with the fields that every decision reads copied beside the pointer. Following thousands of
/// pointers would dominate the cost of a decision.
struct Member {
    id: WorkerId,
    identity: u64,
    worker: Arc<Worker>,
    /// What the policy does not see of a candidate. Valid if the member is a candidate of the current decision.
    expectation: Expectation,
    features: PrefillFeatures,
}

/// The router's state that a decision reads, beside the request.
pub(crate) struct DecisionContext<'a> {
    pub fleet: &'a Arc<Fleet>,
    pub index: &'a Arc<Index>,
    pub speculations: &'a Speculations,
    /// The caches of workers with several groups.
    pub groups: &'a GroupTable,
    /// Number of peers with a lower id.
    pub router_rank: u32,
    /// Number of routers that share the fleet, this one included.
    pub routers: u32,
    /// Load that peers may have assigned without this router knowing.
    pub unpropagated_load: Micros,
    pub report_age_max: Micros,
    /// A view of reported caches that predictions ignore.
    pub without_view: Option<ReportedView>,
    pub in_flight_max: u32,
    /// Media that have appeared in events.
    pub media_moment: u64,
    /// Hash of the request's LoRA adapter, if it is one.
    pub adapter: Option<u64>,
    pub now: Micros,
    pub random: u64,
}

/// The input of one decision's candidates.
struct CandidateInput<'a> {
    pool: &'a Pool,
    context: &'a DecisionContext<'a>,
    request: &'a Request<'a>,
    prompt_tokens: u32,
    /// Overlaps of the prompt.
    scratch: &'a Scratch,
}

/// Whether a worker can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vacancy {
    /// No worker is ready, full or not, but one may become ready.
    NoWorker,
    /// No worker serves this model, and all have listed their models.
    UnknownModel,
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

impl Pool {
    /// A pool without members.
    pub(crate) fn new(tokens: TokenRate) -> Pool {
        Pool { tokens, ..Pool::default() }
    }

    /// Replaces the members; the turn count continues. Once this returns, no decision can choose a former
    /// member. Memory is allocated and freed outside the section.
    pub(crate) fn set_members(&self, mut workers: Vec<Arc<Worker>>) {
        workers.sort_unstable_by_key(|worker| worker.id);
        let is_same = |member: &Member, worker: &Arc<Worker>| Arc::ptr_eq(&member.worker, worker);
        let has_these = |members: &[Member]| {
            members.len() == workers.len()
                && members.iter().zip(&workers).all(|(one, other)| is_same(one, other))
        };
        if has_these(&self.section.lock().members) {
            return;
        }
        let candidates = Vec::with_capacity(workers.len());
        let members: Vec<Member> = workers.into_iter().map(Member::from).collect();
        let mut section = self.section.lock();
        let former = (
            std::mem::replace(&mut section.members, members),
            std::mem::replace(&mut section.candidates, candidates),
        );
        drop(section);
        drop(former);
    }

    /// Whether any of these workers is a member.
    pub(crate) fn has_any(&self, workers: &[WorkerView]) -> bool {
        let section = self.section.lock();
        let is_listed = |member: &Member| workers.iter().any(|view| view.worker == member.worker);
        section.members.iter().any(is_listed)
    }

    /// Whether a member belongs to this group, or there is one at all.
    pub(crate) fn has_any_of(&self, group: Option<&WorkerGroup>) -> bool {
        self.section.lock().members.iter().any(|member| allows(group, member.id))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.section.lock().members.is_empty()
    }

    /// Whether a member that the request may use can take it now.
    pub(crate) fn vacancy(&self, fleet: &Fleet, usable: Usable<'_>, in_flight_max: u32) -> Vacancy {
        let section = self.section.lock();
        let others = section.members.iter().filter(|member| usable.includes(member.id));
        let mut ready = others.filter_map(|member| fleet.in_flight_if_ready(member.id)).peekable();
        if ready.peek().is_none() {
            return Vacancy::NoWorker;
        }
        if ready.any(|in_flight| in_flight < in_flight_max) { Vacancy::Free } else { Vacancy::Full }
    }

    /// Tokens of the prompt: those that engines have counted, plus an estimate of the rest.
    fn prompt_tokens(&self, request: &Request<'_>, known: Reach) -> u32 {
        let estimated = request.prompt.map(|prompt| self.tokens.tokens_in(prompt.bytes));
        let Some(text) = request.texts.first() else { return estimated.unwrap_or(request.prompt_tokens) };
        let len = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        match text.unit {
            Unit::Token => len / 4,
            Unit::Byte => {
                let bytes = request.prompt.map_or(len, |prompt| prompt.bytes);
                known.tokens.saturating_add(self.tokens.tokens_in(bytes.saturating_sub(known.bytes)))
            }
        }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.section.lock().members.len()
    }

    /// Looks the prompt up, enters the section and fills the candidates; `None` if no member outside `avoid` is ready.
    pub(crate) fn enter<'a>(
        &'a self,
        context: &'a DecisionContext<'a>,
        request: &'a Request<'a>,
        scratch: &mut Scratch,
    ) -> Option<OpenDecision<'a>> {
        let version = |prompt| self.versions.of(prompt).load(Ordering::Acquire);
        let walked = request.prompt.map(version);
        request.prompt.into_iter().for_each(|prompt| scratch.walk(context.index, prompt));
        scratch.walk_texts(context.index, context.groups, request.texts);
        let prompt_tokens = self.prompt_tokens(request, scratch.furthest());
        let mut state = self.section.lock();
        if let Some(prompt) = request.prompt.filter(|&prompt| walked != Some(version(prompt))) {
            scratch.walk(context.index, prompt);
        }
        scratch.sort_presumed(request.prompt);
        let input = CandidateInput { pool: self, context, request, prompt_tokens, scratch };
        state.fill_candidates(&input, PausedWorkers::Skip);
        // A paused worker is better than none. A retried request does not fall back to paused workers,
        // because one of them has probably just refused it.
        if state.candidates.is_empty() && request.avoid.is_empty() {
            state.fill_candidates(&input, PausedWorkers::Include);
        }
        let policy_request = PolicyRequest {
            prompt_tokens,
            session_key: request.session_key,
            prefix_key: request.prefix_key,
            random: context.random,
            turn: state.turn,
            router_rank: context.router_rank,
            unpropagated_load: context.unpropagated_load,
        };
        let is_possible = !state.candidates.is_empty();
        let turn = scratch.turn(request.prompt);
        is_possible.then_some(OpenDecision { pool: self, context, request, policy_request, turn, state })
    }
}

/// A decision inside the critical section: the candidates are known, the choice is not made yet.
pub(crate) struct OpenDecision<'a> {
    pool: &'a Pool,
    context: &'a DecisionContext<'a>,
    request: &'a Request<'a>,
    /// The request as policies see it.
    pub policy_request: PolicyRequest,
    /// The request's place in its conversation, if it has a prompt.
    turn: Option<Turn>,
    state: MutexGuard<'a, DecisionState>,
}

impl OpenDecision<'_> {
    /// The candidates as policies see them.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        &self.state.candidates
    }

    /// The records of all candidates.
    pub(crate) fn records(&self) -> impl Iterator<Item = CandidateRecord> {
        (0..self.state.candidates.len()).map(|index| self.state.record(index))
    }

    /// Books the request on the chosen worker and presumes the prompt there, whose chunks are `spans`.
    pub(crate) fn book(mut self, policy: &'static str, choice: Choice, spans: &Arc<Vec<Span>>) -> Decision {
        let OpenDecision { context, request, .. } = self;
        let Choice { index: chosen, reason } = choice;
        self.state.turn = self.state.turn.wrapping_add(1);
        let prefill_ms = self.state.candidates[chosen].estimate.prefill_ms;
        self.state.demand.note(prefill_ms, context.now);
        self.turn.into_iter().for_each(|turn| self.state.conversation_length.learn(turn));
        let Member { worker, expectation, features, .. } = self.state.member(chosen);
        let (worker, expectation, features) = (Arc::clone(worker), *expectation, *features);
        let is_looked_up =
            request.prompt.is_some() || expectation.prediction.is_some() || request.known_tokens.is_some();
        let cached_tokens = is_looked_up.then_some(self.state.candidates[chosen].overlap_tokens);
        let adapter_ms = self.state.candidates[chosen].estimate.adapter_ms;
        if let Some(adapter) = context.adapter {
            context.fleet.use_adapter(worker.id, adapter, context.now);
        }
        let prompt_tokens = self.policy_request.prompt_tokens;
        let work = BookedWork {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens.unwrap_or(0)),
            context_tokens: prompt_tokens,
            features,
            delivery: request.delivery,
        };
        Decision {
            policy,
            reason,
            cached_tokens,
            longest_match: is_looked_up.then_some(self.state.longest_match),
            prompt_tokens,
            view: expectation.view,
            candidate_records: self.state.candidate_records(chosen),
            all_candidates: Vec::new(),
            made: context.now,
            expectation,
            booking: Booking::make(context.fleet, worker.id, work, context.now),
            moment: context.speculations.moment(),
            media_moment: context.media_moment,
            bookings: context.fleet.bookings(worker.id),
            presumed: self.presume(worker.id, spans),
            worker,
            ticket: None,
            loading_adapter: context.adapter.filter(|_| adapter_ms > 0.0),
            assignment_guard: None,
        }
    }

    /// Presumes the prompt on the chosen worker. The index takes it in after the section.
    fn presume(&self, worker: WorkerId, spans: &Arc<Vec<Span>>) -> Option<PresumptionGuard> {
        let (context, prompt) = (self.context, self.request.prompt?);
        let presumed = PresumptionGuard::make(context.index, worker, prompt.root, spans, context.now);
        // After the presumption: a reader of the new version must see it.
        self.pool.versions.of(prompt).fetch_add(1, Ordering::Release);
        presumed
    }
}

impl DecisionState {
    /// The member behind a candidate.
    fn member(&self, candidate: usize) -> &Member {
        let id = self.candidates[candidate].worker;
        let place = self.members.binary_search_by_key(&id, |member| member.id);
        &self.members[place.expect("every candidate is a member, and members are in the order of their ids")]
    }

    /// The record of a candidate.
    fn record(&self, index: usize) -> CandidateRecord {
        let Member { worker, expectation, .. } = self.member(index);
        CandidateRecord {
            worker: Arc::clone(worker),
            view: expectation.view,
            numbers: self.candidates[index],
        }
    }

    /// The records of the chosen and the next best candidates.
    fn candidate_records(&self, chosen: usize) -> [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX] {
        let mut indices = self.next_best.after(chosen);
        std::array::from_fn(|_| indices.next().map(|index| self.record(index)))
    }

    /// Fills the candidates from the ready members.
    fn fill_candidates(&mut self, input: &CandidateInput<'_>, paused: PausedWorkers) {
        let CandidateInput { context: DecisionContext { fleet, now, .. }, request, scratch, .. } = *input;
        self.candidates.clear();
        self.longest_match = 0;
        // Neighbouring members mostly serve the same model, so its cost is read once.
        let (mut kind, mut cost) = (0, fleet.prefill_cost(0));
        let at = EstimateTime { now: *now, report_age_max: input.context.report_age_max };
        let turn = scratch.turn(request.prompt);
        let step_weight = turn.map(|turn| self.conversation_length.step_weight(turn));
        for member in &mut self.members {
            let load = fleet.load_view(member.id);
            let is_skipped = paused == PausedWorkers::Skip && load.is_paused(*now);
            let is_stored_here = request.stored_at == Some(member.id) && load.state == WorkerState::Draining;
            let takes_it = load.takes_requests() || is_stored_here;
            let has_room = takes_it && load.in_flight < input.context.in_flight_max;
            if !has_room || is_skipped || !request.usable().includes(member.id) {
                continue;
            }
            member.expectation = input.expectation(member.id, &load, scratch.overlap_bytes(member.id));
            let found = input.overlap(member.id, &load, &member.expectation);
            let forecast = fleet.forecast(member.id, *now);
            if forecast.kind != kind {
                (kind, cost) = (forecast.kind, fleet.prefill_cost(forecast.kind));
            }
            let WorkerEstimate { features, mut estimate } =
                WorkerEstimate::of(&load, &forecast, &cost, found, at);
            estimate.step_ms *= step_weight.unwrap_or(1.0);
            if let Some(adapter) = input.context.adapter {
                estimate.adapter_ms = fleet.adapter_load_ms(member.id, adapter, *now);
            }
            member.features = features;
            self.longest_match = self.longest_match.max(found.overlap_tokens);
            self.candidates.push(Candidate {
                worker: member.id,
                identity: member.identity,
                overlap_tokens: found.overlap_tokens,
                restorable_tokens: found.restorable_tokens,
                estimate,
                in_flight: load.in_flight,
                prefill_tokens: load.prefill_tokens,
                decode_tokens: load.decode_tokens,
                waiting: load.waiting(*now, input.context.report_age_max),
            });
        }
        self.discount_common_prefix(fleet, *now);
        self.rank(turn, input.context);
    }

    /// Sets `lacking_ms`: the time for a prefix that the other candidates hold and this one lacks.
    fn discount_common_prefix(&mut self, fleet: &Fleet, now: Micros) {
        let common_tokens = common(self.candidates.iter().map(|candidate| candidate.overlap_tokens));
        if common_tokens == 0 {
            return;
        }
        let mut members = self.members.iter();
        for candidate in &mut self.candidates {
            // Candidates are in the members' order, so the search goes on where the last one ended.
            let Some(Member { features, .. }) = members.find(|member| member.id == candidate.worker) else {
                return;
            };
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

    /// Sets `anywhere_ms`, `followers` and `eviction_ms`, and notes the candidates with the lowest expected-TTFT cost.
    fn rank(&mut self, turn: Option<Turn>, context: &DecisionContext<'_>) {
        let DecisionContext { fleet, now, routers, .. } = *context;
        let works_ms = self.candidates.iter().map(|candidate| candidate.estimate.work_ms());
        let anywhere_ms = works_ms.fold(f32::INFINITY, |least, ms| if ms < least { ms } else { least });
        let followers_per_ms = self.demand.followers_per_ms(self.members.len(), routers, now);
        let later_requests = turn.map_or(0.0, |turn| self.conversation_length.later_requests(turn));
        self.next_best = NextBest::default();
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            candidate.estimate.anywhere_ms = anywhere_ms;
            candidate.estimate.followers = followers_per_ms * (candidate.estimate.work_ms() + anywhere_ms);
            if later_requests > 0.0 {
                let evicted_ms = eviction_ms(fleet.cache_churn(candidate.worker, now), anywhere_ms);
                candidate.estimate.eviction_ms = later_requests * evicted_ms;
            }
            self.next_best.offer(index, ExpectedTtft::default().cost_ms(candidate));
        }
    }
}

/// Most churn that counts. Caches with more are all full of what is wanted again, so more says nothing about what a request evicts.
/// With 0.3 agents on too few workers wait 13 % longer, without a bound 46 %; with 0.1 those below capacity wait 1 % longer
/// (docs/study/expected_ttft).
const CHURN_MAX: f32 = 0.2;

/// Time to compute again what a request evicts that computes so much itself. Each computed token takes the place of another; the
/// more of the cache was computed lately, the more likely the other is wanted again.
fn eviction_ms(cache_churn: Option<f32>, computed_ms: f32) -> f32 {
    let churn = cache_churn.unwrap_or(0.0).min(CHURN_MAX);
    computed_ms * churn / (1.0 + churn)
}

/// Mean overlap of the candidates without the longest: near zero for a conversation on one worker, near the
/// full length for a prefix that all workers hold.
fn common(overlaps: impl Iterator<Item = u32>) -> u32 {
    let (sum, most, count) = overlaps.fold((0_u64, 0, 0_u64), |(sum, most, count), tokens| {
        (sum + u64::from(tokens), tokens.max(most), count + 1)
    });
    (sum - u64::from(most)).checked_div(count.saturating_sub(1)).unwrap_or(0) as u32
}

impl CandidateInput<'_> {
    /// The prediction for a worker's cache.
    #[inline]
    fn expectation(&self, worker: WorkerId, load: &WorkerLoadView, presumed_bytes: u32) -> Expectation {
        let prediction = self.prediction(load, || self.scratch.held(worker));
        let WorkerLoadView { view, generation, evicted_blocks, .. } = *load;
        Expectation { view, generation, evicted_blocks, presumed_bytes, prediction }
    }

    /// The expected overlap with a worker's cache.
    #[inline]
    fn overlap(&self, worker: WorkerId, load: &WorkerLoadView, expectation: &Expectation) -> PromptOverlap {
        let Expectation { presumed_bytes, prediction, .. } = *expectation;
        // Engines always compute the last token for its logits.
        let usable = self.prompt_tokens.saturating_sub(1);
        let presumed = match presumed_bytes {
            0 => 0,
            bytes => {
                whole_blocks(self.pool.tokens.tokens_in(bytes).min(usable), load.block_tokens.unwrap_or(1))
            }
        };
        // The maximum, not the sum: a presumption beside a prediction stands only until its event must have
        // arrived. Without a prediction, as for prompts that are not rendered, presumptions last.
        let believed = prediction.map_or(presumed, |prediction| {
            let block_tokens = load.block_tokens.unwrap_or(1);
            prediction.expected.max(self.scratch.held(worker).awaited(presumed, block_tokens))
        });
        let reported = prediction.map_or(0, |prediction| prediction.expected + prediction.restorable);
        PromptOverlap {
            prompt_tokens: self.prompt_tokens,
            overlap_tokens: self.request.known_tokens.map_or(believed, |known| known[worker.index()]),
            restorable_tokens: reported.saturating_sub(believed),
            shortfall_tokens: self.shortfall(prediction.is_none(), believed, usable),
        }
    }

    /// Tokens that a worker without events probably holds beyond the presumed overlap; 0 without an overlap.
    #[inline]
    fn shortfall(&self, is_presumed: bool, presumed: u32, usable: u32) -> u32 {
        let applies = is_presumed && presumed > 0 && self.request.known_tokens.is_none();
        let shortfall = || self.pool.presumed_shortfall.tokens();
        if applies { shortfall().min((usable - presumed.min(usable)) / 2) } else { 0 }
    }

    /// Prediction from the worker's events; `None` without events, or for a prompt that is not rendered.
    #[inline]
    fn prediction(
        &self,
        load: &WorkerLoadView,
        held: impl FnOnce() -> ReportedOverlap,
    ) -> Option<CachePrediction> {
        let texts = self.request.texts;
        let first = texts.first().filter(|_| load.view != CacheView::Presumed)?;
        let held = held().without(self.context.without_view);
        // A worker matches only the text of its own family.
        let text: &PromptText<'_> = texts.get(usize::from(held.text)).unwrap_or(first);
        let block_tokens = load.block_tokens.unwrap_or(1);
        let prompt_bytes = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        let (view, trust) = (load.view, load.trust);
        let sampled_weight = match text.unit {
            Unit::Byte => self.pool.sampled_reuse.weight(),
            // Token ids match exactly, sampled or not.
            Unit::Token => 1.0,
        };
        let recomputes_last_block = load.recomputes_last_block;
        Some(held.predict(PredictionWeights {
            view,
            trust,
            sampled_weight,
            block_tokens,
            prompt_bytes,
            recomputes_last_block,
        }))
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        let (expectation, features) = (Expectation::default(), PrefillFeatures::default());
        Member { id: worker.id, identity: worker.identity, worker, expectation, features }
    }
}
