//! The admission gate: the state of request limits, rate limits and the queue in front of routing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;
use warmroute_admission::{Admission, AdmissionRequest, Class};
use warmroute_policy::Standard;
use warmroute_router::{Router, Usable, WorkerGroup};
use warmroute_types::{Micros, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::admission_config::AdmissionConfig;
use crate::background_responses::BackgroundResponses;
use crate::clock::Clock;
use crate::config::Config;
use crate::current::Current;
use crate::keys::Tenant;
use crate::peer_link::PeerLink;
use crate::random::random;
use crate::tenant_limits::TenantLimits;
use crate::ttft_budget::TypicalTtft;

/// What a request costs in the fair queue at least: about a short chat. A request without tokens (an upload, a read of a
/// stored response, one that the worker refuses) takes a place too, and if that were free its tenant would always be the
/// next.
const COST_MIN_TOKENS: u32 = 256;

/// What a second in a place costs at least: about what an engine computes for one request meanwhile.
const COST_PER_S_TOKENS: f64 = 64.0;

/// The cost of a request that was charged these tokens and had its place for this long.
pub(crate) fn place_cost(tokens: u32, held: Micros) -> u32 {
    // A float beyond the type's range saturates.
    let time = (held.as_secs_f64() * COST_PER_S_TOKENS) as u32;
    tokens.max(time).max(COST_MIN_TOKENS)
}

/// Histogram buckets of queue waits, in seconds.
const WAIT_BUCKETS_S: [f64; 10] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// The admission state that all requests share, the router that knows which workers have room, and the peers with which
/// tenants' limits are shared.
pub(crate) struct AdmissionGate {
    pub(crate) router: Arc<Router<Standard>>,
    pub(crate) settings: Arc<Current<Config>>,
    pub(crate) clock: Clock,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) admission: Mutex<Admission<Waiter>>,
    pub(crate) limits: TenantLimits,
    pub(crate) background: BackgroundResponses,
    /// Seed for hashing tenant names, so that a client cannot choose a name that collides with another tenant's. Routers
    /// that share have the same one.
    seed: AtomicU64,
    pub(crate) queue_waits_s: Histogram,
    pub(crate) typical_ttft: TypicalTtft,
    /// Requests that began to wait when no worker was ready.
    awaiting_worker: AtomicUsize,
}

/// Counts a request that waits for a worker until it is dropped.
pub(crate) struct WorkerWait<'a>(&'a AdmissionGate);

impl Drop for WorkerWait<'_> {
    fn drop(&mut self) {
        if self.0.awaiting_worker.fetch_sub(1, Relaxed) == 1 {
            tracing::info!("no request waits for a worker any more");
        }
    }
}

/// A waiting request.
pub(crate) struct Waiter {
    pub model: Option<String>,
    /// The worker that stores what the request continues: it can use no other.
    pub stored_at: Option<WorkerId>,
    /// Workers that the request cannot use, even if they have room.
    pub avoid: Vec<WorkerId>,
    /// The number of joins when these ids were noted. After a later one an id may be another worker's.
    pub joins: u64,
    /// The group of workers to which it is limited.
    pub within: Option<Arc<WorkerGroup>>,
    pub wake: oneshot::Sender<()>,
}

impl Waiter {
    /// The workers that the request may use, after this number of joins. Ids from before a join are not used: the
    /// request is woken too early at worst, and waits again.
    pub(crate) fn usable(&self, joins: u64) -> Usable<'_> {
        let usable = Usable { within: self.within.as_deref(), ..Usable::default() };
        let is_current = joins == self.joins;
        if is_current { Usable { stored_at: self.stored_at, avoid: &self.avoid, ..usable } } else { usable }
    }
}

impl AdmissionGate {
    pub(crate) fn new(
        router: Arc<Router<Standard>>,
        settings: Arc<Current<Config>>,
        clock: Clock,
        peers: Arc<PeerLink>,
    ) -> AdmissionGate {
        let admission = Mutex::new(Admission::new(settings.load().admission.for_admission()));
        AdmissionGate {
            router,
            settings,
            clock,
            peers,
            admission,
            limits: TenantLimits::default(),
            background: BackgroundResponses::default(),
            seed: AtomicU64::new(random()),
            queue_waits_s: Histogram::new(WAIT_BUCKETS_S),
            typical_ttft: TypicalTtft::default(),
            awaiting_worker: AtomicUsize::new(0),
        }
    }

    /// Sets the seed of tenants' hashes. Requests in flight keep theirs.
    pub(crate) fn set_seed(&self, seed: u64) {
        self.seed.store(seed, Relaxed);
    }

