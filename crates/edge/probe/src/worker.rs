//! The probe of one worker.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_policy::Policy;
use warmroute_router::{Change, Router};
use warmroute_types::{CacheCapacity, LoadReport, Micros, WorkerState};
use warmroute_wire::HttpClient;

use crate::adapters::read_adapters;
use crate::load::{lacks_rank, read_capacity, read_load};
use crate::models::{names_of, read_models};
use crate::sglang::{read_sglang_capacity, read_sglang_load};
use crate::sleep::read_sleep;
use crate::tensorrt::{is_iteration_list, read_iterations};
use crate::{Config, ProblemListener};

/// How often models are read again. They change rarely, when an adapter is loaded.
const MODELS_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct Probe<P, N> {
    router: Arc<Router<P>>,
    worker: Arc<Worker>,
    config: Arc<Config>,
    client: HttpClient,
    now: N,
    last_health: Option<Instant>,
    last_models: Option<Instant>,
    last_problem: String,
    problems: ProblemListener,
    /// Whether the engine answers `/is_sleeping`; `None`: not asked since it started.
    can_sleep: Option<bool>,
    capacity: Option<CacheCapacity>,
    /// Where an engine without a page of metrics tells its load; `None`: not asked since it started.
    load_path: Option<LoadPath>,
}

/// The page of an engine's load, if `/metrics` is none.
#[derive(Clone, Copy, PartialEq)]
enum LoadPath {
    /// SGLang's, since 0.5.
    Loads,
    /// SGLang's before that.
    GetLoad,
    /// The engine has none.
    None,
}

impl LoadPath {
    const fn path(self) -> Option<&'static str> {
        match self {
            LoadPath::Loads => Some("/v1/loads?include=core"),
            LoadPath::GetLoad => Some("/get_load"),
            LoadPath::None => None,
        }
    }
}

impl<P: Policy, N: Fn() -> Micros> Probe<P, N> {
    pub(crate) fn new(
        router: Arc<Router<P>>,
        worker: Arc<Worker>,
        config: Arc<Config>,
        now: N,
        problems: ProblemListener,
    ) -> Probe<P, N> {
        let client = HttpClient::new(&worker.address.url, config.timeout, config.dialer.clone());
        Probe {
            router,
            worker,
            config,
            client,
            now,
            last_health: None,
            last_models: None,
            last_problem: String::new(),
            problems,
            can_sleep: None,
            capacity: None,
            load_path: None,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            if !self.is_well() || is_due(self.last_health, self.config.health_interval) {
                self.check_health().await;
            }
            if self.is_serving() {
                self.check_load().await;
                if is_due(self.last_models, MODELS_INTERVAL) {
                    self.check_models().await;
                }
            }
            sleep(self.pause()).await;
        }
    }

    fn pause(&self) -> Duration {
        match self.is_well() && self.last_health.is_some() {
            true => self.config.load_interval.min(self.config.health_interval),
            false => self.config.recovery_interval,
        }
    }

    /// Whether the worker is ready and its last probe succeeded. Otherwise it is probed again soon, not at its
    /// interval.
    fn is_well(&self) -> bool {
        self.state() == WorkerState::Ready && self.last_problem.is_empty()
    }

    /// Whether the worker may get requests, if only one for trial, and its last probe succeeded.
    fn is_serving(&self) -> bool {
        self.state().takes_requests() && self.last_problem.is_empty()
    }

    fn state(&self) -> WorkerState {
        self.router.inspect().worker_state(self.worker.id)
    }

    /// Checks the health. A worker becomes ready only when its models are known, or its first requests would find no
    /// model.
    async fn check_health(&mut self) {
        self.last_health = Some(Instant::now());
        if self.state() == WorkerState::Starting {
            // It may have left and joined again, and what was learned was forgotten.
            self.forget_process();
            self.capacity = None;
        }
        let response = self.client.get(&self.config.health_path).await;
        if matches!(&response, Err(error) if error.is_own_shortage()) {
            return tracing::warn!(worker = %self.worker.label, "cannot probe: this process is out of files or ports");
        }
        if !matches!(&response, Ok((status, _)) if status.is_success()) {
            self.forget_process();
            let why = response.map_or_else(|error| error.to_string(), |(status, _)| status.to_string());
            return self.report_failure(&format!("health check: {why}"));
        }
        if self.last_models.is_none() {
            self.check_models().await;
        }
        if self.last_models.is_some() && self.has_rank().await {
            let result = if self.is_asleep().await { ProbeResult::Asleep } else { ProbeResult::Answered };
            self.report(result);
        }
    }

    /// The next answer may come from another process, which may serve other models.
    fn forget_process(&mut self) {
        self.last_models = None;
        self.can_sleep = None;
        self.load_path = None;
    }

    /// Whether the engine sleeps. vLLM answers `/health` then, but no request; an engine without sleep mode has no such
    /// path and is asked once.
    async fn is_asleep(&mut self) -> bool {
        if self.can_sleep == Some(false) {
            return false;
        }
        let answer = match self.client.get("/is_sleeping").await {
            Ok((StatusCode::OK, body)) => read_sleep(&body),
            Ok((StatusCode::TOO_MANY_REQUESTS, _)) | Err(_) => return false,
            Ok(_) => None,
        };
        self.can_sleep = Some(answer.is_some());
        answer == Some(true)
    }

    /// Whether the engine has this worker's rank. Engines that list no ranks are assumed to.
    async fn has_rank(&mut self) -> bool {
        let Some(rank) = self.worker.address.rank else { return true };
        let page = self.client.get("/metrics").await;
        let is_lacking = matches!(page, Ok((StatusCode::OK, page)) if lacks_rank(&page, rank));
        if is_lacking {
            self.report_failure(&format!("the engine has no rank {rank}: reduce ranks, or --dp-size"));
        }
        !is_lacking
    }

