//! The router: pools of workers by model, a policy, and the verbs `route`, `observe` and `apply`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use warmroute_fleet::{AnswerProgress, Fleet, HealthConfig};
use warmroute_index::{Index, LongWork};
use warmroute_policy::Policy;
use warmroute_types::{AT_LEAST_1, BadSetting, MAX_WORKERS, Micros, check_settings};
#[cfg(test)]
use warmroute_types::{CacheView, WorkerId};

use crate::adapter_names::AdapterNames;
use crate::awaited_answers::AwaitedAnswers;
use crate::candidate_input::DecisionContext;
use crate::decision::{Decision, NoRoute};
use crate::model_rules::{ModelRuleTable, rules_of};
use crate::outcome::{Observed, Outcome};
use crate::policies::Policies;
use crate::pool::{Pool, Vacancy};
use crate::pools::Pools;
use crate::reported::Reported;
use crate::reported_view::ReportedView;
use crate::request::Request;
use crate::scratch::{KeptCandidates, Scratch};
use crate::sharing::{AssignmentGuard, Sharing};
use crate::speculation::Speculations;
use crate::stored_responses::StoredResponses;
use crate::unclaimed_state::UnclaimedState;
use crate::worker_group::{WorkerGroup, WorkerGroups};

/// Settings of the router.
#[derive(Clone, Debug)]
pub struct Config {
    /// When a worker counts as unhealthy.
    pub health: HealthConfig,
    /// Load reports older than this are ignored.
    pub report_age_max: Micros,
    /// Concurrency limit of a worker, in requests; 0: no limit.
    pub in_flight_max: u32,
    /// Limits of the index.
    pub index: warmroute_index::Config,
    /// A view of reported caches that predictions ignore, to measure what it is worth.
    #[doc(hidden)]
    pub without_view: Option<ReportedView>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            health: HealthConfig::default(),
            report_age_max: Micros::from_secs(5),
            in_flight_max: 0,
            index: warmroute_index::Config::default(),
            without_view: None,
        }
    }
}

impl Config {
    /// Checks that the limits are usable.
    pub fn validate(&self) -> Result<(), BadSetting> {
        check_settings(&[("health-failure-threshold", self.health.failures_max > 0, AT_LEAST_1)])?;
        self.index.validate()
    }
}

/// The routing core, generic over its policy so that the lab can run the rules of other routers.
pub struct Router<P> {
    fleet: Arc<Fleet>,
    index: Arc<Index>,
    policies: RwLock<Policies<P>>,
    /// Read with `read_recursive`, which does not queue behind a waiting writer: code that holds `pools` reads it, and code that
    /// holds it takes `pools`. With plain reads the two could wait for each other.
    model_rules: RwLock<ModelRuleTable<P>>,
    config: Config,
    /// Concurrency limit of a worker, in requests; 0: no limit.
    in_flight_max: AtomicU32,
    pools: RwLock<Pools>,
    /// Workers that have joined so far.
    joins: AtomicU64,
    /// Held while the fleet's members change, one change after another. Decisions do not take it.
    changes: Mutex<()>,
    /// By worker index: held while the cache of a slot is cleared for its next worker.
    clears: Box<[Mutex<()>]>,
    /// Held while peers' requests are booked: a worker that was found must not lose its slot before it is booked.
    peer_bookings: RwLock<()>,
    reported: Reported,
    speculations: Speculations,
    /// Answers that wait for the events of their prompts.
    awaited_answers: AwaitedAnswers,
    sharing: OnceLock<Arc<Sharing>>,
    /// Names of LoRA adapters.
    adapters: AdapterNames,
    /// Places of stored responses.
    stored: StoredResponses,
    unclaimed: UnclaimedState,
    /// Named groups of workers.
    groups: WorkerGroups,
}

impl<P: Policy> Router<P> {
    /// A router without workers.
    pub fn new(policy: P, config: Config) -> Router<P> {
        Router::with_shadows(policy, Vec::new(), config)
    }

    /// A router with shadow policies, which are evaluated on every request without acting: see
    /// [`Inspect::policy_comparisons`].
    pub fn with_shadows(policy: P, shadows: Vec<P>, config: Config) -> Router<P> {
        let fleet = Arc::new(Fleet::new(config.health));
        let index = Arc::new(Index::new(&config.index));
        Router {
            fleet,
            index,
            policies: RwLock::new(Policies::new(policy, shadows)),
            model_rules: RwLock::default(),
            in_flight_max: AtomicU32::new(config.in_flight_max),
            config,
            pools: RwLock::default(),
            joins: AtomicU64::new(0),
            changes: Mutex::default(),
            clears: (0..MAX_WORKERS).map(|_| Mutex::default()).collect(),
            peer_bookings: RwLock::default(),
            reported: Reported::default(),
            speculations: Speculations::default(),
            awaited_answers: AwaitedAnswers::default(),
            sharing: OnceLock::new(),
            adapters: AdapterNames::default(),
            stored: StoredResponses::default(),
            unclaimed: UnclaimedState::default(),
            groups: WorkerGroups::default(),
        }
    }

