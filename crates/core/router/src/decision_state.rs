//! The state inside a pool's critical section, and the estimates of one decision.
//!
//! ```text
//! summaries ── score ──> scored ── discount, rank ──> scores ──> the choice of expected TTFT
//!                           └── on demand ──> candidates ──> the choices of other policies, records
//! ```
//!
//! With thousands of workers the bytes that a decision touches for each one decide what it costs: one cache line of
//! load, one of estimate, and sixteen bytes to choose by. Whatever else a decision needs is read for the few workers that it
//! is needed of.

use std::sync::Arc;

use warmroute_fleet::{Fleet, LoadSummary, PrefillFeatures, Worker};
use warmroute_policy::{Candidate, Estimate, ExpectedTtft, Score};
use warmroute_types::{Micros, WorkerId};

use crate::candidate_input::{CandidateInput, DecisionContext, PausedWorkers};
use crate::candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, NextBest};
use crate::conversation_length::{ConversationLength, Turn};
use crate::demand::Demand;
use crate::estimate::{ColdEstimates, EstimateTime, PromptOverlap, estimate, place_wait_ms};

/// The state inside the critical section. Memory is reserved when members change, not per decision.
#[derive(Default)]
pub(crate) struct DecisionState {
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// Copies of the members' loads, in the members' order.
    summaries: Vec<LoadSummary>,
    /// The members that can take the request, in the members' order. A candidate's index is its place here.
    scored: Vec<ScoredMember>,
    /// What expected TTFT reads of them.
    pub scores: Vec<Score>,
    /// The same as other policies see them; empty until one asks.
    candidates: Vec<Candidate>,
    /// The candidates with the lowest expected-TTFT cost.
    next_best: NextBest,
    /// The longest overlap of any candidate, in tokens.
    pub longest_match: u32,
    pub turn: u64,
    pub demand: Demand,
    pub conversation_length: ConversationLength,
}

/// A worker that serves the pool's model.
pub(crate) struct Member {
    pub id: WorkerId,
    identity: u64,
    pub worker: Arc<Worker>,
}

/// A member that can take the request, with its estimate.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct ScoredMember {
    /// Place among the members.
    place: u32,
    overlap_tokens: u32,
    restorable_tokens: u32,
    shortfall_tokens: u32,
    estimate: Estimate,
}

const _: () = assert!(size_of::<ScoredMember>() == 64, "an estimate is one cache line");

impl ScoredMember {
    /// The member as policies see it.
    // Inlined, the candidates of a decision are written in place.
    #[inline]
    fn candidate(&self, members: &[Member], context: &DecisionContext<'_>) -> Candidate {
        let Member { id, identity, .. } = members[self.place as usize];
        let load = context.fleet.load_view(id);
        Candidate {
            worker: id,
            identity,
            overlap_tokens: self.overlap_tokens,
            restorable_tokens: self.restorable_tokens,
            shortfall_tokens: self.shortfall_tokens,
            estimate: self.estimate,
            in_flight: load.in_flight,
            prefill_tokens: load.prefill_tokens,
            decode_tokens: load.decode_tokens,
            waiting: load.waiting(context.now, context.report_age_max),
        }
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        Member { id: worker.id, identity: worker.identity, worker }
    }
}

impl DecisionState {
    /// The state of a pool with these members, which are in the order of their ids.
    pub(crate) fn with_members(members: Vec<Member>) -> DecisionState {
        DecisionState {
            summaries: members.iter().map(|member| LoadSummary::unread(member.id)).collect(),
            scored: Vec::with_capacity(members.len()),
            scores: Vec::with_capacity(members.len()),
            candidates: Vec::with_capacity(members.len()),
            members,
            ..DecisionState::default()
        }
    }

    /// The worker behind a candidate, its load, its estimate and its overlap.
    pub(crate) fn chosen(&self, index: usize) -> (&Arc<Worker>, &LoadSummary, &Estimate, u32) {
        let ScoredMember { place, overlap_tokens, ref estimate, .. } = self.scored[index];
        let place = place as usize;
        (&self.members[place].worker, &self.summaries[place], estimate, overlap_tokens)
    }

