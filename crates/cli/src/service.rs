//! A running gateway with everything around it, for `serve` and for `demo`.
//!
//! ```text
//! discovery ──▶ roster ──▶ router.apply ◀── probe, precise (engines' events)
//!                             │
//!              clients ──▶ gateway      admin ◀── operators
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use warmroute_discovery::{Listing, Roster, RosterChange, SourceId, watch_dns, watch_file};
use warmroute_fleet::Models;
use warmroute_gateway::{Admin, Drain, Drained, Gateway, serve};
use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::{Change, Router};

use crate::plan::{Plan, Sources};
use crate::precise::{Configured, Precise};

/// How often presumptions whose events must have come are withdrawn.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// How often unused connections are looked through.
const PRUNE_EVERY: Duration = Duration::from_secs(2);

/// A gateway that runs. Dropped, everything stops at once.
pub struct Service {
    /// Where clients find it.
    pub listening: SocketAddr,
    /// Where operators find it.
    pub admin: SocketAddr,
    /// Who is there.
    pub router: Arc<Router<Standard>>,
    clients: JoinHandle<Drained>,
    drain: Drain,
    /// Ends with the service.
    _background: JoinSet<()>,
}

impl Service {
    /// Starts everything; returns when both listeners are open.
    pub async fn start(plan: Plan) -> anyhow::Result<Service> {
        let config = serde_json::to_value(&plan.options).context("the configuration as JSON")?;
        let router = Arc::new(Router::with_shadows(plan.policy, plan.shadows, plan.router));
        let recorder = plan.record.map(Recorder::start).transpose().context("the record")?;
        let gateway = Gateway::new(Arc::clone(&router), plan.gateway, recorder)?;
        let clients = bind(plan.listen).await?;
        let operators = bind(plan.admin).await?;
        let (listening, admin) = (clients.local_addr()?, operators.local_addr()?);

        let drain = Drain::default();
        let mut background = JoinSet::new();
        let configured =
            plan.precise.as_ref().map(|precise| Arc::clone(&precise.configured)).unwrap_or_default();
        discover(plan.sources, Arc::clone(&router), configured, &mut background);
        let clock = Arc::clone(&gateway);
        background.spawn(warmroute_probe::run(Arc::clone(&router), plan.probe, move || clock.now()));
        background.spawn(every(PRUNE_EVERY, Arc::clone(&gateway), |gateway| gateway.prune_connections()));
        let forget = |gateway: &Gateway| gateway.router().tick(gateway.now());
        background.spawn(every(plan.eviction_interval, Arc::clone(&gateway), forget));
        background.spawn(every(SETTLE_EVERY, Arc::clone(&gateway), |gateway| {
            gateway.router().settle(gateway.now());
            gateway.let_in();
        }));
        let mut page = Admin::new(Arc::clone(&gateway), config, drain.clone());
        if let Some(settings) = plan.precise {
            let precise = Precise::new(Arc::clone(&gateway), settings).await?;
            if let Some(token) = &plan.events_token {
                page = page.with_reports(Arc::new(precise.posts()), token);
            }
            background.spawn(precise.run());
        }
        background.spawn(async move { _ = page.serve(operators, Drain::default()).await });
        let clients = tokio::spawn(serve(gateway, clients, drain.clone()));
        Ok(Service { listening, admin, router, clients, drain, _background: background })
    }

    /// Takes nothing new, and waits until everything under way has ended, or for as long as is allowed.
    pub async fn drain(self, timeout: Duration) -> anyhow::Result<()> {
        self.drain.begin();
        match tokio::time::timeout(timeout, self.clients).await {
            Ok(drained) => drained.map(|Drained| ()).context("the gateway panicked"),
            Err(_) => anyhow::bail!("requests were still under way after {timeout:?}"),
        }
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

async fn every(interval: Duration, gateway: Arc<Gateway>, work: fn(&Gateway)) {
    loop {
        tokio::time::sleep(interval).await;
        work(&gateway);
    }
}

/// Starts the sources, and lets the router know whatever they find.
fn discover(
    sources: Sources,
    router: Arc<Router<Standard>>,
    configured: Configured,
    background: &mut JoinSet<()>,
) {
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        tracing::warn!(
            "there are no workers, and nowhere to find any: give --worker-urls, a file or a DNS name"
        );
    }
    let (listings, mut heard) = mpsc::channel(16);
    // The written list counts before anything else is heard, so that a request right after the start finds it.
    let mut roster = Roster::default();
    apply(&router, &configured, roster.update(Listing { source: SourceId(0), workers: sources.listed }));
    if let Some(file) = sources.file {
        background.spawn(watch_file(file, SourceId(1), listings.clone()));
    }
    for (i, name) in sources.dns.into_iter().enumerate() {
        background.spawn(watch_dns(name, sources.dns_refresh, SourceId(2 + i), listings.clone()));
    }
    background.spawn(async move {
        while let Some(listing) = heard.recv().await {
            apply(&router, &configured, roster.update(listing));
        }
    });
}

fn apply(router: &Router<Standard>, configured: &Configured, changes: Vec<RosterChange>) {
    for change in changes {
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
}