    /// Has work of milliseconds, such as clearing a large cache, done by `run`: see [`Index::run_long_work_with`].
    pub fn run_long_work_with(&self, run: LongWork) {
        self.index.run_long_work_with(run);
    }

    /// Chooses a worker and books the request there. `random` is fresh for every call; `scratch` is kept by the caller.
    pub fn route(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        now: Micros,
        random: u64,
    ) -> Result<Decision, NoRoute> {
        let (pools, policies) = (self.pools.read(), self.policies.read());
        let (pool, context) =
            (pools.serving(request.model, request.within)?, self.context(request.model, now, random));
        let rules = self.model_rules.read_recursive();
        request.prompt.into_iter().for_each(|prompt| scratch.cut(prompt, &pool.tokens));
        // Allocated outside the section: other decisions wait while it is held.
        let kept = if scratch.kept == KeptCandidates::All { pool.len() } else { 0 };
        let mut all_candidates = Vec::with_capacity(kept);
        let open = pool.enter(&context, request, scratch);
        let mut open = open.ok_or_else(|| self.no_route_reason(&pools, pool, request))?;
        all_candidates.extend(open.records().take(kept));
        let own_policy = rules_of(&rules, request.model).and_then(|rules| rules.policy.as_ref());
        let policy = own_policy.unwrap_or(policies.acting());
        let choice = open.choose(policy);
        policies.compare_shadows(|| open.candidates(), choice.index);
        let mut decision = open.book(policy.name(), choice);
        // After the section: storing a new prompt allocates.
        self.index.apply_pending();
        let announce =
            |sharing: &Arc<Sharing>| sharing.announce(decision.booking_record(request, &scratch.spans));
        decision.assignment_guard = self.sharing.get().map(announce);
        decision.all_candidates = all_candidates;
        Ok(decision)
    }

    /// Records the outcome of a request, compares it with the prediction, and corrects what is believed about the worker.
    /// After `Ended` and `Refused` the caller drops the decision.
    pub fn observe(&self, decision: &mut Decision, outcome: Outcome<'_>) -> Observed {
        match outcome {
            Outcome::FirstToken { at } => {
                self.confirm_prompt(decision);
                let guard = decision.assignment_guard.iter();
                guard.for_each(|guard| guard.computed(decision.worker.id, at));
                if let Some(adapter) = decision.loading_adapter {
                    self.learn_adapter_load(decision, adapter, at);
                    decision.booking.answered(&decision.worker, AnswerProgress::Begun);
                    return Observed::default();
                }
                decision.booking.first_token(at);
                decision.booking.answered(&decision.worker, AnswerProgress::Begun);
                Observed { ejected_until: self.compare_first_token(decision, at), feedback: None }
            }
            Outcome::Ended { answered } => {
                self.confirm_prompt(decision);
                if let Some(adapter) = decision.loading_adapter {
                    self.fleet.adapter_used(decision.worker.id, adapter);
                }
                decision.assignment_guard.iter_mut().for_each(AssignmentGuard::answered);
                decision.booking.answered(&decision.worker, AnswerProgress::Complete);
                let expected = decision.made + Micros::from_millis_f64(decision.expected_ttft_ms().into());
                answered.iter().for_each(|answered| decision.booking.ended(expected, answered.at));
                let feedback = answered.map(|answered| self.feedback(decision, answered));
                Observed { ejected_until: None, feedback }
            }
            Outcome::Unobserved => {
                self.confirm_prompt(decision);
                decision.assignment_guard.iter_mut().for_each(AssignmentGuard::answered);
                Observed::default()
            }
            Outcome::Refused => {
                decision.booking.answered(&decision.worker, AnswerProgress::Complete);
                Observed::default()
            }
        }
    }

    /// Replaces the policies from the next request on. Shadow counts start over.
    pub fn set_policies(&self, policy: P, shadows: Vec<P>) {
        *self.policies.write() = Policies::new(policy, shadows);
    }