    /// All candidates as policies see them.
    pub(crate) fn candidates(&mut self, context: &DecisionContext<'_>) -> &[Candidate] {
        let DecisionState { candidates, scored, members, .. } = self;
        if candidates.is_empty() {
            candidates.extend(scored.iter().map(|scored| scored.candidate(members, context)));
        }
        candidates
    }

    /// What the policy saw of the candidate at `index`, to be kept with the decision.
    pub(crate) fn record(&self, index: usize, context: &DecisionContext<'_>) -> CandidateRecord {
        let scored = &self.scored[index];
        let numbers = scored.candidate(&self.members, context);
        let worker = Arc::clone(&self.members[scored.place as usize].worker);
        CandidateRecord { view: context.fleet.load_view(worker.id).view, worker, numbers }
    }

    /// The records of the chosen and the next best candidates.
    pub(crate) fn candidate_records(
        &self,
        chosen: usize,
        context: &DecisionContext<'_>,
    ) -> [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX] {
        let mut indices = self.next_best.after(chosen);
        std::array::from_fn(|_| indices.next().map(|index| self.record(index, context)))
    }

    /// Estimates the request on every member that can take it.
    pub(crate) fn score(&mut self, input: &CandidateInput<'_>, paused: PausedWorkers) {
        let CandidateInput { context: DecisionContext { fleet, now, adapter, .. }, .. } = *input;
        let DecisionState { summaries, scored, .. } = self;
        scored.clear();
        let turn = input.scratch.turn(input.request.prompt);
        let step_weight = turn.map_or(1.0, |turn| self.conversation_length.step_weight(turn));
        let at = EstimateTime { now: *now, report_age_max: input.context.report_age_max };
        // Members mostly serve the same model.
        let (kind, prompt_tokens) = (summaries.first().map_or(0, |load| load.kind), input.prompt_tokens);
        let cost = fleet.prefill_cost(kind);
        let cold = ColdEstimates::new(kind, cost, prompt_tokens, step_weight, *now);
        let (mut overlap_sum, mut longest, mut anywhere_ms) = (0_u64, 0, f32::INFINITY);
        for (place, load) in (0..).zip(summaries) {
            fleet.refresh(load);
            if !input.is_usable(load, paused) {
                continue;
            }
            if cold.apply_to(load) && input.finds_nothing(load.worker) {
                let estimate = cold.of(load);
                anywhere_ms = lesser(anywhere_ms, estimate.own_ms());
                let (overlap_tokens, restorable_tokens, shortfall_tokens) = (0, 0, 0);
                scored.push(ScoredMember {
                    place,
                    overlap_tokens,
                    restorable_tokens,
                    shortfall_tokens,
                    estimate,
                });
                continue;
            }
            let (found, forecast) = (input.found(load.worker), fleet.forecast(load.worker, *now));
            let PromptOverlap { overlap_tokens, restorable_tokens, shortfall_tokens, .. } = found;
            let other = (forecast.kind != kind).then(|| fleet.prefill_cost(forecast.kind));
            let cost = other.as_ref().unwrap_or(&cost);
            let wait_ms = place_wait_ms(fleet, load, at);
            let mut estimate = estimate(load, &forecast, cost, found, at, wait_ms);
            estimate.step_ms *= step_weight;
            overlap_sum += u64::from(overlap_tokens);
            longest = overlap_tokens.max(longest);
            anywhere_ms = lesser(anywhere_ms, estimate.own_ms());
            scored.push(ScoredMember {
                place,
                overlap_tokens,
                restorable_tokens,
                shortfall_tokens,
                estimate,
            });
        }
        if let Some(adapter) = *adapter {
            for ScoredMember { place, estimate, .. } in scored {
                let worker = self.members[*place as usize].id;
                estimate.adapter_ms = fleet.adapter_load_ms(worker, adapter, *now);
            }
        }
        self.candidates.clear();
        self.longest_match = longest;
        let common_tokens = common_tokens(overlap_sum, longest, self.scored.len());
        if common_tokens > 0 {
            self.discount_common_prefix(input, common_tokens);
            let own_ms = self.scored.iter().map(|scored| scored.estimate.own_ms());
            anywhere_ms = own_ms.fold(f32::INFINITY, lesser);
        }
        self.rank(turn, anywhere_ms, input.context);
    }

