//! Settings of the admission gate.

use std::time::Duration;

use warmroute_admission::{Class, Limits};
use warmroute_router::Vacancy;

use crate::header_option::HeaderOption;
use crate::shares::Shares;

/// Limits on concurrent requests, on waiting requests and on each tenant's rate.
#[derive(Clone, Debug)]
pub struct AdmissionConfig {
    /// Concurrent requests; 0: no limit.
    pub running_max: u32,
    /// Whether workers have a concurrency limit. If so, requests also wait for a worker with room.
    pub worker_limit: WorkerLimit,
    /// Waiting requests. Beyond this, requests get 429.
    pub waiting_max: usize,
    /// Longest wait. After it, a request gets 429.
    pub wait_max: Duration,
    /// Longest wait for a worker while none is ready; 0: the request is refused at once.
    pub wake_max: Duration,
    /// Default budget for the time to first token; 0: none.
    pub ttft_budget: Duration,
    /// Default rate limits of one tenant.
    pub limits: Limits,
    /// Default shares of one tenant.
    pub shares: Shares,
    /// Header that names the tenant; without one the API key does.
    pub tenant_header: HeaderOption,
    /// Header that sets the priority; without one all requests have the same priority.
    pub priority_header: HeaderOption,
    /// Highest priority that a client may request, unless its key says otherwise. Without a cap every client would
    /// choose the highest.
    pub class_max: Class,
}

/// Whether workers have a concurrency limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerLimit {
    /// Workers have none.
    #[default]
    Off,
    /// The limit is `warmroute_router::Config::in_flight_max`.
    On,
}

impl AdmissionConfig {
    /// Whether a request may have to wait.
    pub(crate) fn is_limited(&self) -> bool {
        self.running_max > 0 || self.worker_limit == WorkerLimit::On || self.waits_for_workers()
    }

    /// Whether requests wait while no worker is ready.
    pub(crate) fn waits_for_workers(&self) -> bool {
        !self.wake_max.is_zero()
    }

    /// Whether a request should be routed. If not, it waits.
    pub(crate) fn may_route(&self, vacancy: Vacancy) -> bool {
        match vacancy {
            Vacancy::Full => false,
            // Otherwise routing fails, and its error tells the client why.
            Vacancy::NoWorker => !self.waits_for_workers(),
            Vacancy::Free | Vacancy::UnknownModel => true,
        }
    }

    /// Whether a waiting request should be routed. One whose model no worker lists waits on: it came when no worker was
    /// ready, and workers of other models may wake first.
    pub(crate) fn may_wake(&self, vacancy: Vacancy) -> bool {
        match vacancy {
            Vacancy::UnknownModel => !self.waits_for_workers(),
            vacancy => self.may_route(vacancy),
        }
    }

    /// The same, as the queue takes them.
    pub(crate) fn for_admission(&self) -> warmroute_admission::Config {
        warmroute_admission::Config {
            running_max: self.running_max,
            waiting_max: self.waiting_max,
            wait_max: self.wait_max.into(),
        }
    }
}

impl Default for AdmissionConfig {
    fn default() -> AdmissionConfig {
        AdmissionConfig {
            running_max: 0,
            worker_limit: WorkerLimit::Off,
            waiting_max: 100,
            wait_max: Duration::from_secs(60),
            wake_max: Duration::ZERO,
            ttft_budget: Duration::ZERO,
            limits: Limits::default(),
            shares: Shares::default(),
            tenant_header: HeaderOption::new("api-key", "api-key"),
            priority_header: HeaderOption::new("x-warmroute-priority", "off"),
            class_max: Class::Normal,
        }
    }
}
