//! Probes each worker for its health, models and load.
//!
//! One small task per worker reports to the router by [`Router::apply`] and knows nothing of the gateway. A worker
//! that is not ready is probed twice a second, so that it is used again soon after it recovers. A ready worker is
//! asked for its load every second, which also proves that it is alive, and for its models now and then.

mod adapters;
mod load;
mod models;
mod sglang;
mod sleep;
mod tensorrt;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use warmroute_fleet::Worker;
use warmroute_policy::Policy;
use warmroute_router::Router;
use warmroute_types::{AT_LEAST_1, Address, BadSetting, Micros, WorkerId, check_settings};
use warmroute_wire::Dialer;

pub use adapters::{AdapterReport, read_adapters};
pub use load::{lacks_rank, read_capacity, read_load};
pub use sglang::{read_sglang_capacity, read_sglang_load};
pub use tensorrt::{TensorRtReport, is_iteration_list, read_iterations};
use worker::Probe;

/// How often probes are started and stopped to match the fleet.
const RECONCILE_EVERY: Duration = Duration::from_millis(100);

/// Probe settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path that returns 200 if an engine is healthy.
    pub health_path: String,
    /// How often a ready worker's health is checked.
    pub health_interval: Duration,
    /// How often a ready worker's load is read.
    pub load_interval: Duration,
    /// How often a worker that is not ready is probed.
    pub recovery_interval: Duration,
    /// Time limit of one probe request.
    pub timeout: Duration,
    /// How to connect to workers.
    pub dialer: Dialer,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            health_path: "/health".to_owned(),
            health_interval: Duration::from_secs(5),
            load_interval: Duration::from_secs(1),
            recovery_interval: Duration::from_millis(500),
            timeout: Duration::from_secs(2),
            dialer: Dialer::default(),
        }
    }
}

impl Config {
    /// Checks constraints that the types do not express.
    pub fn validate(&self) -> Result<(), BadSetting> {
        check_settings(&[
            ("health-check-endpoint", self.health_path.starts_with('/'), "must begin with /"),
            ("health-check-interval-secs", !self.health_interval.is_zero(), AT_LEAST_1),
            ("health-check-timeout-secs", !self.timeout.is_zero(), AT_LEAST_1),
            ("load-interval-ms", !self.load_interval.is_zero(), AT_LEAST_1),
        ])
    }
}

/// Is told each worker's problem when it changes, and `None` when a probe succeeds or the worker has left.
pub type ProblemListener = Arc<dyn Fn(&Address, Option<&str>) + Send + Sync>;

/// Probes all workers of the router until dropped. `now` is the router's clock.
pub async fn run<P>(
    router: Arc<Router<P>>,
    config: Config,
    now: impl Fn() -> Micros + Clone + Send + 'static,
    problems: ProblemListener,
) where
    P: Policy + 'static,
{
    let config = Arc::new(config);
    let mut probes: HashMap<WorkerId, ProbeTask> = HashMap::new();
    loop {
        let workers = router.inspect().workers();
        let by_id: HashMap<WorkerId, Arc<Worker>> =
            workers.into_iter().map(|view| (view.worker.id, view.worker)).collect();
        // A worker that left and joined again may have another index, and its index may belong to another worker.
        probes.retain(|id, probe| by_id.get(id) == Some(&probe.worker));
        for (id, worker) in by_id {
            probes.entry(id).or_insert_with(|| {
                let probe = Probe::new(
                    Arc::clone(&router),
                    Arc::clone(&worker),
                    Arc::clone(&config),
                    now.clone(),
                    Arc::clone(&problems),
                );
                ProbeTask { worker, task: tokio::spawn(probe.run()) }
            });
        }
        tokio::time::sleep(RECONCILE_EVERY).await;
    }
}

/// The task of a probe. Dropping it stops the task.
struct ProbeTask {
    worker: Arc<Worker>,
    task: JoinHandle<()>,
}

impl Drop for ProbeTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}
