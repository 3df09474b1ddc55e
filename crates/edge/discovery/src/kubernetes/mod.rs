//! Kubernetes discovery: pods by label, the endpoints of a Service, or the pods of an InferencePool.
//!
//! ```text
//! API server ──list, watch──▶ Reflector ──objects──▶ worker_set ──Listing──▶ WorkerList
//!                 access          object_cache
//! ```
//!
//! `object_cache`, `worker_set` and `yaml` are pure; `reflector` does the I/O. Each change gives the whole set of workers,
//! which the [`WorkerList`](crate::WorkerList) compares with the last one: nothing depends on a single event.

mod access;
mod kubeconfig;
mod locate;
mod object_cache;
mod objects;
mod reflector;
mod worker_set;
mod yaml;

#[cfg(test)]
mod api_tests;

use std::collections::BTreeSet;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use access::{BadAccess, KubernetesAccess};
pub use worker_set::{BadPort, WorkerPort};

use crate::{Departure, ListedWorker, Listing, SourceId};
use objects::{ApiObject, EndpointSlice, InferencePool, Pod, PoolSpec};
use reflector::{Reflector, WatchTimings, Watched, encoded};
use worker_set::{ListsWorkers, UnusableObject, WorkerDefaults, worker_set};

/// Which objects list the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesTarget {
    /// Pods that match a label selector, as `kubectl -l` takes it.
    Pods {
        /// The selector.
        selector: String,
    },
    /// Endpoints of a Service.
    Service {
        /// The Service's name.
        name: String,
    },
    /// Pods of an InferencePool, on each of its target ports.
    Pool {
        /// The pool's name.
        name: String,
    },
}

/// A source of workers in one namespace, or in all.
#[derive(Clone, Debug)]
pub struct KubernetesSource {
    /// The API server.
    pub access: KubernetesAccess,
    /// What lists the workers.
    pub target: KubernetesTarget,
    /// The namespace; `None`: all of them.
    pub namespace: Option<String>,
    /// The port of the workers; `None`: the one named `http`, or the only one.
    pub port: Option<WorkerPort>,
    /// Data-parallel ranks behind each port, if it has ranks.
    pub ranks: Option<u16>,
}

/// What a source lists at one moment.
#[derive(Clone, Debug)]
pub struct KubernetesReport {
    /// The workers.
    pub workers: Vec<ListedWorker>,
    /// Objects that should be workers, and why they are none.
    pub unusable: Vec<String>,
}

impl KubernetesSource {
    /// Lists the workers once, without a second try. The error says why the API server does not list them.
    pub async fn list_once(&self) -> Result<KubernetesReport, String> {
        let defaults = self.defaults();
        match &self.target {
            KubernetesTarget::Pods { selector } => self.report::<Pod>(by_label(selector), &defaults).await,
            KubernetesTarget::Service { name } => {
                self.report::<EndpointSlice>(of_service(name), &defaults).await
            }
            KubernetesTarget::Pool { name } => {
                let mut pools = self.reflector::<InferencePool>(by_name(name), WatchTimings::default());
                pools.step().await.map_err(|failure| failure.to_string())?;
                let spec = pools.changed().await.next().map(|pool| pool.spec.clone());
                let spec = spec.ok_or_else(|| format!("there is no InferencePool named {name}"))?;
                let (filter, defaults) = of_pool(&spec, &defaults)
                    .ok_or_else(|| format!("the InferencePool {name} has no matchLabels"))?;
                self.report::<Pod>(filter, &defaults).await
            }
        }
    }

    async fn report<T: ApiObject + ListsWorkers>(
        &self,
        filter: String,
        defaults: &WorkerDefaults,
    ) -> Result<KubernetesReport, String> {
        let mut reflector = self.reflector::<T>(filter, WatchTimings::default());
        reflector.step().await.map_err(|failure| failure.to_string())?;
        let (workers, unusable) = worker_set(reflector.changed().await, defaults);
        Ok(KubernetesReport { workers, unusable: unusable.iter().map(ToString::to_string).collect() })
    }

    fn defaults(&self) -> WorkerDefaults {
        WorkerDefaults { ports: self.port.iter().cloned().collect(), ranks: self.ranks }
    }

    fn reflector<T: ApiObject>(&self, filter: String, timings: WatchTimings) -> Reflector<T> {
        let watched = Watched { namespace: self.namespace.clone(), filter };
        Reflector::new(self.access.clone(), watched, timings)
    }
}

/// Sends a listing whenever the workers change. Returns when the receiver is gone.
pub async fn watch_kubernetes(source: KubernetesSource, id: SourceId, listings: mpsc::Sender<Listing>) {
    Watcher { source, id, listings, timings: WatchTimings::default() }.run().await;
}

