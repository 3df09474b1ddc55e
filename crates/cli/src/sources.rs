//! Where workers come from, while the gateway runs: the written list, a watched file, DNS names.
//!
//! Whatever the sources find goes to the router. An operator may name other sources; those that stay are asked anew, and
//! workers that no source lists any more drain, as soon as they can be spared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use warmroute_discovery::{
    ListedWorker, Listing, SourceId, WorkerList, WorkerListChange, watch_dns, watch_file,
};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};

use crate::leavers::{Leavers, Listings};
use crate::plan::Sources;
use crate::precise::Configured;

const LIST: SourceId = SourceId(0);
const FILE: SourceId = SourceId(1);

/// How often it is looked whether those that go can be spared.
const SPARE_EVERY: Duration = Duration::from_millis(50);

/// The DNS names come last, because there may be any number.
fn name(i: usize) -> SourceId {
    SourceId(2 + i)
}

/// All sources, and what they said.
struct Desk {
    router: Arc<Router<Standard>>,
    configured: Configured,
    roster: WorkerList,
    heard: mpsc::Receiver<Listing>,
    names: usize,
    /// Those that have not said anything yet.
    awaited: BTreeSet<SourceId>,
    listings: watch::Sender<Listings>,
    leavers: Leavers,
    /// Those that watch; ended with the desk.
    watchers: JoinSet<()>,
}

/// Sources that are followed.
pub struct Followed {
    /// Others are followed when they are sent here.
    pub changed: mpsc::UnboundedSender<Sources>,
    /// Whether all have said whom they list.
    pub listings: watch::Receiver<Listings>,
}

/// Follows the sources.
pub fn follow_sources(
    sources: Sources,
    router: Arc<Router<Standard>>,
    configured: Configured,
    background: &mut JoinSet<()>,
) -> Followed {
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        tracing::warn!("no workers configured: set --worker-urls, --worker-file or --worker-dns");
    }
    let (sender, changed) = mpsc::unbounded_channel();
    let (listings, all_heard) = watch::channel(Listings::Complete);
    let mut desk = Desk {
        router,
        configured,
        roster: WorkerList::default(),
        heard: mpsc::channel(1).1,
        names: 0,
        awaited: BTreeSet::new(),
        listings,
        leavers: Leavers::default(),
        watchers: JoinSet::new(),
    };
    // The written list counts before anything else is heard, so that a request right after the start finds it.
    desk.begin(sources);
    background.spawn(desk.run(changed));
    Followed { changed: sender, listings: all_heard }
}

impl Desk {
    async fn run(mut self, mut changed: mpsc::UnboundedReceiver<Sources>) {
        loop {
            tokio::select! {
                Some(sources) = changed.recv() => self.begin(sources),
                Some(listing) = self.heard.recv() => self.take(listing),
                () = tokio::time::sleep(SPARE_EVERY), if !self.leavers.is_empty() => {}
                else => return,
            }
            self.let_go();
        }
    }

    fn begin(&mut self, sources: Sources) {
        self.watchers.abort_all();
        let (listings, heard) = mpsc::channel(16);
        // What the old watchers have not said yet is not heard any more.
        self.heard = heard;
        self.awaited.clear();
        self.take(Listing { source: LIST, workers: sources.listed });
        match sources.file {
            Some(file) => {
                self.awaited.insert(FILE);
                self.watchers.spawn(watch_file(file, FILE, listings.clone()));
            }
            None => self.take(Listing { source: FILE, workers: Vec::new() }),
        }
        let gone = sources.dns.len()..self.names;
        self.names = sources.dns.len();
        gone.for_each(|i| self.take(Listing { source: name(i), workers: Vec::new() }));
        self.awaited.extend((0..self.names).map(name));
        for (i, host) in sources.dns.into_iter().enumerate() {
            self.watchers.spawn(watch_dns(host, sources.dns_refresh, name(i), listings.clone()));
        }
        self.listings.send_replace(self.listings());
    }

    fn take(&mut self, listing: Listing) {
        self.awaited.remove(&listing.source);
        for change in self.roster.update(listing) {
            match change {
                WorkerListChange::Joined(listed) => {
                    self.leavers.call_back(&listed.address);
                    self.join(listed);
                }
                WorkerListChange::Left(address) => {
                    tracing::info!(worker = %address, "worker removed from its source");
                    self.leavers.add(address, Instant::now());
                }
            }
        }
        self.listings.send_replace(self.listings());
    }

    fn listings(&self) -> Listings {
        if self.awaited.is_empty() { Listings::Complete } else { Listings::Awaited }
    }

    fn join(&self, listed: ListedWorker) {
        tracing::info!(worker = %listed.address, "worker added");
        if let Some(events) = listed.kv_events {
            self.configured.write().insert(listed.address.url.clone(), events);
        }
        let models = listed.models.map_or(Models::Unknown, |names| Models::named(&names));
        self.apply(Change::Join { address: listed.address, models });
    }

    /// Lets those drain that can be spared.
    fn let_go(&mut self) {
        if self.leavers.is_empty() {
            return;
        }
        for address in self.leavers.let_go(&self.router.workers(), self.listings(), Instant::now()) {
            tracing::info!(worker = %address, "draining worker");
            self.apply(Change::Leave { address });
        }
    }

    fn apply(&self, change: Change) {
        if let Err(full) = self.router.apply(change) {
            tracing::error!(%full, "worker ignored: the fleet is full");
        }
    }
}
