//! The router: pools of workers by model, one policy, and the three verbs.

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

/// The router's own few settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// When a worker counts as unhealthy.
    pub health: HealthConfig,
    /// A load report older than this is not believed.
    pub report_age_max: Micros,
    /// A worker with so many requests in flight gets no more.
    pub in_flight_max: u32,
    /// Bounds of what is remembered about caches.
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

/// What a request asks of the router.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The model it names; `None` is content with any worker.
    pub model: Option<&'a str>,
    /// Tokens of its prompt, as far as known; where the prompt is given too, they are estimated from that.
    pub prompt_tokens: u32,
    /// Its prompt, where caches shall be looked at.
    pub prompt: Option<PromptChunks<'a>>,
    /// The same as engines write it, where that is known: once for each family of workers that serves the model.
    pub texts: &'a [PromptText<'a>],
    /// Hash of its session, if it names one.
    pub session_key: Option<u64>,
    /// Hash of its prompt's beginning, if it has one.
    pub prefix_key: Option<u64>,
    /// Workers that have already failed it.
    pub avoid: &'a [WorkerId],
    /// By seat, how many tokens of the prompt each worker holds, where somebody knows for certain, as the lab does.
    pub known_tokens: Option<&'a [u32]>,
    /// How its answer will come.
    pub delivery: Delivery,
}

/// Where a request goes. The booking inside keeps the work on the worker's load until it is dropped.
#[derive(Debug)]
pub struct Decision {
    /// Who.
    pub worker: Arc<Worker>,
    /// By which policy.
    pub policy: &'static str,
    /// And why, in a word.
    pub reason: &'static str,
    /// Prompt tokens expected in the worker's cache; `None` when nothing is known of its cache.
    pub cached_tokens: Option<u32>,
    /// Prompt tokens that the best of all candidates was expected to hold, chosen or not.
    pub longest_match: Option<u32>,
    /// Prompt tokens in all, as far as known.
    pub prompt_tokens: u32,
    /// How its worker's cache was known.
    pub view: CacheView,
    /// The chosen worker and the next best by expected time to first token, as the policy saw them; the chosen one first.
    pub candidate_records: [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX],
    /// When it was made.
    pub made: Micros,
    /// From what it was concluded.
    expectation: Expectation,
    /// How many had had their first token by then.
    moment: u64,
    /// How many bookings its worker had had when this one was made.
    bookings: u32,
    /// The work, on the worker's load.
    pub booking: Booking,
    /// What is presumed about the worker's cache from now on.
    presumed: Option<PresumptionGuard>,
    /// The same, once it waits for an event.
    ticket: Option<SpeculationTicket>,
    /// What other routers are told of it, where there are any.
    assignment_guard: Option<AssignmentGuard>,
}

impl Decision {
    /// How long its first token was expected to take, from the decision on.
    pub fn expected_ttft_ms(&self) -> f32 {
        self.candidate_records[0].as_ref().map_or(0.0, |chosen| chosen.numbers.estimate.ttft_ms())
    }
}

/// Why a request can go nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No worker serves this model, and all have said what they serve.
    #[error("the model does not exist")]
    UnknownModel,
    /// Workers exist, but none is ready now.
    #[error("no worker is ready")]
    NotReady,
    /// Workers are ready, but each has as many requests as it may.
    #[error("every worker has as much as it may")]
    Full,
    /// There is no worker at all.
    #[error("the fleet is empty")]
    NoWorkers,
}

/// The routing core, generic over its policy so that the lab can run rules of other routers.
pub struct Router<P> {
    fleet: Arc<Fleet>,
    index: Arc<Index>,
    policies: RwLock<Policies<P>>,
    config: Config,
    /// A worker with so many requests in flight gets no more.
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

    /// The same, with other policies that are asked about every request without a say: see [`Router::policy_comparisons`].
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

    /// What [`Router::route`] would do with a request now, and among whom it would choose. Nothing is booked or presumed.
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

    /// Whether a worker would take a request for this model now, other than those to be avoided.
    pub fn vacancy(&self, model: Option<&str>, avoid: &[WorkerId]) -> Vacancy {
        let pools = self.pools.read();
        let pool = pools.serving(model);
        pool.map_or(Vacancy::NoWorker, |pool| {
            pool.vacancy(&self.fleet, avoid, self.in_flight_max.load(Relaxed))
        })
    }

