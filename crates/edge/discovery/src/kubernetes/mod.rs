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
use reflector::{Failure, Reflector, WatchTimings, Watched, encoded};
use worker_set::{ListsWorkers, UnusableObject, WorkerDefaults, worker_set};

/// Which objects list the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesTarget {
    /// Pods that match a label selector, as `kubectl -l` takes it.
    Pods {
        /// Labels as `kubectl -l` takes them, such as `app=vllm`.
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
    /// The pool to which the workers belong, for an endpoint picker with several.
    pub pool: Option<String>,
}

/// Why a source cannot be listed, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct KubernetesProblem {
    /// The cause.
    pub why: String,
    /// What to change.
    pub remedy: &'static str,
}

impl From<Failure> for KubernetesProblem {
    fn from(failure: Failure) -> KubernetesProblem {
        KubernetesProblem { why: failure.to_string(), remedy: failure.remedy() }
    }
}

/// What a source lists at one moment.
#[derive(Clone, Debug)]
pub struct KubernetesReport {
    /// Pods and endpoints that are workers, ready or not.
    pub workers: Vec<ListedWorker>,
    /// Objects that should be workers, and why they are none.
    pub unusable: Vec<String>,
    /// Why the objects cannot be watched. Changes are then found by lists, seconds later.
    pub unwatched: Vec<String>,
}

impl KubernetesSource {
    /// Lists the workers once and opens a watch, without a second try. The error says why the API server does not list
    /// them.
    pub async fn list_once(&self) -> Result<KubernetesReport, KubernetesProblem> {
        let defaults = self.defaults();
        match &self.target {
            KubernetesTarget::Pods { selector } => self.report::<Pod>(by_label(selector), &defaults).await,
            KubernetesTarget::Service { name } => {
                self.report::<EndpointSlice>(of_service(name), &defaults).await
            }
            KubernetesTarget::Pool { name } => {
                let mut pools = self.reflector::<InferencePool>(by_name(name), WatchTimings::default());
                pools.step().await?;
                let spec = pools.changed().await.next().map(|pool| pool.spec.clone());
                let spec = spec.ok_or_else(|| KubernetesProblem {
                    why: format!("there is no InferencePool named {name}"),
                    remedy: "create it, or correct service-discovery-pool; kubectl get inferencepools -A lists them",
                })?;
                let (filter, defaults) = of_pool(&spec, &defaults).ok_or_else(|| KubernetesProblem {
                    why: format!("the InferencePool {name} has no matchLabels"),
                    remedy: "set spec.selector.matchLabels to the labels of its pods",
                })?;
                let unwatched = pools.step().await.err().map(|failure| failure.to_string());
                let mut report = self.report::<Pod>(filter, &defaults).await?;
                report.unwatched.extend(unwatched);
                Ok(report)
            }
        }
    }

    async fn report<T: ApiObject + ListsWorkers>(
        &self,
        filter: String,
        defaults: &WorkerDefaults,
    ) -> Result<KubernetesReport, KubernetesProblem> {
        let mut reflector = self.reflector::<T>(filter, WatchTimings::default());
        reflector.step().await?;
        let (workers, unusable) = worker_set(reflector.changed().await, defaults);
        let unusable = unusable.iter().map(ToString::to_string).collect();
        // After a list, the next step opens the watch.
        let unwatched = reflector.step().await.err().map(|failure| failure.to_string());
        Ok(KubernetesReport { workers, unusable, unwatched: unwatched.into_iter().collect() })
    }

    fn defaults(&self) -> WorkerDefaults {
        WorkerDefaults {
            ports: self.port.iter().cloned().collect(),
            ranks: self.ranks,
            pool: self.pool.clone(),
        }
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
            match &found {
                None => tracing::warn!(
                    pool = name,
                    "there is no InferencePool of this name, so it has no workers: create it, or correct service-discovery-pool"
                ),
                Some(spec) if spec.selector.match_labels.is_empty() => {
                    tracing::warn!(pool = name, "the InferencePool has no matchLabels and selects no pods");
                }
                Some(_) => tracing::info!(pool = name, "read the InferencePool"),
            }
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
            // The pods of an earlier selector still run, and those of the new one may not have been probed yet.
            let is_first = published.workers.replace(workers.clone()).is_none();
            let departure = if is_first { Departure::WhenReplaced } else { Departure::AtOnce };
            tracing::info!(workers = workers.len(), "workers in Kubernetes");
            let listing = Listing { source: self.id, workers, departure };
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
