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
use tokio::task::{JoinHandle, JoinSet};
use warmroute_gateway::{Admin, Configuration, Drain, Drained, Gateway, Reach, serve};
use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::Router;

use crate::control::{Control, InForce, Origin};
use crate::plan::Plan;
use crate::precise::Precise;
use crate::sharing;
use crate::sources::follow_sources;

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
    /// By which schemes: `http` or `https`.
    pub schemes: [&'static str; 2],
    /// Who is there.
    pub router: Arc<Router<Standard>>,
    /// By which its settings are changed.
    pub control: Arc<Control>,
    clients: JoinHandle<Drained>,
    drain: Drain,
    /// Ends with the service.
    _background: JoinSet<()>,
}

impl Service {
    /// Starts everything; returns when both listeners are open.
    pub async fn start(plan: Plan, origin: Origin) -> anyhow::Result<Service> {
        let router = Arc::new(Router::with_shadows(plan.policy, plan.shadows, plan.router));
        let recorder = plan.record.map(Recorder::start).transpose().context("the record")?;
        let gateway = Gateway::new(Arc::clone(&router), plan.gateway.clone(), recorder)?;
        gateway.set_keys(plan.keys);
        let clients = bind(plan.listen).await?;
        let operators = bind(plan.admin).await?;
        let (listening, admin) = (clients.local_addr()?, operators.local_addr()?);

        let drain = Drain::default();
        let acceptors = plan.acceptors.clone();
        let schemes = [acceptors.clients.scheme(), acceptors.operators.scheme()];
        let mut background = JoinSet::new();
        let configured =
            plan.precise.as_ref().map(|precise| Arc::clone(&precise.configured)).unwrap_or_default();
        let sources = follow_sources(plan.sources, Arc::clone(&router), configured, &mut background);
        let in_force = InForce {
            options: plan.options,
            admin_token: plan.admin_token,
            dialer: plan.gateway.dialer,
            acceptors: plan.acceptors.clone(),
        };
        let control = Arc::new(Control::new(origin, Arc::clone(&gateway), sources, in_force));
        background.spawn(Arc::clone(&control).watch_files());
        let clock = Arc::clone(&gateway);
        background.spawn(warmroute_probe::run(Arc::clone(&router), plan.probe, move || clock.now()));
        background.spawn(every(PRUNE_EVERY, Arc::clone(&gateway), |gateway| gateway.prune_connections()));
        let forget = |gateway: &Gateway| gateway.router().tick(gateway.now());
        background.spawn(every(plan.eviction_interval, Arc::clone(&gateway), forget));
        background.spawn(every(SETTLE_EVERY, Arc::clone(&gateway), |gateway| {
            gateway.router().settle(gateway.now());
            gateway.let_in();
        }));
        if let Some(plan) = plan.sharing {
            background.spawn(sharing::begin(plan, Arc::clone(&gateway))?);
        }
        let reach = if admin.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
        let configuration = Arc::clone(&control) as Arc<dyn Configuration>;
        let mut page = Admin::new(Arc::clone(&gateway), configuration, reach, drain.clone());
        if let Some(settings) = plan.precise {
            let precise = Precise::new(Arc::clone(&gateway), settings).await?;
            if let Some(token) = plan.events_token {
                page = page.with_reports(Arc::new(precise.posts()), token);
            }
            background.spawn(precise.run());
        }
        background
            .spawn(async move { _ = page.serve(operators, acceptors.operators, Drain::default()).await });
        let clients = tokio::spawn(serve(gateway, clients, acceptors.clients, drain.clone()));
        Ok(Service { listening, admin, schemes, router, control, clients, drain, _background: background })
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
