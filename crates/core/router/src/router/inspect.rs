//! Views of the router that change nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use warmroute_fleet::{LatencyView, Worker, WorkerView};
use warmroute_index::{Digester, PrefixHead, RootKey};
use warmroute_peers::StoredResponse;
use warmroute_policy::{Choice, Policy};
use warmroute_types::{CacheView, LoadReport, Micros, WorkerId, WorkerState};

use super::Router;
use crate::candidate_record::Preview;
use crate::decision::NoRoute;
use crate::model_rules::rules_of;
use crate::policies::PolicyComparison;
use crate::pool::Vacancy;
use crate::reported_view::ReportedView;
use crate::request::{Request, Usable};
use crate::{Family, FeedReport, KnownMedium, SavedState, Scratch, Unit};

/// A read-only view of the router.
pub struct Inspect<'a, P> {
    pub(super) router: &'a Router<P>,
}

/// The beginning of many prompts, and the workers that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldHead {
    /// The head; its holders are `workers`.
    pub head: PrefixHead,
    /// Workers that hold it in any view.
    pub workers: Vec<WorkerId>,
}

impl From<PrefixHead> for HeldHead {
    fn from(head: PrefixHead) -> HeldHead {
        let mut workers: Vec<WorkerId> =
            head.holders.iter().map(|&holder| ReportedView::split(holder).0).collect();
        workers.sort_unstable();
        workers.dedup();
        HeldHead { head, workers }
    }
}

impl<'a, P: Policy> Inspect<'a, P> {
    /// The decision that [`Router::route`] would make now, with all candidates. Books and presumes nothing.
    pub fn preview(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        now: Micros,
        random: u64,
    ) -> Result<Preview, NoRoute> {
        let router = self.router;
        let (pools, policies) = (router.pools.read(), router.policies.read());
        let (pool, context) =
            (pools.serving(request.model, request.within)?, router.context(request.model, now, random));
        // Allocates outside the section: decisions wait while it is held.
        let mut candidates = Vec::with_capacity(pool.len());
        let open = pool.enter(&context, request, scratch);
        let mut open = open.ok_or_else(|| router.no_route_reason(&pools, pool, request))?;
        let rules = router.model_rules.read_recursive();
        let own_policy = rules_of(&rules, request.model).and_then(|rules| rules.policy.as_ref());
        let policy = own_policy.unwrap_or(policies.acting());
        let Choice { index: chosen, reason } = open.choose(policy);
        candidates.extend(open.records());
        let prompt_tokens = open.policy_request.prompt_tokens;
        Ok(Preview { policy: policy.name(), reason, prompt_tokens, chosen, candidates })
    }

    /// Names of the groups to which a worker belongs.
    pub fn groups_of(&self, worker: WorkerId) -> Vec<Box<str>> {
        self.router.groups.names_of(worker)
    }

    /// Number of workers that have joined so far. A worker that joins may get the id of one that has left.
    pub fn joins(&self) -> u64 {
        self.router.joins.load(Relaxed)
    }

    /// Whether one of the workers that a request may use can take it now, if it is for this model. While none of them is
    /// ready, an unlisted model is not unknown: its workers may come with the others.
    pub fn vacancy(&self, model: Option<&str>, usable: Usable<'_>) -> Vacancy {
        let pools = self.router.pools.read();
        let in_flight_max = self.router.in_flight_max_of(model);
        match pools.serving(model, usable.within) {
            Ok(pool) => pool.vacancy(&self.router.fleet, usable, in_flight_max),
            Err(NoRoute::UnknownModel) if !pools.is_departed(model) => {
                match pools.serving(None, usable.within).map(|all| all.vacancy(&self.router.fleet, usable, 0))
                {
                    Ok(Vacancy::NoWorker) | Err(_) => Vacancy::NoWorker,
                    Ok(_) => Vacancy::UnknownModel,
                }
            }
            Err(_) => Vacancy::NoWorker,
        }
    }

    /// The model of a fleet that serves only one.
    pub fn only_model(&self) -> Option<Arc<str>> {
        self.router.pools.read().only_model()
    }

    /// Whether a worker lists this model or did, or it has settings of its own.
    pub fn lists_model(&self, model: &str) -> bool {
        let rules = self.router.model_rules.read_recursive();
        rules_of(&rules, Some(model)).is_some() || self.router.pools.read().lists(model)
    }