    /// Why nobody was found among a pool's workers.
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

    /// Takes in how a request fared. After `Ended` and `Refused` the caller drops the decision.
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

    /// Holds a first token's time against what was predicted of it. Where the worker is an outlier and is left alone for a while:
    /// until when, for whoever keeps a log.
    pub fn compare_first_token(&self, decision: &Decision, at: Micros) -> Option<Micros> {
        let predicted = Micros::from_millis_f64(decision.expected_ttft_ms().into());
        self.fleet.compare_first_token(&decision.worker, predicted, at.since(decision.made), at)
    }

    /// Forgets what is too old to be believed. To be called every now and then.
    pub fn tick(&self, now: Micros) {
        self.settle(now);
        self.unclaimed.expire(now, self.config.index.presumed_ttl);
        self.index.expire(now);
    }

    /// Withdraws what was presumed of workers with events, once their events must have come. To be called about once a
    /// second.
    pub fn settle(&self, now: Micros) {
        self.speculations.expire(now);
    }

    /// The namespace in which a family's engines report a request's prompt.
    pub fn text_root(&self, family: &Family, model: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        self.reported.root_for(family, model, salt, unit)
    }

    /// This name is an adapter's: its cache is not that of the model it belongs to.
    pub fn know_lora(&self, name: &str) {
        self.reported.know_lora(name);
    }

    /// A worker's events in numbers; `None` for one whose events cannot be read.
    pub fn feed_report(&self, worker: WorkerId) -> Option<FeedReport> {
        self.reported.report(worker)
    }

    /// What is remembered about caches, in numbers.
    pub fn index_stats(&self) -> warmroute_index::Stats {
        self.index.stats()
    }

    /// What digests a prompt's chunks.
    pub fn digester(&self) -> &Digester {
        self.index.digester()
    }

    /// Every worker, as it is now.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.fleet.workers()
    }

    /// How many requests a worker has been sent; it wraps.
    pub fn bookings(&self, worker: WorkerId) -> u32 {
        self.fleet.bookings(worker)
    }

    /// One worker's state.
    pub fn worker_state(&self, worker: WorkerId) -> WorkerState {
        self.fleet.load_view(worker).state
    }

    /// Whether nobody reaches the worker: its probes or connections fail, again and again.
    pub fn is_unreachable(&self, worker: WorkerId) -> bool {
        self.fleet.is_unreachable(worker)
    }

    /// How a worker's cache is known at this moment.
    pub fn cache_view(&self, worker: WorkerId) -> CacheView {
        self.fleet.load_view(worker).view
    }

    /// Whether the operator wrote down what this worker serves.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        self.fleet.models_are_given(worker)
    }

    /// A worker's learned latency and its queue.
    pub fn latency(&self, worker: WorkerId, now: Micros) -> LatencyView {
        self.fleet.latency_view(worker, now)
    }

    /// The policy in use.
    pub fn policy(&self) -> P
    where
        P: Clone,
    {
        self.policies.read().acting().clone()
    }

    /// Whether the policy in use or any of its shadows needs something: it must be known of a request then.
    pub fn needs(&self, what: impl Fn(&P) -> bool) -> bool {
        self.policies.read().all().any(what)
    }

    /// Other policies from the next request on. Shadows count from nothing again.
    pub fn set_policies(&self, policy: P, shadows: Vec<P>) {
        *self.policies.write() = Policies::new(policy, shadows);
    }

    /// From now on a worker with so many requests in flight gets no more.
    pub fn set_in_flight_max(&self, requests: u32) {
        self.in_flight_max.store(requests, Relaxed);
    }

    /// What the policy in use and each shadow would have made of the requests so far; nothing without shadows.
    pub fn policy_comparisons(&self) -> Vec<PolicyComparison> {
        self.policies.read().policy_comparisons()
    }
}

mod changes;
mod feedback;
mod relaying;
mod saving;
mod sharing;

pub use relaying::StreamNews;

#[cfg(test)]
mod caching_tests;
/// The network of the conversation's own tests.
#[cfg(test)]
#[path = "../../peers/tests/net/mod.rs"]
mod net;
#[cfg(test)]
mod preview_tests;
#[cfg(test)]
mod relaying_tests;
#[cfg(test)]
mod reported_tests;
#[cfg(test)]
mod saving_tests;
#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
