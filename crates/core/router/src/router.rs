//! The router: pools of workers by model, a policy, and the verbs `route`, `observe` and `apply`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use warmroute_fleet::{AnswerProgress, Booking, Fleet, HealthConfig, LatencyView, Worker, WorkerView};
use warmroute_index::{Digester, Index, RootKey};
use warmroute_policy::{Policy, PolicyRequest};
use warmroute_types::{CacheView, Delivery, Micros, WorkerId, WorkerState};

use crate::candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, Preview};
use crate::policies::{Policies, PolicyComparison};
use crate::pool::{Expectation, PlacementInput, Pool, Vacancy};
use crate::pools::Pools;
use crate::presumption_guard::PresumptionGuard;
use crate::reported::Reported;
use crate::sharing::{AssignmentGuard, Sharing};
use crate::speculation::{SpeculationTicket, Speculations};
use crate::unclaimed_state::UnclaimedState;
use crate::{Family, FeedReport, Outcome, PromptChunks, PromptText, Scratch, Unit};

/// Settings of the router.
#[derive(Clone, Debug)]
pub struct Config {
    /// When a worker counts as unhealthy.
    pub health: HealthConfig,
    /// Load reports older than this are ignored.
    pub report_age_max: Micros,
    /// Concurrency limit of a worker, in requests.
    pub in_flight_max: u32,
    /// Limits of the index.
    pub index: warmroute_index::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            health: HealthConfig::default(),
            report_age_max: Micros::from_secs(5),
            in_flight_max: u32::MAX,
            index: warmroute_index::Config::default(),
        }
    }
}

/// A request to route.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The requested model; `None` accepts any worker.
    pub model: Option<&'a str>,
    /// Tokens of the prompt, if known. With `prompt`, they are estimated from its bytes.
    pub prompt_tokens: u32,
    /// The prompt's chunks, if caches are to be considered.
    pub prompt: Option<PromptChunks<'a>>,
    /// The prompt as engines tokenize it, once per family of workers that serves the model.
    pub texts: &'a [PromptText<'a>],
    /// Hash of the session, if the request names one.
    pub session_key: Option<u64>,
    /// Hash of the prompt's beginning, if it has one.
    pub prefix_key: Option<u64>,
    /// Workers that have failed this request.
    pub avoid: &'a [WorkerId],
    /// Exact overlap by worker index, where the caller knows it (the lab does).
    pub known_tokens: Option<&'a [u32]>,
    /// Whether the answer streams.
    pub delivery: Delivery,
}

/// The chosen worker of a request. Its booking counts as load until the decision is dropped.
#[derive(Debug)]
pub struct Decision {
    /// The worker.
    pub worker: Arc<Worker>,
    /// Name of the policy.
    pub policy: &'static str,
    /// Reason of the choice.
    pub reason: &'static str,
    /// Predicted cached tokens; `None` without a lookup.
    pub cached_tokens: Option<u32>,
    /// The longest predicted overlap of any candidate.
    pub longest_match: Option<u32>,
    /// Prompt tokens, counted or estimated.
    pub prompt_tokens: u32,
    /// Source of what was known about the worker's cache.
    pub view: CacheView,
    /// The chosen candidate, then the next best by expected TTFT, as the policy saw them.
    pub candidate_records: [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX],
    /// Time of the decision.
    pub made: Micros,
    /// Basis of the prediction.
    expectation: Expectation,
    /// Number of first tokens observed before the decision.
    moment: u64,
    /// The worker's booking count at the decision.
    bookings: u32,
    /// The work booked on the worker.
    pub booking: Booking,
    /// The presumption about the worker's cache.
    presumed: Option<PresumptionGuard>,
    /// Ticket of the presumption while it waits for an event.
    ticket: Option<SpeculationTicket>,
    /// Announces the assignment to peers, if there are any.
    assignment_guard: Option<AssignmentGuard>,
}

impl Decision {
    /// Predicted time to first token, from the decision on.
    pub fn expected_ttft_ms(&self) -> f32 {
        self.candidate_records[0].as_ref().map_or(0.0, |chosen| chosen.numbers.estimate.ttft_ms())
    }
}

/// Why a request cannot be routed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No worker serves this model, and all have listed their models.
    #[error("the model does not exist")]
    UnknownModel,
    /// Workers exist, but none is ready now.
    #[error("no worker is ready")]
    NotReady,
    /// All ready workers are at their concurrency limit.
    #[error("every worker has as much as it may")]
    Full,
    /// There is no worker at all.
    #[error("the fleet is empty")]
    NoWorkers,
}

/// The routing core, generic over its policy so that the lab can run the rules of other routers.
pub struct Router<P> {
    fleet: Arc<Fleet>,
    index: Arc<Index>,
    policies: RwLock<Policies<P>>,
    config: Config,
    /// Concurrency limit of a worker, in requests.
    in_flight_max: AtomicU32,
    pools: RwLock<Pools>,
    reported: Reported,
    speculations: Speculations,
    sharing: OnceLock<Arc<Sharing>>,
    unclaimed: UnclaimedState,
}

