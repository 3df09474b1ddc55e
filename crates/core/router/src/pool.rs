//! The workers that serve one model, and the critical section that chooses and books one.
//!
//! The index is walked before the section. A presumption made inside increments a version, and a walk of the
//! same prompt head that began earlier is repeated inside. A sibling therefore sees the assignment before it,
//! and other requests do not pay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use warmroute_fleet::{BookedWork, Booking, Fleet, Worker, WorkerView};
use warmroute_index::Reach;
use warmroute_policy::{Candidate, Choice, ExpectedTtft, Policy, PolicyRequest};
use warmroute_types::WorkerId;

use crate::candidate_input::{CandidateInput, DecisionContext, PausedWorkers};
use crate::candidate_record::CandidateRecord;
use crate::conversation_length::Turn;
use crate::decision::Decision;
use crate::decision_state::{DecisionState, Member};
use crate::presumed_shortfall::PresumedShortfall;
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::PromptChunks;
use crate::request::{Request, Usable};
use crate::sampled_reuse::SampledReuse;
use crate::scratch::Scratch;
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
        let mut state = DecisionState::with_members(workers.into_iter().map(Member::from).collect());
        let mut section = self.section.lock();
        let DecisionState { turn, demand, conversation_length, .. } = *section;
        (state.turn, state.demand, state.conversation_length) = (turn, demand, conversation_length);
        let former = std::mem::replace(&mut *section, state);
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
        scratch: &'a mut Scratch,
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
        let Pool { tokens, sampled_reuse, presumed_shortfall, .. } = self;
        let input = CandidateInput {
            tokens,
            sampled_reuse,
            presumed_shortfall,
            context,
            request,
            prompt_tokens,
            scratch,
        };
        state.score(&input, PausedWorkers::Skip);
        // A paused worker is better than none. A retried request does not fall back to paused workers,
        // because one of them has probably just refused it.
        if state.scores.is_empty() && request.avoid.is_empty() {
            state.score(&input, PausedWorkers::Include);
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
        let is_possible = !state.scores.is_empty();
        let turn = input.scratch.turn(request.prompt);
        is_possible.then_some(OpenDecision { pool: self, input, policy_request, turn, state })
    }
}

/// A decision inside the critical section: the candidates are known, the choice is not made yet.
pub(crate) struct OpenDecision<'a> {
    pool: &'a Pool,
    pub input: CandidateInput<'a>,
    /// The request as policies see it.
    pub policy_request: PolicyRequest,
    /// The request's place in its conversation, if it has a prompt.
    turn: Option<Turn>,
    state: MutexGuard<'a, DecisionState>,
}

impl OpenDecision<'_> {
    /// The policy's choice.
    pub(crate) fn choose(&mut self, policy: &impl Policy) -> Choice {
        if policy.is_expected_ttft() {
            let scores = &self.state.scores;
            let rule = ExpectedTtft::default();
            return rule.choose_scored(&self.policy_request, scores.len(), |index| scores[index]);
        }
        policy.choose(&self.policy_request, self.state.candidates(self.input.context))
    }

    /// The candidates as policies see them.
    pub(crate) fn candidates(&mut self) -> (&PolicyRequest, &[Candidate]) {
        (&self.policy_request, self.state.candidates(self.input.context))
    }

    /// The records of all candidates.
    pub(crate) fn records(&self) -> impl Iterator<Item = CandidateRecord> {
        (0..self.state.scores.len()).map(|index| self.state.record(index, self.input.context))
    }

    /// Books the request on the chosen worker and presumes the prompt there.
    pub(crate) fn book(mut self, policy: &'static str, choice: Choice) -> Decision {
        let CandidateInput { context, request, .. } = self.input;
        let Choice { index: chosen, reason } = choice;
        self.state.turn = self.state.turn.wrapping_add(1);
        let (worker, load, estimate, overlap_tokens) = self.state.chosen(chosen);
        let (worker, estimate, features) = (Arc::clone(worker), *estimate, self.input.features(load));
        let expectation = self.input.expectation(worker.id, &context.fleet.load_view(worker.id));
        self.state.demand.note(estimate.prefill_ms, context.now);
        self.turn.into_iter().for_each(|turn| self.state.conversation_length.learn(turn));
        let is_looked_up =
            request.prompt.is_some() || expectation.prediction.is_some() || request.known_tokens.is_some();
        let cached_tokens = is_looked_up.then_some(overlap_tokens);
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
            candidate_records: self.state.candidate_records(chosen, context),
            all_candidates: Vec::new(),
            made: context.now,
            expectation,
            booking: Booking::make(context.fleet, worker.id, work, context.now),
            moment: context.speculations.moment(),
            media_moment: context.media_moment,
            bookings: context.fleet.bookings(worker.id),
            presumed: self.presume(worker.id),
            worker,
            ticket: None,
            loading_adapter: context.adapter.filter(|_| estimate.adapter_ms > 0.0),
            assignment_guard: None,
        }
    }

    /// Followers per millisecond, the weight of decode steps, and the later requests of the conversation.
    #[cfg(test)]
    pub(crate) fn weights(&self) -> (f32, f32, f32) {
        let (state, DecisionContext { routers, now, .. }) = (&self.state, self.input.context);
        let followers_per_ms = state.demand.followers_per_ms(state.members.len(), *routers, *now);
        let length = &state.conversation_length;
        let step_weight = self.turn.map_or(1.0, |turn| length.step_weight(turn));
        (followers_per_ms, step_weight, self.turn.map_or(0.0, |turn| length.later_requests(turn)))
    }

    /// Presumes the prompt on the chosen worker. The index takes it in after the section.
    fn presume(&self, worker: WorkerId) -> Option<PresumptionGuard> {
        let CandidateInput { context, request, scratch, .. } = self.input;
        let prompt = request.prompt?;
        let presumed =
            PresumptionGuard::make(context.index, worker, prompt.root, &scratch.spans, context.now);
        // After the presumption: a reader of the new version must see it.
        self.pool.versions.of(prompt).fetch_add(1, Ordering::Release);
        presumed
    }
}
