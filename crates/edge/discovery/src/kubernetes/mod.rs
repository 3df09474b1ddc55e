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
            let defaults = WorkerDefaults {
                ports: self.source.port.iter().cloned().collect(),
                ranks: self.source.ranks,
            };
            match self.source.target.clone() {
                KubernetesTarget::Pods { selector } => {
                    self.follow::<Pod>(by_label(&selector), &defaults).await;
                }
                KubernetesTarget::Service { name } => {
                    let of_service = by_label(&format!("kubernetes.io/service-name={name}"));
                    self.follow::<EndpointSlice>(of_service, &defaults).await;
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
        let mut reflector = self.reflector::<T>(filter);
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
        let by_name = format!("fieldSelector={}", encoded(&format!("metadata.name={name}")));
        let mut pools = self.reflector::<InferencePool>(by_name);
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
        let labels =
            spec.as_ref().map(|spec| &spec.selector.match_labels).filter(|labels| !labels.is_empty());
        let (Some(spec), Some(labels)) = (&spec, labels) else {
            // No pool, or one that selects nothing. An empty selector would match every pod of the namespace.
            self.publish(&mut Published::default(), Vec::new()).await;
            return std::future::pending().await;
        };
        let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let ports = spec.target_ports.iter().map(|port| WorkerPort::Number(port.number)).collect();
        let defaults = WorkerDefaults { ports, ..defaults.clone() };
        self.follow::<Pod>(by_label(&pairs.join(",")), &defaults).await;
    }

    fn reflector<T: ApiObject>(&self, filter: String) -> Reflector<T> {
        let watched = Watched { namespace: self.source.namespace.clone(), filter };
        Reflector::new(self.source.access.clone(), watched, self.timings)
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