    /// Replaces the settings of single models from the next request on.
    pub fn set_model_rules(&self, rules: ModelRuleTable<P>) {
        *self.model_rules.write() = rules;
    }

    /// Concurrency limit of a worker for requests of this model.
    fn in_flight_max_of(&self, model: Option<&str>) -> u32 {
        let rules = self.model_rules.read_recursive();
        let own = rules_of(&rules, model).and_then(|rules| rules.in_flight_max);
        match own.unwrap_or_else(|| self.in_flight_max.load(Relaxed)) {
            0 => u32::MAX,
            max => max,
        }
    }

    /// The group of workers of this name, for requests that are limited to it.
    pub fn worker_group(&self, name: &str) -> Arc<WorkerGroup> {
        self.groups.named(name)
    }

    /// What this router exchanges with its peers.
    pub fn peering(&self) -> Peering<'_, P> {
        Peering { router: self }
    }

    /// What can be read without a change: for the admin listener, metrics, saved state and the preparation of requests.
    pub fn inspect(&self) -> Inspect<'_, P> {
        Inspect { router: self }
    }

    /// The state that a decision reads.
    fn context(&self, model: Option<&str>, now: Micros, random: u64) -> DecisionContext<'_> {
        let sharing = self.sharing.get();
        DecisionContext {
            fleet: &self.fleet,
            index: &self.index,
            speculations: &self.speculations,
            groups: &self.reported.groups,
            media_moment: self.reported.media.moment(),
            router_rank: sharing.map_or(0, |sharing| sharing.rank()),
            routers: sharing.map_or(1, |sharing| sharing.routers()),
            unpropagated_load: sharing.map_or(Micros::ZERO, |sharing| sharing.unpropagated_load()),
            report_age_max: self.config.report_age_max,
            without_view: self.config.without_view,
            in_flight_max: self.in_flight_max_of(model),
            adapter: self.adapters.of(model),
            now,
            random,
        }
    }

    /// Why no worker of a pool was chosen.
    fn no_route_reason(&self, pools: &Pools, pool: &Pool, request: &Request<'_>) -> NoRoute {
        match pool.vacancy(&self.fleet, request.usable(), self.in_flight_max_of(request.model)) {
            Vacancy::Full => NoRoute::Full,
            Vacancy::NoWorker | Vacancy::UnknownModel | Vacancy::Free => pools.no_route_reason(),
        }
    }

    /// The prompt has been computed: its presumption is confirmed, or waits for the engine's event.
    fn confirm_prompt(&self, decision: &mut Decision) {
        match decision.presumed.take() {
            Some(presumed) if decision.awaits_event() => {
                decision.ticket =
                    Some(self.speculations.await_event(presumed, decision.worker.id, decision.made));
            }
            Some(mut presumed) => presumed.confirm(),
            None => {}
        }
    }

    /// Learns the time of an adapter's load: what the first token took beyond its prediction without one. The latency model
    /// does not learn from it.
    fn learn_adapter_load(&self, decision: &mut Decision, adapter: u64, at: Micros) {
        decision.booking.first_token_at_peer(at);
        let estimate = decision.candidate_records[0].as_ref().map(|chosen| chosen.numbers.estimate);
        let without_ms = estimate.map_or(0.0, |estimate| estimate.ttft_ms() - estimate.adapter_ms);
        self.fleet.adapter_loaded(decision.worker.id, adapter, decision.made, at, without_ms);
    }

    /// Compares a first token with its prediction. Returns the end of the ejection, if the worker is ejected
    /// as an outlier.
    fn compare_first_token(&self, decision: &Decision, at: Micros) -> Option<Micros> {
        let predicted = Micros::from_millis_f64(decision.expected_ttft_ms().into());
        self.fleet.compare_first_token(&decision.worker, predicted, at.since(decision.made), at)
    }
}

#[cfg(test)]
impl<P: Policy> Router<P> {
    /// Observes the end of an answer with token counts.
    fn answered(
        &self,
        decision: &mut Decision,
        request: &Request<'_>,
        usage: warmroute_types::Usage,
        at: Micros,
    ) -> crate::Feedback {
        let answered = Some(crate::Answered { request, usage, at });
        self.observe(decision, Outcome::Ended { answered }).feedback.expect("the answer has token counts")
    }
}

mod changes;
mod feedback;
mod inspect;
mod late_events;
mod peering;
mod saving;
mod sharing;

pub use inspect::{HeldHead, Inspect};
pub use peering::Peering;

#[cfg(test)]
mod adapter_tests;
#[cfg(test)]
mod caching_tests;
#[cfg(test)]
mod decision_tests;
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