    /// Counts a request that waits because no worker is ready.
    pub(crate) fn await_worker(&self, model: Option<&str>) -> WorkerWait<'_> {
        if self.awaiting_worker.fetch_add(1, Relaxed) == 0 {
            tracing::info!(model, "no worker is ready: requests wait for one");
        }
        WorkerWait(self)
    }

    /// Requests that wait because no worker was ready when they came.
    pub(crate) fn awaiting_worker(&self) -> usize {
        self.awaiting_worker.load(Relaxed)
    }

    /// Replaces the limits. Requests that arrived while nothing was limited are not counted as running.
    pub(crate) fn set_config(&self, config: &AdmissionConfig) {
        self.admission.lock().set_config(config.for_admission());
    }

    /// Running requests, and waiting requests of each class.
    pub(crate) fn counts(&self) -> (u32, [usize; 3]) {
        let admission = self.admission.lock();
        (admission.running(), Class::ALL.map(|class| admission.waiting(class)))
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.counts().1.iter().sum()
    }

    /// Describes a request with this many prompt tokens to the admission queue. An API key determines the tenant; without
    /// keys, a header does.
    pub(crate) fn admission_request(
        &self,
        config: &AdmissionConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
        prompt_tokens: u32,
    ) -> AdmissionRequest {
        AdmissionRequest {
            class: self.class_of(config, headers, tenant),
            tenant: self.tenant_id(config, headers, tenant),
            cost: place_cost(prompt_tokens, Micros::ZERO),
            route: 0,
            due: None,
        }
    }

    /// The tenant of a request, as admission and limits know it.
    pub(crate) fn tenant_id(
        &self,
        config: &AdmissionConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
    ) -> u64 {
        let named = |name: &HeaderName| headers.get(name).filter(|value| !value.is_empty());
        let claimed = match &config.tenant_header.name {
            Some(name) => named(name),
            None => named(&header::AUTHORIZATION).or_else(|| named(&HeaderName::from_static("x-api-key"))),
        };
        let name = tenant.map(|tenant| tenant.name.as_bytes()).or(claimed.map(HeaderValue::as_bytes));
        name.map_or(0, |name| self.seeded_hash(name))
    }

    /// The class of a request: as it asks, up to what its key or the settings allow.
    pub(crate) fn class_of(
        &self,
        config: &AdmissionConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
    ) -> Class {
        config.priority_header.name.as_ref().map_or_else(Class::default, |header| {
            let wanted = headers.get(header).and_then(|name| name.to_str().ok()).and_then(Class::named);
            let granted = tenant.and_then(|tenant| tenant.class_max).unwrap_or(config.class_max);
            wanted.unwrap_or_default().at_most(granted)
        })
    }

    /// The route of a request for this model that can use only some workers, whose ids are those after this number of joins.
    pub(crate) fn route(&self, model: Option<&str>, usable: Usable<'_>, joins: u64) -> u64 {
        let model = model.map_or(0, |model| self.seeded_hash(model.as_bytes()));
        let group =
            usable.within.map_or(model, |group| xxh3_64_with_seed(&group.number().to_le_bytes(), model));
        let also = |route: u64, worker: &WorkerId| xxh3_64_with_seed(&worker.0.to_le_bytes(), route);
        if usable.avoid.is_empty() && usable.stored_at.is_none() {
            return group;
        }
        let start = xxh3_64_with_seed(&joins.to_le_bytes(), group);
        let only = usable.stored_at.map_or(start, |worker| also(!start, &worker));
        usable.avoid.iter().fold(only, also)
    }

    /// Hashes a name that a client may have chosen.
    fn seeded_hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed.load(Relaxed))
    }

    /// Admits the next waiting request for which there is room. Returns whether there was one.
    pub(crate) fn admit_next(&self) -> bool {
        let has_room = |waiter: &Waiter| {
            let inspect = self.router.inspect();
            let vacancy = inspect.vacancy(waiter.model.as_deref(), waiter.usable(inspect.joins()));
            self.settings.load().admission.may_wake(vacancy)
        };
        loop {
            let mut admission = self.admission.lock();
            // Nearly always none waits, which needs no clock.
            if !admission.may_have_next() {
                return false;
            }
            let now = self.clock.now();
            // A dropped request is woken. After some of them the lock passes to requests that enter or end.
            while !admission.drop_late(now) {
                MutexGuard::bump(&mut admission);
            }
            let Some(waiter) = admission.next(now, has_room) else { return false };
            drop(admission);
            if waiter.wake.send(()).is_ok() {
                return true;
            }
            // The waiter has just been dropped and cannot be woken, so its place goes to the next one.
            self.admission.lock().withdraw();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A gate with these settings before a fleet without workers.
    pub(crate) fn gate(config: Config) -> Arc<AdmissionGate> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let settings = Arc::new(Current::new(config));
        Arc::new(AdmissionGate::new(router, settings, Clock::start(), Arc::default()))
    }
}