    /// Sets `lacking_ms`: the time for a prefix that the other candidates hold and this one lacks.
    fn discount_common_prefix(&mut self, input: &CandidateInput<'_>, common_tokens: u32) {
        for scored in &mut self.scored {
            let found_tokens = scored.overlap_tokens + scored.restorable_tokens;
            if found_tokens >= common_tokens {
                continue;
            }
            let load = &self.summaries[scored.place as usize];
            let features = input.features(load);
            let lacking_tokens = (common_tokens - found_tokens).min(features.miss_tokens);
            if lacking_tokens > 0 {
                let like_others = PrefillFeatures {
                    miss_tokens: features.miss_tokens - lacking_tokens,
                    cached_tokens: features.cached_tokens + lacking_tokens,
                    ..features
                };
                let like_others_ms =
                    input.context.fleet.prefill_ms(load.worker, &like_others, input.context.now);
                scored.estimate.lacking_ms = (scored.estimate.prefill_ms - like_others_ms).max(0.0);
            }
        }
    }

    /// Sets `anywhere_ms`, `followers` and `eviction_ms`, and notes the candidates with the lowest expected-TTFT cost.
    fn rank(&mut self, turn: Option<Turn>, anywhere_ms: f32, context: &DecisionContext<'_>) {
        let DecisionContext { fleet, now, routers, .. } = *context;
        let followers_per_ms = self.demand.followers_per_ms(self.members.len(), routers, now);
        let later_requests = turn.map_or(0.0, |turn| self.conversation_length.later_requests(turn));
        let (mut next_best, members) = (NextBest::default(), &self.members);
        self.scores.clear();
        self.scores.extend(self.scored.iter_mut().enumerate().map(|(index, scored)| {
            let ScoredMember { place, overlap_tokens, shortfall_tokens, estimate, .. } = scored;
            estimate.anywhere_ms = anywhere_ms;
            // On this worker, and on one that has as much cached as any.
            estimate.followers = followers_per_ms * (2.0 * estimate.work_ms() - estimate.excess_ms());
            if later_requests > 0.0 {
                let evicted_ms = eviction_ms(fleet, members[*place as usize].id, anywhere_ms, now);
                estimate.eviction_ms = later_requests * evicted_ms;
            }
            let cost_ms = ExpectedTtft::default().cost_ms(estimate);
            next_best.offer(index, cost_ms);
            let held_tokens = overlap_tokens.saturating_add(*shortfall_tokens);
            Score { cost_ms, held_tokens, idle: estimate.idle }
        }));
        self.next_best = next_best;
    }
}

/// The lesser of two times; the first if the second is not a number.
#[inline]
fn lesser(least_ms: f32, ms: f32) -> f32 {
    if ms < least_ms { ms } else { least_ms }
}

/// Most churn that counts. Caches with more are all full of what is wanted again, so more says nothing about what a request evicts.
/// With 0.3 agents on too few workers wait 13 % longer, without a bound 46 %; with 0.1 those below capacity wait 1 % longer
/// (docs/study/expected_ttft).
const CHURN_MAX: f32 = 0.2;

/// Time to compute again what a request evicts that computes so much itself. Each computed token takes the place of another; the
/// more of the cache was computed lately, the more likely the other is wanted again.
fn eviction_ms(fleet: &Fleet, worker: WorkerId, computed_ms: f32, now: Micros) -> f32 {
    let churn = fleet.cache_churn(worker, now).unwrap_or(0.0).min(CHURN_MAX);
    computed_ms * churn / (1.0 + churn)
}

/// Mean overlap of the candidates without the longest: near zero for a conversation on one worker, near the
/// full length for a prefix that all workers hold.
fn common_tokens(overlap_sum: u64, longest: u32, count: usize) -> u32 {
    let others = (count as u64).saturating_sub(1);
    (overlap_sum - u64::from(longest)).checked_div(others).unwrap_or(0) as u32
}