impl<P: Policy> Router<P> {
    /// A router without workers.
    pub fn new(policy: P, config: Config) -> Router<P> {
        Router::with_shadows(policy, Vec::new(), config)
    }

    /// A router with shadow policies, which are evaluated on every request without acting: see
    /// [`Router::policy_comparisons`].
    pub fn with_shadows(policy: P, shadows: Vec<P>, config: Config) -> Router<P> {
        let fleet = Arc::new(Fleet::new(config.health));
        let index = Arc::new(Index::new(&config.index));
        Router {
            fleet,
            index,
            policies: RwLock::new(Policies::new(policy, shadows)),
            in_flight_max: AtomicU32::new(config.in_flight_max),
            config,
            pools: RwLock::default(),
            reported: Reported::default(),
            speculations: Speculations::default(),
            sharing: OnceLock::new(),
            unclaimed: UnclaimedState::default(),
        }
    }

    /// Chooses a worker and books the request there. `random` is fresh for every call; `scratch` is kept by the caller.
    pub fn route(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        now: Micros,
        random: u64,
    ) -> Result<Decision, NoRoute> {
        let pools = self.pools.read();
        let pool = pools.serving(request.model)?;
        let input = self.input(pool, request, now, random);
        let policies = self.policies.read();
        let placement = pool.place(&self.fleet, &self.index, &policies, input, scratch);
        let placement = placement.ok_or_else(|| self.no_route_reason(&pools, pool, request.avoid))?;
        let assignment_guard = self
            .sharing
            .get()
            .map(|sharing| sharing.assignment_guard(&placement, request.prompt, request.delivery, scratch));
        Ok(Decision {
            worker: placement.worker,
            policy: policies.acting().name(),
            reason: placement.reason,
            cached_tokens: placement.cached_tokens,
            longest_match: placement.longest_match,
            prompt_tokens: placement.prompt_tokens,
            view: placement.expectation.view,
            candidate_records: placement.candidate_records,
            made: now,
            expectation: placement.expectation,
            moment: self.speculations.moment(),
            bookings: placement.bookings,
            booking: placement.booking,
            presumed: placement.presumed,
            ticket: None,
            assignment_guard,
        })
    }

    /// The decision that [`Router::route`] would make now, with all candidates. Books and presumes nothing.
    pub fn preview(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        now: Micros,
        random: u64,
    ) -> Result<Preview, NoRoute> {
        let pools = self.pools.read();
        let pool = pools.serving(request.model)?;
        let input = self.input(pool, request, now, random);
        let policies = self.policies.read();
        let preview = pool.preview(&self.fleet, &self.index, policies.acting(), input, scratch);
        preview.ok_or_else(|| self.no_route_reason(&pools, pool, request.avoid))
    }

    /// Whether a worker outside `avoid` can take a request for this model now.
    pub fn vacancy(&self, model: Option<&str>, avoid: &[WorkerId]) -> Vacancy {
        let pools = self.pools.read();
        let pool = pools.serving(model);
        pool.map_or(Vacancy::NoWorker, |pool| {
            pool.vacancy(&self.fleet, avoid, self.in_flight_max.load(Relaxed))
        })
    }

    /// Why no worker of a pool was chosen.
    fn no_route_reason(&self, pools: &Pools, pool: &Pool, avoid: &[WorkerId]) -> NoRoute {
        match pool.vacancy(&self.fleet, avoid, self.in_flight_max.load(Relaxed)) {
            Vacancy::Full => NoRoute::Full,
            Vacancy::NoWorker | Vacancy::Free => pools.no_route_reason(),
        }
    }

