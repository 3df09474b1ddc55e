//! One worker's probe.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_policy::Policy;
use warmroute_router::{Change, Router};
use warmroute_types::{CacheCapacity, Micros, WorkerState};

use crate::Config;
use crate::client::Client;
use crate::load::{lacks_rank, read_capacity, read_load};
use crate::models::read_models;

/// Models change rarely (an adapter is loaded): asked again this often.
const MODELS_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct Probe<P, N> {
    router: Arc<Router<P>>,
    worker: Arc<Worker>,
    config: Arc<Config>,
    client: Client,
    now: N,
    last_health: Option<Instant>,
    last_models: Option<Instant>,
    last_trouble: String,
    capacity: Option<CacheCapacity>,
}

impl<P: Policy, N: Fn() -> Micros> Probe<P, N> {
    pub(crate) fn new(
        router: Arc<Router<P>>,
        worker: Arc<Worker>,
        config: Arc<Config>,
        now: N,
    ) -> Probe<P, N> {
        let client = Client::new(&worker.address.url, config.timeout, config.dialer.clone());
        Probe {
            router,
            worker,
            config,
            client,
            now,
            last_health: None,
            last_models: None,
            last_trouble: String::new(),
            capacity: None,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            if !self.is_well() || is_due(self.last_health, self.config.health_interval) {
                self.check_health().await;
            }
            if self.is_well() {
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

    /// Ready, and nothing has been wrong since. One that may be in trouble is asked again soon, not when it is due.
    fn is_well(&self) -> bool {
        self.state() == WorkerState::Ready && self.last_trouble.is_empty()
    }

    fn state(&self) -> WorkerState {
        self.router.worker_state(self.worker.id)
    }

    /// A worker becomes ready only when its models are known, or the first requests would find nobody to serve them.
    async fn check_health(&mut self) {
        self.last_health = Some(Instant::now());
        let answer = self.client.get(&self.config.health_path).await;
        if !matches!(&answer, Ok((status, _)) if status.is_success()) {
            // Whoever comes back may serve something else.
            self.last_models = None;
            let why = answer.map_or_else(|error| error.to_string(), |(status, _)| status.to_string());
            return self.failed(&format!("health check: {why}"));
        }
        if self.last_models.is_none() {
            self.check_models().await;
        }
        if self.last_models.is_some() && self.has_rank().await {
            self.saw(ProbeResult::Answered);
        }
    }

    /// Whether the engine has the rank that this worker is. One that says nothing about ranks is believed to.
    async fn has_rank(&mut self) -> bool {
        let Some(rank) = self.worker.address.rank else { return true };
        let page = self.client.get("/metrics").await;
        let is_lacking = matches!(page, Ok((StatusCode::OK, page)) if lacks_rank(&page, rank));
        if is_lacking {
            self.failed(&format!("the engine has no rank {rank}: ranks, or --dp-size, is too large"));
        }
        !is_lacking
    }

    async fn check_models(&mut self) {
        let answer = self.client.get("/v1/models").await;
        let models = match answer {
            // The operator's word stands, so the engine's matters only as a sign of life.
            _ if self.router.models_are_given(&self.worker) => Ok(None),
            Ok((StatusCode::OK, body)) => match read_models(&body) {
                Some(names) => Ok(Some(Models::named(&names))),
                None => Err("that is no list of models".to_owned()),
            },
            // A server without a list is offered everything.
            Ok((StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, _)) => Ok(Some(Models::Any)),
            Ok((status, _)) => {
                Err(format!("{status}; say what it serves with models = [...] in [[workers]]"))
            }
            Err(error) => Err(error.to_string()),
        };
        match models {
            Ok(models) => {
                self.last_models = Some(Instant::now());
                if let Some(models) = models {
                    self.tell(Change::Serves { worker: Arc::clone(&self.worker), models });
                }
            }
            Err(why) => self.failed(&format!("GET /v1/models: {why}")),
        }
    }

    fn saw(&mut self, result: ProbeResult) {
        if result == ProbeResult::Answered {
            self.last_trouble.clear();
        }
        self.tell(Change::Probed { worker: Arc::clone(&self.worker), result, at: (self.now)() });
    }

    /// Counts against the worker. Logged once for each trouble, not twice a second.
    fn failed(&mut self, trouble: &str) {
        if self.last_trouble != trouble {
            tracing::warn!(worker = %self.worker.label, trouble, "worker is not well");
            trouble.clone_into(&mut self.last_trouble);
        }
        self.saw(ProbeResult::Failed);
    }

    async fn check_load(&mut self) {
        let page = match self.client.get("/metrics").await {
            Ok((StatusCode::OK, page)) => page,
            Ok(_) => return,
            // It may be well and slow to count; but if it is not, that should be found out soon, not when it is due.
            Err(_) => return self.last_health = None,
        };
        if self.worker.address.rank.is_some_and(|rank| lacks_rank(&page, rank)) {
            // It had it before: the engine has been restarted with fewer.
            self.last_health = None;
            return;
        }
        self.saw(ProbeResult::Answered);
        if let Some(report) = read_load(&page, self.worker.address.rank, (self.now)()) {
            self.tell(Change::Load { worker: Arc::clone(&self.worker), report });
        }
        if let Some(capacity) = read_capacity(&page).filter(|&read| self.capacity != Some(read)) {
            self.capacity = Some(capacity);
            self.tell(Change::Capacity { worker: Arc::clone(&self.worker), capacity });
        }
    }

    fn tell(&self, change: Change) {
        let before = self.state();
        self.router.apply(change).expect("only a join can find the fleet full");
        let after = self.state();
        if before != after {
            tracing::info!(worker = %self.worker.label, state = %after, "worker changed state");
        }
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}
