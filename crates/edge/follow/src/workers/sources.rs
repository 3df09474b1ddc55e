//! Follows the sources of workers: the configured list, a watched file, DNS names, Kubernetes.
//!
//! Every change goes to the router. When the configuration changes the sources, all of them are read again. Workers
//! that no source lists any more drain as soon as others can replace them; those of pods that stop drain at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use warmroute_discovery::{
    Departure, DnsName, KubernetesSource, ListedWorker, Listing, SourceId, WorkerList, WorkerListChange,
    watch_dns, watch_file, watch_kubernetes,
};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};
use warmroute_types::{Address, MAX_WORKERS};

use super::departures::{Departures, Listings};
use crate::engines::Configured;

const LIST: SourceId = SourceId(0);
const FILE: SourceId = SourceId(1);

/// How often departing workers are checked for a replacement.
const DRAIN_CHECK_EVERY: Duration = Duration::from_millis(50);

/// How often workers that found the fleet full are tried again. A slot is free when the last request of its former worker
/// has ended.
const FULL_CHECK_EVERY: Duration = Duration::from_secs(1);

/// DNS names and Kubernetes sources alternate after the others, because the number of both varies.
fn dns_source(i: usize) -> SourceId {
    SourceId(2 + 2 * i)
}

fn kubernetes_source(i: usize) -> SourceId {
    SourceId(3 + 2 * i)
}

/// Where workers come from.
pub struct Sources {
    /// Workers in the configuration.
    pub listed: Vec<ListedWorker>,
    /// A file of workers to watch.
    pub file: Option<PathBuf>,
    /// Host names to resolve.
    pub dns: Vec<DnsName>,
    /// How often they are resolved.
    pub dns_refresh: Duration,
    /// Pods, Services or pools in Kubernetes.
    pub kubernetes: Vec<KubernetesSource>,
}

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            listed: Vec::new(),
            file: None,
            dns: Vec::new(),
            dns_refresh: Duration::from_secs(10),
            kubernetes: Vec::new(),
        }
    }
}

impl Sources {
    /// Whether there is no source of workers at all.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.file.is_none() && self.dns.is_empty() && self.kubernetes.is_empty()
    }
}

/// All sources and the workers they list.
struct WorkerSources {
    router: Arc<Router<Standard>>,
    configured: Configured,
    list: WorkerList,
    found: mpsc::Receiver<Listing>,
    dns_names: usize,
    kubernetes_sources: usize,
    /// Sources that have not listed their workers yet.
    pending: BTreeSet<SourceId>,
    listings: watch::Sender<Listings>,
    departures: Departures,
    /// Listed workers for which the fleet had no room.
    without_room: BTreeMap<Address, ListedWorker>,
    /// Watchers of files, DNS names and Kubernetes.
    watchers: JoinSet<()>,
}

/// Handles of the followed sources.
pub struct FollowedSources {
    /// Sending here replaces the sources.
    pub changed: mpsc::UnboundedSender<Sources>,
    /// Whether all sources have listed their workers.
    pub listings: watch::Receiver<Listings>,
}

/// Starts to follow the sources.
pub fn follow_sources(
    sources: Sources,
    router: Arc<Router<Standard>>,
    configured: Configured,
    background: &mut JoinSet<()>,
) -> FollowedSources {
    if sources.is_empty() {
        tracing::warn!(
            "no workers yet: name their URLs (warmroute serve http://HOST:8000), set --worker-file, --worker-dns or \
             --service-discovery, or add them by POST /workers"
        );
    }
    let (sender, changed) = mpsc::unbounded_channel();
    let (listings, complete) = watch::channel(Listings::Complete);
    let mut all = WorkerSources {
        router,
        configured,
        list: WorkerList::default(),
        found: mpsc::channel(1).1,
        dns_names: 0,
        kubernetes_sources: 0,
        pending: BTreeSet::new(),
        listings,
        departures: Departures::default(),
        without_room: BTreeMap::new(),
        watchers: JoinSet::new(),
    };
    // The configured list is applied first, so that a request right after the start finds its workers.
    all.follow(sources);
    background.spawn(all.run(changed));
    FollowedSources { changed: sender, listings: complete }
}

impl WorkerSources {
    async fn run(mut self, mut changed: mpsc::UnboundedReceiver<Sources>) {
        loop {
            tokio::select! {
                Some(sources) = changed.recv() => self.follow(sources),
                Some(listing) = self.found.recv() => self.update(listing),
                () = tokio::time::sleep(DRAIN_CHECK_EVERY), if !self.departures.is_empty() => {}
                () = tokio::time::sleep(FULL_CHECK_EVERY), if !self.without_room.is_empty() => {
                    self.retry_without_room();
                }
                else => return,
            }
            self.drain_departures();
        }
    }

