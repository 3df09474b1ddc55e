//! Asks each worker how it is: health, models, load.
//!
//! One small task a worker, which knows nothing of the gateway: it tells the router what it saw, by [`Router::apply`]. A
//! worker that is not ready is asked twice a second, so that one that recovers is used again at once; a ready one
//! is asked for its load every second (an answer to that is proof of life too) and for its models now and then.

mod client;
mod load;
mod models;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use warmroute_fleet::Worker;
use warmroute_policy::Policy;
use warmroute_router::Router;
use warmroute_types::{Micros, WorkerId};
use warmroute_wire::Dialer;

pub use client::{Client, NoAnswer};
pub use load::{read_capacity, read_load};
use worker::Probe;

/// How often the list of workers is compared with the list of probes.
const RECONCILE_EVERY: Duration = Duration::from_millis(100);

/// How often workers are asked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path that answers 200 when an engine is well.
    pub health_path: String,
    /// How often a ready worker's health is asked for.
    pub health_interval: Duration,
    /// How often a ready worker's load is asked for.
    pub load_interval: Duration,
    /// How often a worker that is not ready is asked.
    pub recovery_interval: Duration,
    /// An answer that takes longer is none.
    pub timeout: Duration,
    /// How workers are reached.
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

/// Probes every worker of the router until dropped. `now` is the router's clock.
pub async fn run<P>(router: Arc<Router<P>>, config: Config, now: impl Fn() -> Micros + Clone + Send + 'static)
where
    P: Policy + 'static,
{
    let config = Arc::new(config);
    let mut probes: HashMap<WorkerId, Running> = HashMap::new();
    loop {
        let workers = router.workers();
        let seated: HashMap<WorkerId, Arc<Worker>> =
            workers.into_iter().map(|view| (view.worker.id, view.worker)).collect();
        // A worker that left and came back may sit elsewhere, and another in its seat.
        probes.retain(|seat, running| seated.get(seat) == Some(&running.worker));
        for (seat, worker) in seated {
            probes.entry(seat).or_insert_with(|| {
                let probe =
                    Probe::new(Arc::clone(&router), Arc::clone(&worker), Arc::clone(&config), now.clone());
                Running { worker, task: tokio::spawn(probe.run()) }
            });
        }
        tokio::time::sleep(RECONCILE_EVERY).await;
    }
}

/// A probe's task; dropped, it stops.
struct Running {
    worker: Arc<Worker>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
