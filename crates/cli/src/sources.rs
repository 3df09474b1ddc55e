//! Where workers come from, while the gateway runs: the written list, a watched file, DNS names.
//!
//! Whatever the sources find goes to the router. An operator may name other sources; those that stay are asked anew, and
//! workers that no source lists any more drain.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmroute_discovery::{Listing, Roster, RosterChange, SourceId, watch_dns, watch_file};
use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};

use crate::plan::Sources;
use crate::precise::Configured;

const LIST: SourceId = SourceId(0);
const FILE: SourceId = SourceId(1);

/// The DNS names come last, because there may be any number.
fn name(i: usize) -> SourceId {
    SourceId(2 + i)
}

/// All sources, and what they said.
struct Desk {
    router: Arc<Router<Standard>>,
    configured: Configured,
    roster: Roster,
    heard: mpsc::Receiver<Listing>,
    names: usize,
    /// Those that watch; ended with the desk.
    watchers: JoinSet<()>,
}

/// Follows the sources; others are followed when they are sent.
pub fn follow_sources(
    sources: Sources,
    router: Arc<Router<Standard>>,
    configured: Configured,
    background: &mut JoinSet<()>,
) -> mpsc::UnboundedSender<Sources> {
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        tracing::warn!(
            "there are no workers, and nowhere to find any: give --worker-urls, a file or a DNS name"
        );
    }
    let (sender, changed) = mpsc::unbounded_channel();
    let (roster, heard, watchers) = (Roster::default(), mpsc::channel(1).1, JoinSet::new());
    let mut desk = Desk { router, configured, roster, heard, names: 0, watchers };
    // The written list counts before anything else is heard, so that a request right after the start finds it.
    desk.begin(sources);
    background.spawn(desk.run(changed));
    sender
}

impl Desk {
    async fn run(mut self, mut changed: mpsc::UnboundedReceiver<Sources>) {
        loop {
            tokio::select! {
                Some(sources) = changed.recv() => self.begin(sources),
                Some(listing) = self.heard.recv() => self.take(listing),
                else => return,
            }
        }
    }

    fn begin(&mut self, sources: Sources) {
        self.watchers.abort_all();
        let (listings, heard) = mpsc::channel(16);
        // What the old watchers have not said yet is not heard any more.
        self.heard = heard;
        self.take(Listing { source: LIST, workers: sources.listed });
        match sources.file {
            Some(file) => _ = self.watchers.spawn(watch_file(file, FILE, listings.clone())),
            None => self.take(Listing { source: FILE, workers: Vec::new() }),
        }
        let gone = sources.dns.len()..self.names;
        self.names = sources.dns.len();
        gone.for_each(|i| self.take(Listing { source: name(i), workers: Vec::new() }));
        for (i, host) in sources.dns.into_iter().enumerate() {
            self.watchers.spawn(watch_dns(host, sources.dns_refresh, name(i), listings.clone()));
        }
    }

    fn take(&mut self, listing: Listing) {
        for change in self.roster.update(listing) {
            apply(&self.router, &self.configured, change);
        }
    }
}

fn apply(router: &Router<Standard>, configured: &Configured, change: RosterChange) {
    let change = match change {
        RosterChange::Joined(listed) => {
            tracing::info!(worker = %listed.address, "worker listed");
            if let Some(events) = listed.kv_events {
                configured.write().insert(listed.address.url.clone(), events);
            }
            let models = listed.models.map_or(Models::Unknown, |names| Models::named(&names));
            Change::Join { address: listed.address, models }
        }
        RosterChange::Left(address) => {
            tracing::info!(worker = %address, "worker no longer listed: draining");
            Change::Leave { address }
        }
    };
    if let Err(full) = router.apply(change) {
        tracing::error!(%full, "worker ignored");
    }
}