    fn follow(&mut self, sources: Sources) {
        self.watchers.abort_all();
        let (listings, found) = mpsc::channel(16);
        // Listings of the old watchers are dropped.
        self.found = found;
        self.pending.clear();
        self.update(Listing::new(LIST, sources.listed));
        match sources.file {
            Some(file) => {
                self.pending.insert(FILE);
                self.watchers.spawn(watch_file(file, FILE, listings.clone()));
            }
            None => self.update(Listing::new(FILE, Vec::new())),
        }
        let gone_names = (sources.dns.len()..self.dns_names).map(dns_source);
        let gone_sources = (sources.kubernetes.len()..self.kubernetes_sources).map(kubernetes_source);
        for gone in gone_names.chain(gone_sources) {
            self.update(Listing::new(gone, Vec::new()));
        }
        (self.dns_names, self.kubernetes_sources) = (sources.dns.len(), sources.kubernetes.len());
        self.pending.extend((0..self.dns_names).map(dns_source));
        self.pending.extend((0..self.kubernetes_sources).map(kubernetes_source));
        for (i, source) in sources.kubernetes.into_iter().enumerate() {
            self.watchers.spawn(watch_kubernetes(source, kubernetes_source(i), listings.clone()));
        }
        for (i, host) in sources.dns.into_iter().enumerate() {
            self.watchers.spawn(watch_dns(host, sources.dns_refresh, dns_source(i), listings.clone()));
        }
        self.listings.send_replace(self.listings());
    }

    fn update(&mut self, listing: Listing) {
        self.pending.remove(&listing.source);
        let departure = listing.departure;
        let changes = self.list.update(listing);
        let joins = |address: &Address| {
            changes.iter().any(
                |change| matches!(change, WorkerListChange::Joined(listed) if listed.address == *address),
            )
        };
        // Another process has the address: nothing is left to keep until it is replaced.
        let replaced: BTreeSet<Address> = changes
            .iter()
            .filter_map(|change| match change {
                WorkerListChange::Left(address) if joins(address) => Some(address.clone()),
                _ => None,
            })
            .collect();
        for change in changes {
            match change {
                WorkerListChange::Joined(listed) => {
                    tracing::info!(worker = %listed.address, "worker added");
                    self.departures.cancel(&listed.address);
                    self.join(listed);
                }
                WorkerListChange::Updated(listed) => {
                    tracing::info!(worker = %listed.address, readiness = ?listed.readiness, "worker updated");
                    self.join(listed);
                }
                WorkerListChange::Left(address) => {
                    tracing::info!(worker = %address, "worker removed from its source");
                    self.without_room.remove(&address);
                    match departure {
                        Departure::WhenReplaced if !replaced.contains(&address) => {
                            self.departures.add(address, Instant::now());
                        }
                        _ => self.drain(address),
                    }
                }
            }
        }
        self.listings.send_replace(self.listings());
    }

    fn listings(&self) -> Listings {
        if self.pending.is_empty() { Listings::Complete } else { Listings::Pending }
    }

    fn join(&mut self, listed: ListedWorker) {
        if self.without_room.contains_key(&listed.address) {
            self.without_room.insert(listed.address.clone(), listed);
        } else if !self.try_join(&listed) {
            if self.without_room.is_empty() {
                tracing::error!(
                    worker = %listed.address,
                    workers_max = MAX_WORKERS,
                    "the fleet is full: this worker and further ones wait until others have left"
                );
            }
            self.without_room.insert(listed.address.clone(), listed);
        }
    }

    /// Gives a listed worker to the router; false if the fleet is full.
    fn try_join(&self, listed: &ListedWorker) -> bool {
        let models = listed.models.as_ref().map_or(Models::Unknown, |names| Models::named(names));
        let Ok(worker) = self.router.join(listed.address.clone(), models) else { return false };
        let url = listed.address.url.clone();
        match &listed.kv_events {
            Some(events) => _ = self.configured.write().insert(url, events.clone()),
            None => _ = self.configured.write().remove(&url),
        }
        self.router.apply(Change::Grouped { worker: Arc::clone(&worker), groups: listed.pools.clone() });
        self.router.apply(Change::Readiness { worker, readiness: listed.readiness });
        true
    }

    /// Gives the slots of workers that have left to those that found no room.
    fn retry_without_room(&mut self) {
        while let Some((address, listed)) = self.without_room.pop_first() {
            if !self.try_join(&listed) {
                self.without_room.insert(address, listed);
                return;
            }
            tracing::info!(worker = %address, "worker added: the fleet has room again");
        }
    }

    fn drain(&self, address: Address) {
        tracing::info!(worker = %address, "draining worker");
        self.router.apply(Change::Leave { address });
    }

    /// Drains the departing workers that are not needed any more.
    fn drain_departures(&mut self) {
        if self.departures.is_empty() {
            return;
        }
        for address in
            self.departures.take_ready(&self.router.inspect().workers(), self.listings(), Instant::now())
        {
            self.drain(address);
        }
    }
}