    fn input<'a>(&self, pool: &Pool, request: &Request<'a>, now: Micros, random: u64) -> PlacementInput<'a> {
        let counted = request.prompt.map(|prompt| pool.tokens.tokens_in(prompt.bytes));
        let policy_request = PolicyRequest {
            prompt_tokens: counted.unwrap_or(request.prompt_tokens),
            session_key: request.session_key,
            prefix_key: request.prefix_key,
            random,
            turn: 0,
            router_rank: self.sharing.get().map_or(0, |sharing| sharing.rank()),
            unpropagated_load: self.sharing.get().map_or(Micros::ZERO, |sharing| sharing.unpropagated_load()),
        };
        let report_age_max = self.config.report_age_max;
        let in_flight_max = self.in_flight_max.load(Relaxed);
        let (sampled_weight, shortfall) = (pool.sampled_reuse.weight(), pool.presumed_shortfall.tokens());
        let Request { prompt, texts, avoid, known_tokens, delivery, .. } = *request;
        PlacementInput {
            request: policy_request,
            prompt,
            texts,
            sampled_weight,
            shortfall,
            avoid,
            known_tokens,
            delivery,
            now,
            report_age_max,
            in_flight_max,
        }
    }

    /// Records the outcome of a request. After `Ended` and `Refused` the caller drops the decision.
    pub fn observe(&self, decision: &mut Decision, outcome: Outcome) {
        match decision.presumed.take_if(|_| outcome != Outcome::Refused) {
            Some(presumed) if decision.view == CacheView::Reported => {
                decision.ticket =
                    Some(self.speculations.await_event(presumed, decision.worker.id, decision.made));
            }
            Some(mut presumed) => presumed.confirm(),
            None => {}
        }
        match outcome {
            Outcome::FirstToken { at } => {
                decision
                    .assignment_guard
                    .iter()
                    .for_each(|assignment_guard| assignment_guard.computed(decision.worker.id, at));
                decision.booking.first_token(at);
                self.fleet.answered(&decision.worker, &decision.booking, AnswerProgress::Begun);
            }
            Outcome::Ended | Outcome::Refused => {
                if let Some(assignment_guard) =
                    decision.assignment_guard.as_mut().filter(|_| outcome == Outcome::Ended)
                {
                    assignment_guard.answered();
                }
                self.fleet.answered(&decision.worker, &decision.booking, AnswerProgress::Complete);
            }
        }
    }

    /// Compares a first token with its prediction. Returns the end of the ejection, if the worker is ejected
    /// as an outlier.
    pub fn compare_first_token(&self, decision: &Decision, at: Micros) -> Option<Micros> {
        let predicted = Micros::from_millis_f64(decision.expected_ttft_ms().into());
        self.fleet.compare_first_token(&decision.worker, predicted, at.since(decision.made), at)
    }

    /// Expires old presumptions and saved state. Call it every few seconds.
    pub fn tick(&self, now: Micros) {
        self.settle(now);
        self.unclaimed.expire(now, self.config.index.presumed_ttl);
        self.index.expire(now);
    }

    /// Withdraws presumptions of workers with events once their events must have arrived. Call it about once
    /// a second.
    pub fn settle(&self, now: Micros) {
        self.speculations.expire(now);
    }

    /// The root under which a family's engines report a request's prompt.
    pub fn text_root(&self, family: &Family, model: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        self.reported.root_for(family, model, salt, unit)
    }

    /// Declares a LoRA adapter name, whose cache is separate from its base model's.
    pub fn know_lora(&self, name: &str) {
        self.reported.know_lora(name);
    }

    /// Counters of a worker's events; `None` if they cannot be read.
    pub fn feed_report(&self, worker: WorkerId) -> Option<FeedReport> {
        self.reported.report(worker)
    }

    /// Statistics of the index.
    pub fn index_stats(&self) -> warmroute_index::Stats {
        self.index.stats()
    }

    /// The digester of prompt chunks.
    pub fn digester(&self) -> &Digester {
        self.index.digester()
    }

    /// The current state of every worker.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.fleet.workers()
    }

    /// Requests sent to a worker so far; wraps.
    pub fn bookings(&self, worker: WorkerId) -> u32 {
        self.fleet.bookings(worker)
    }

    /// The state of a worker.
    pub fn worker_state(&self, worker: WorkerId) -> WorkerState {
        self.fleet.load_view(worker).state
    }

    /// Whether connections to the worker fail repeatedly.
    pub fn is_unreachable(&self, worker: WorkerId) -> bool {
        self.fleet.is_unreachable(worker)
    }

    /// Source of what is known about a worker's cache.
    pub fn cache_view(&self, worker: WorkerId) -> CacheView {
        self.fleet.load_view(worker).view
    }

    /// Whether the operator configured this worker's models.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        self.fleet.models_are_given(worker)
    }

    /// A worker's learned latency and its queue.
    pub fn latency(&self, worker: WorkerId, now: Micros) -> LatencyView {
        self.fleet.latency_view(worker, now)
    }

    /// The acting policy.
    pub fn policy(&self) -> P
    where
        P: Clone,
    {
        self.policies.read().acting().clone()
    }

    /// Whether the acting policy or a shadow needs something of requests.
    pub fn needs(&self, what: impl Fn(&P) -> bool) -> bool {
        self.policies.read().all().any(what)
    }

    /// Replaces the policies from the next request on. Shadow counts start over.
    pub fn set_policies(&self, policy: P, shadows: Vec<P>) {
        *self.policies.write() = Policies::new(policy, shadows);
    }

    /// Sets the concurrency limit of workers.
    pub fn set_in_flight_max(&self, requests: u32) {
        self.in_flight_max.store(requests, Relaxed);
    }

    /// Counts of the acting policy and each shadow; empty without shadows.
    pub fn policy_comparisons(&self) -> Vec<PolicyComparison> {
        self.policies.read().policy_comparisons()
    }
}

mod changes;
mod feedback;
mod saving;
mod sharing;

#[cfg(test)]
mod caching_tests;
#[cfg(test)]
mod preview_tests;
#[cfg(test)]
mod reported_tests;
#[cfg(test)]
mod saving_tests;
#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
