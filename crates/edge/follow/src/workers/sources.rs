//! Follows the sources of workers: the configured list, a watched file, DNS names.
//!
//! Every change goes to the router. When the configuration changes the sources, all of them are read again. Workers
//! that no source lists any more drain as soon as others can replace them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use warmroute_discovery::{
    DnsName, ListedWorker, Listing, SourceId, WorkerList, WorkerListChange, watch_dns, watch_file,
};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};

use super::departures::{Departures, Listings};
use crate::engines::Configured;

const LIST: SourceId = SourceId(0);
const FILE: SourceId = SourceId(1);

/// How often departing workers are checked for a replacement.
const DRAIN_CHECK_EVERY: Duration = Duration::from_millis(50);

/// DNS names come last, because their number varies.
fn dns_source(i: usize) -> SourceId {
    SourceId(2 + i)
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
}

/// All sources and the workers they list.
struct WorkerSources {
    router: Arc<Router<Standard>>,
    configured: Configured,
    list: WorkerList,
    found: mpsc::Receiver<Listing>,
    dns_names: usize,
    /// Sources that have not listed their workers yet.
    pending: BTreeSet<SourceId>,
    listings: watch::Sender<Listings>,
    departures: Departures,
    /// Watchers of files and DNS names.
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
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        tracing::warn!("no workers configured: set --worker-urls, --worker-file or --worker-dns");
    }
    let (sender, changed) = mpsc::unbounded_channel();
    let (listings, complete) = watch::channel(Listings::Complete);
    let mut all = WorkerSources {
        router,
        configured,
        list: WorkerList::default(),
        found: mpsc::channel(1).1,
        dns_names: 0,
        pending: BTreeSet::new(),
        listings,
        departures: Departures::default(),
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
        self.update(Listing { source: LIST, workers: sources.listed });
        match sources.file {
            Some(file) => {
                self.pending.insert(FILE);
                self.watchers.spawn(watch_file(file, FILE, listings.clone()));
            }
            None => self.update(Listing { source: FILE, workers: Vec::new() }),
        }
        let gone = sources.dns.len()..self.dns_names;
        self.dns_names = sources.dns.len();
        gone.for_each(|i| self.update(Listing { source: dns_source(i), workers: Vec::new() }));
        self.pending.extend((0..self.dns_names).map(dns_source));
        for (i, host) in sources.dns.into_iter().enumerate() {
            self.watchers.spawn(watch_dns(host, sources.dns_refresh, dns_source(i), listings.clone()));
        }
        self.listings.send_replace(self.listings());
    }

    fn update(&mut self, listing: Listing) {
        self.pending.remove(&listing.source);
        for change in self.list.update(listing) {
            match change {
                WorkerListChange::Joined(listed) => {
                    self.departures.cancel(&listed.address);
                    self.join(listed);
                }
                WorkerListChange::Left(address) => {
                    tracing::info!(worker = %address, "worker removed from its source");
                    self.departures.add(address, Instant::now());
                }
            }
        }
        self.listings.send_replace(self.listings());
    }

    fn listings(&self) -> Listings {
        if self.pending.is_empty() { Listings::Complete } else { Listings::Pending }
    }

    fn join(&self, listed: ListedWorker) {
        tracing::info!(worker = %listed.address, "worker added");
        if let Some(events) = listed.kv_events {
            self.configured.write().insert(listed.address.url.clone(), events);
        }
        let models = listed.models.map_or(Models::Unknown, |names| Models::named(&names));
        if let Err(full) = self.router.join(listed.address, models) {
            tracing::error!(%full, "worker ignored: the fleet is full");
        }
    }

    /// Drains the departing workers that are not needed any more.
    fn drain_departures(&mut self) {
        if self.departures.is_empty() {
            return;
        }
        for address in
            self.departures.take_ready(&self.router.inspect().workers(), self.listings(), Instant::now())
        {
            tracing::info!(worker = %address, "draining worker");
            self.router.apply(Change::Leave { address });
        }
    }
}