    async fn check_models(&mut self) {
        let response = self.client.get("/v1/models").await;
        if let Ok((StatusCode::OK, body)) = &response
            && let Some(cards) = read_models(body)
        {
            self.apply(Change::ModelCards { worker: Arc::clone(&self.worker), cards });
        }
        let models = match response {
            // Configured models take precedence, so the engine's list only proves that it is alive.
            _ if self.router.inspect().models_are_given(&self.worker) => Ok(None),
            Ok((StatusCode::OK, body)) => match read_models(&body) {
                Some(cards) => Ok(Some(names_of(&cards))),
                None => Err("not a list of models".to_owned()),
            },
            // A server without a list gets requests for all models.
            Ok((StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, _)) => Ok(Some(Models::Any)),
            Ok((status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _)) => {
                Err(format!("{status}; the engine requires an API key: set worker-api-key"))
            }
            Ok((status, _)) => Err(format!("{status}; list the models with models = [...] in [[workers]]")),
            Err(error) if error.is_own_shortage() => return,
            Err(error) => Err(error.to_string()),
        };
        match models {
            Ok(models) => {
                self.last_models = Some(Instant::now());
                if let Some(models) = models {
                    self.apply(Change::Serves { worker: Arc::clone(&self.worker), models });
                }
            }
            Err(why) => self.report_failure(&format!("GET /v1/models: {why}")),
        }
    }

    fn report(&mut self, result: ProbeResult) {
        if result != ProbeResult::Failed && !self.last_problem.is_empty() {
            self.last_problem.clear();
            (self.problems)(&self.worker.address, None);
        }
        self.apply(Change::Probed { worker: Arc::clone(&self.worker), result, at: (self.now)() });
    }

    /// Reports a failed probe. A problem is logged once, not at every probe.
    fn report_failure(&mut self, problem: &str) {
        if self.last_problem != problem {
            tracing::warn!(worker = %self.worker.label, problem, "worker probe failed");
            problem.clone_into(&mut self.last_problem);
            (self.problems)(&self.worker.address, Some(problem));
        }
        self.report(ProbeResult::Failed);
    }

    async fn check_load(&mut self) {
        let page = match self.client.get("/metrics").await {
            Ok((StatusCode::OK, page)) => page,
            Ok(_) => return self.check_load_without_metrics().await,
            // The engine may only be slow to produce metrics. A health check at the next turn tells.
            Err(_) => return self.last_health = None,
        };
        if self.worker.address.rank.is_some_and(|rank| lacks_rank(&page, rank)) {
            // The engine was restarted with fewer ranks.
            self.last_health = None;
            return;
        }
        if self.can_sleep == Some(true) && self.is_asleep().await {
            return self.report(ProbeResult::Asleep);
        }
        self.report(ProbeResult::Answered);
        let (rank, at) = (self.worker.address.rank, (self.now)());
        if is_iteration_list(&page) {
            let report = read_iterations(&page, rank, at);
            return report.into_iter().for_each(|report| self.apply_load(Some(report.load), report.capacity));
        }
        self.apply_load(read_load(&page, rank, at), read_capacity(&page, rank));
        if let Some(report) = read_adapters(&page) {
            let (worker, slots) = (Arc::clone(&self.worker), report.slots);
            self.apply(Change::Adapters { worker, names: report.names, slots });
        }
    }

    /// Reads the load of an SGLang without `--enable-metrics`, and the size of its cache.
    async fn check_load_without_metrics(&mut self) {
        if self.load_path.is_none() {
            self.load_path = Some(self.find_load_path().await);
            self.check_capacity().await;
        }
        let Some(path) = self.load_path.and_then(LoadPath::path) else { return };
        if let Ok((StatusCode::OK, page)) = self.client.get(path).await {
            let report = read_sglang_load(&page, self.worker.address.rank, (self.now)());
            self.apply_load(report, None);
        }
    }

    async fn find_load_path(&mut self) -> LoadPath {
        for path in [LoadPath::Loads, LoadPath::GetLoad] {
            let page = self.client.get(path.path().unwrap_or_default()).await;
            if matches!(page, Ok((StatusCode::OK, page)) if read_sglang_load(&page, None, Micros(1)).is_some())
            {
                return path;
            }
        }
        LoadPath::None
    }

    async fn check_capacity(&mut self) {
        for path in ["/server_info", "/get_server_info"] {
            if let Ok((StatusCode::OK, page)) = self.client.get(path).await {
                let capacity = read_sglang_capacity(&page, self.worker.address.rank);
                return self.apply_load(None, capacity);
            }
        }
    }

    fn apply_load(&mut self, report: Option<LoadReport>, capacity: Option<CacheCapacity>) {
        if let Some(report) = report {
            self.apply(Change::Load { worker: Arc::clone(&self.worker), report });
        }
        if let Some(capacity) = capacity.filter(|&read| self.capacity != Some(read)) {
            self.capacity = Some(capacity);
            self.apply(Change::Capacity { worker: Arc::clone(&self.worker), capacity });
        }
    }

    fn apply(&self, change: Change) {
        let before = self.state();
        self.router.apply(change);
        let after = self.state();
        if before != after {
            tracing::info!(worker = %self.worker.label, state = %after, "worker changed state");
        }
    }
}

impl<P, N> Drop for Probe<P, N> {
    fn drop(&mut self) {
        (self.problems)(&self.worker.address, None);
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}