#[derive(Clone)]
struct Watcher {
    source: KubernetesSource,
    id: SourceId,
    listings: mpsc::Sender<Listing>,
    timings: WatchTimings,
}

impl Watcher {
    async fn run(self) {
        let closed = self.listings.clone();
        let watching = async {
            let defaults = self.source.defaults();
            match self.source.target.clone() {
                KubernetesTarget::Pods { selector } => {
                    self.follow::<Pod>(by_label(&selector), &defaults).await;
                }
                KubernetesTarget::Service { name } => {
                    self.follow::<EndpointSlice>(of_service(&name), &defaults).await;
                }
                KubernetesTarget::Pool { name } => self.follow_pool(&name, &defaults).await,
            }
        };
        tokio::select! {
            () = watching => {}
            () = closed.closed() => {}
        }
    }

    /// Follows objects that list workers.
    async fn follow<T: ApiObject + ListsWorkers>(&self, filter: String, defaults: &WorkerDefaults) {
        let mut reflector = self.source.reflector::<T>(filter, self.timings);
        let mut published = Published::default();
        loop {
            let (workers, unusable) = worker_set(reflector.changed().await, defaults);
            published.log(&unusable);
            self.publish(&mut published, workers).await;
        }
    }

    /// Follows the pods of a pool, anew whenever its selector or its ports change.
    async fn follow_pool(&self, name: &str, defaults: &WorkerDefaults) {
        let (specs, mut spec) = watch::channel(None);
        let mut pools = self.source.reflector::<InferencePool>(by_name(name), self.timings);
        let mut pool_task = JoinSet::new();
        pool_task.spawn(async move {
            loop {
                let found = pools.changed().await.next().map(|pool| pool.spec.clone());
                specs.send_if_modified(|known| {
                    let is_new = *known != Some(found.clone());
                    *known = Some(found);
                    is_new
                });
            }
        });
        while spec.changed().await.is_ok() {
            let found = spec.borrow_and_update().clone().flatten();
            tracing::info!(pool = name, is_found = found.is_some(), "read the InferencePool");
            tokio::select! {
                () = self.follow_spec(found, defaults) => {}
                _ = spec.changed() => spec.mark_changed(),
            }
        }
    }

    async fn follow_spec(&self, spec: Option<PoolSpec>, defaults: &WorkerDefaults) {
        let Some((filter, defaults)) = spec.and_then(|spec| of_pool(&spec, defaults)) else {
            self.publish(&mut Published::default(), Vec::new()).await;
            return std::future::pending().await;
        };
        self.follow::<Pod>(filter, &defaults).await;
    }

    /// Sends the workers if they differ from the last ones.
    async fn publish(&self, published: &mut Published, workers: Vec<ListedWorker>) {
        if published.workers.as_ref() != Some(&workers) {
            published.workers = Some(workers.clone());
            tracing::info!(workers = workers.len(), "workers in Kubernetes");
            let listing = Listing { source: self.id, workers, departure: Departure::AtOnce };
            _ = self.listings.send(listing).await;
        }
    }
}

fn by_label(selector: &str) -> String {
    format!("labelSelector={}", encoded(selector))
}

fn by_name(name: &str) -> String {
    format!("fieldSelector={}", encoded(&format!("metadata.name={name}")))
}

fn of_service(name: &str) -> String {
    by_label(&format!("kubernetes.io/service-name={name}"))
}

/// Which pods belong to a pool, and their ports. `None`: the pool selects nothing. An empty selector would match every pod
/// of the namespace.
fn of_pool(spec: &PoolSpec, defaults: &WorkerDefaults) -> Option<(String, WorkerDefaults)> {
    let labels = &spec.selector.match_labels;
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let ports = spec.target_ports.iter().map(|port| WorkerPort::Number(port.number)).collect();
    (!pairs.is_empty()).then(|| (by_label(&pairs.join(",")), WorkerDefaults { ports, ..defaults.clone() }))
}

/// What was sent and logged last.
#[derive(Default)]
struct Published {
    workers: Option<Vec<ListedWorker>>,
    problems: BTreeSet<String>,
}

impl Published {
    /// Logs each problem once while it lasts.
    fn log(&mut self, unusable: &[UnusableObject]) {
        let problems: BTreeSet<String> = unusable.iter().map(ToString::to_string).collect();
        for problem in problems.difference(&self.problems) {
            tracing::warn!(problem, "an object in Kubernetes is no worker");
        }
        self.problems = problems;
    }
}