    /// Where the response or conversation with this hashed identifier is stored, and for whom.
    pub fn stored_response(&self, id: u128) -> Option<StoredResponse> {
        self.router.stored.find(id)
    }

    /// Number of stored responses and conversations whose place is known.
    pub fn stored_responses(&self) -> usize {
        self.router.stored.len()
    }

    /// The root under which a family's engines report a request's prompt.
    pub fn text_root(&self, family: &Family, model: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        self.router.reported.root_for(family, model, salt, unit)
    }

    /// What a family's engines make of a medium, where that is known.
    pub fn medium(&self, family: &Family, medium: u64) -> Option<KnownMedium> {
        self.router.reported.media.get(family.key(), medium)
    }

    /// The digester of prompt chunks.
    pub fn digester(&self) -> &'a Digester {
        self.router.index.digester()
    }

    /// Whether the acting policy, a shadow or a model's own policy needs something of requests.
    pub fn needs(&self, what: impl Fn(&P) -> bool) -> bool {
        let rules = self.router.model_rules.read_recursive();
        let mut own = rules.values().filter_map(|rules| rules.policy.as_ref());
        self.router.policies.read().all().any(&what) || own.any(what)
    }

    /// The current state of every worker.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.router.fleet.workers()
    }

    /// Whether a worker takes requests, and why not.
    pub fn worker_state(&self, worker: WorkerId) -> WorkerState {
        self.router.fleet.load_view(worker).state
    }

    /// The last load that the worker's engine reported.
    pub fn load_report(&self, worker: WorkerId) -> Option<LoadReport> {
        self.router.fleet.load_view(worker).report
    }

    /// Most tokens that any model of the worker takes as prompt and answer together, if the engine says so.
    pub fn max_model_len(&self, worker: WorkerId) -> Option<u64> {
        self.router.fleet.max_model_len(worker)
    }

    /// Whether connections to the worker fail repeatedly.
    pub fn is_unreachable(&self, worker: WorkerId) -> bool {
        self.router.fleet.is_unreachable(worker)
    }

    /// Whether the operator configured this worker's models.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        self.router.fleet.models_are_given(worker)
    }

    /// Requests sent to a worker so far; wraps.
    pub fn bookings(&self, worker: WorkerId) -> u32 {
        self.router.fleet.bookings(worker)
    }

    /// A worker's learned latency and its queue.
    pub fn latency(&self, worker: WorkerId, now: Micros) -> LatencyView {
        self.router.fleet.latency_view(worker, now)
    }

    /// Source of what is known about a worker's cache.
    pub fn cache_view(&self, worker: WorkerId) -> CacheView {
        self.router.fleet.load_view(worker).view
    }

    /// Counters of a worker's events; `None` if they cannot be read.
    pub fn feed_report(&self, worker: WorkerId) -> Option<FeedReport> {
        self.router.reported.report(worker)
    }

    /// Tokens that a worker's cache holds: as reported, or as configured for workers that do not say.
    pub fn cache_tokens(&self, worker: WorkerId) -> u64 {
        self.router.index.capacity_tokens(worker.into())
    }

    /// Statistics of the index.
    pub fn index_stats(&self) -> warmroute_index::Stats {
        self.router.index.stats()
    }

    /// Bytes of what is known, beside the index, about the caches of workers with several KV cache groups.
    pub fn group_cache_bytes(&self) -> usize {
        self.router.reported.groups.bytes()
    }

    /// Runs `work` while the index's writer lock is held, to show what does not wait for it.
    #[doc(hidden)]
    pub fn while_index_is_written<T>(&self, work: impl FnOnce() -> T) -> T {
        self.router.index.while_writing(work)
    }

    /// The largest beginnings of prompts in the index and the workers that hold them, largest first.
    pub fn prefix_heads(&self, count_max: usize) -> Vec<HeldHead> {
        let heads = self.router.index.prefix_heads(count_max);
        heads.into_iter().map(HeldHead::from).collect()
    }

    /// The acting policy.
    pub fn policy(&self) -> P
    where
        P: Clone,
    {
        self.router.policies.read().acting().clone()
    }

    /// Counts of the acting policy and each shadow; empty without shadows.
    pub fn policy_comparisons(&self) -> Vec<PolicyComparison> {
        self.router.policies.read().policy_comparisons()
    }

    /// The state to save for the next process. `unix_s` is the wall clock, which both processes share.
    pub fn saved_state(&self, now: Micros, unix_s: u64) -> SavedState {
        self.router.save(now, unix_s)
    }
}
