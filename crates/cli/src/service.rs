//! A running gateway with everything around it, for `serve` and for `demo`.
//!
//! ```text
//! discovery ──▶ roster ──▶ router.apply ◀── probe, precise (engines' events)
//!                             │
//!              clients ──▶ gateway      admin ◀── operators
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use warmroute_gateway::{Admin, Configuration, Drain, DrainMode, Drained, Gateway, Reach, serve};
use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::Router;
use warmroute_share::LeaveHandle;
use warmroute_types::WorkerState;

use crate::control::{Control, InForce, Origin};
use crate::handover::{Listeners, Opener, Purpose, address_of};
use crate::leavers::Listings;
use crate::plan::Plan;
use crate::precise::Precise;
use crate::sharing;
use crate::sources::{Followed, follow_sources};
use crate::state::{self, Keeper, Kept};

/// How often presumptions whose events must have come are withdrawn.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// How often unused connections are looked through.
const PRUNE_EVERY: Duration = Duration::from_secs(2);

/// Whoever takes another's place waits so long for all workers to be ready, and so long for any.
const ALL_READY_WITHIN: Duration = Duration::from_secs(5);
const ANY_READY_WITHIN: Duration = Duration::from_secs(30);
const READY_CHECK_EVERY: Duration = Duration::from_millis(20);

/// What is ended when the time for draining is over has so long to be told.
pub const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Clients of one that takes nobody's place wait so long for the first worker to say how it is.
const FIRST_WORD_WITHIN: Duration = Duration::from_secs(5);

/// Who is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OpenTo {
    Nobody,
    Operators,
    All,
}

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
    /// What serves.
    pub gateway: Arc<Gateway>,
    /// Its listeners once more, for a successor.
    listeners: Listeners,
    /// Which of those who connect are accepted.
    is_open: watch::Sender<OpenTo>,
    /// Whether all sources have said which workers there are.
    listings: watch::Receiver<Listings>,
    clients: JoinHandle<Drained>,
    clients_drain: Drain,
    operators_drain: Drain,
    /// Follows engines' events and talks to other routers, which only one process does.
    sole: Vec<AbortHandle>,
    /// How other routers are told that this one leaves.
    goodbye: Option<LeaveHandle>,
    /// Ends with the service.
    _background: JoinSet<()>,
}

impl Service {
    /// Starts everything, on listeners that are there already or on its own; returns when they are open. Those who connect wait until
    /// [`Service::open`].
    pub async fn start(mut plan: Plan, origin: Origin, mut inherited: Listeners) -> anyhow::Result<Service> {
        let seed = plan.sharing.as_ref().map(|sharing| sharing.seed);
        let kept = plan.state.as_deref().and_then(|path| state::read(path, &plan.router.index, seed));
        if let Some(kept) = &kept {
            // Or the same prompts would have other digests.
            plan.router.index.seed = kept.memory.seed();
        }
        let router = Arc::new(Router::with_shadows(plan.policy, plan.shadows, plan.router));
        let recorder = plan.record.map(Recorder::start).transpose().context("the record")?;
        let gateway = Gateway::new(Arc::clone(&router), plan.gateway.clone(), recorder)?;
        gateway.set_keys(plan.keys);
        if let Some(Kept { memory, away }) = kept {
            router.restore(memory, gateway.now(), away);
        }
        let mut listeners = Listeners::default();
        let clients = listen(Purpose::Clients, plan.listen, &mut inherited, &mut listeners).await?;
        let operators = listen(Purpose::Admin, plan.admin, &mut inherited, &mut listeners).await?;
        let (listening, admin) = (clients.local_addr()?, operators.local_addr()?);

        let (clients_drain, operators_drain) = (Drain::default(), Drain::default());
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
        let Followed { changed, listings } = sources;
        let control = Arc::new(Control::new(origin, Arc::clone(&gateway), changed, in_force));
        background.spawn(Arc::clone(&control).watch_files());
        let clock = Arc::clone(&gateway);
        background.spawn(warmroute_probe::run(Arc::clone(&router), plan.probe, move || clock.now()));
        keep_house(&gateway, plan.eviction_interval, &mut background);
        let (mut sole, mut goodbye): (Vec<AbortHandle>, Option<LeaveHandle>) = (Vec::new(), None);
        // What others say may be meant for feeds.
        let said = plan.sharing.is_some().then(Arc::<Notify>::default);
        if let (Some(plan), Some(said)) = (plan.sharing, said.clone()) {
            let bound = match plan.listen() {
                Some(address) => Some(listen(Purpose::Mesh, address, &mut inherited, &mut listeners).await?),
                None => None,
            };
            let begun = sharing::begin(plan, Arc::clone(&gateway), bound, said).context("sharing");
            let (conversation, leave) = begun?;
            sole.push(background.spawn(conversation));
            goodbye = Some(leave);
        }
        let reach = if admin.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
        let configuration = Arc::clone(&control) as Arc<dyn Configuration>;
        let mut page = Admin::new(Arc::clone(&gateway), configuration, reach, clients_drain.clone());
        if let Some(settings) = plan.precise {
            let bound = match settings.bind.as_deref().and_then(address_of) {
                Some(address) => {
                    let bound = listen(Purpose::Events, address, &mut inherited, &mut listeners).await;
                    Some(bound.with_context(|| format!("cannot bind kv-events-bind at tcp://{address}"))?)
                }
                None => None,
            };
            let precise = Precise::new(Arc::clone(&gateway), settings, bound).await?;
            if let Some(token) = plan.events_token {
                page = page.with_reports(Arc::new(precise.posts()), token);
            }
            sole.extend(said.map(|said| background.spawn(precise.siblings(said))));
            sole.push(background.spawn(precise.run()));
        }
        let is_open = watch::Sender::new(OpenTo::Nobody);
        let page = page.serve(operators, acceptors.operators, operators_drain.clone());
        let opened = open(&is_open, OpenTo::Operators);
        background.spawn(async move {
            opened.await;
            page.await;
        });
        let serving = serve(Arc::clone(&gateway), clients, acceptors.clients, clients_drain.clone());
        let opened = open(&is_open, OpenTo::All);
        let clients = tokio::spawn(async move {
            opened.await;
            serving.await
        });
        Ok(Service {
            listening,
            admin,
            schemes,
            router,
            control,
            gateway,
            listeners,
            is_open,
            listings,
            clients,
            clients_drain,
            operators_drain,
            sole,
            goodbye,
            _background: background,
        })
    }

    /// Accepts those who connect.
    pub fn open(&self) {
        self.is_open.send_replace(OpenTo::All);
    }

    /// Accepts operators; returns when it makes no sense to let clients wait any longer: a worker is ready, or all have been asked and
    /// none is, or it takes too long.
    pub async fn hear_workers(&self) {
        self.is_open.send_replace(OpenTo::Operators);
        let since = Instant::now();
        while since.elapsed() < FIRST_WORD_WITHIN && self.is_undecided() {
            sleep(READY_CHECK_EVERY).await;
        }
    }

    /// Nobody is ready, and somebody who may be has not been asked yet.
    fn is_undecided(&self) -> bool {
        let workers = self.router.workers();
        let is_awaited = *self.listings.borrow() == Listings::Awaited;
        let is_ready = workers.iter().any(|view| view.load.state.takes_requests());
        !is_ready && (is_awaited || workers.iter().any(|view| view.is_unprobed))
    }

    /// Returns when it can serve: all workers are ready, or after a while at least one.
    pub async fn fit_to_serve(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            let workers = self.router.workers();
            let is_ready = |state: WorkerState| state.takes_requests();
            let ready = workers.iter().filter(|view| is_ready(view.load.state)).count();
            if ready > 0 && (ready == workers.len() || since.elapsed() >= ALL_READY_WITHIN) {
                return Ok(());
            }
            anyhow::ensure!(
                since.elapsed() < ANY_READY_WITHIN,
                "no worker is ready after {ANY_READY_WITHIN:?}"
            );
            sleep(READY_CHECK_EVERY).await;
        }
    }

    /// Its listeners, for a successor; to be asked for once.
    pub fn listeners(&mut self) -> Listeners {
        std::mem::take(&mut self.listeners)
    }

    /// Leaves everything that only one process can have to a successor: whoever connects, operators, engines' events,
    /// other routers.
    pub async fn make_way(&mut self) {
        self.clients_drain.begin(DrainMode::KeepIdle);
        self.operators_drain.begin(DrainMode::KeepIdle);
        self.sole.iter().for_each(AbortHandle::abort);
        while !self.sole.iter().all(AbortHandle::is_finished) {
            sleep(READY_CHECK_EVERY).await;
        }
        // Nobody leaves: the others shall look for the successor where this one was.
        self.goodbye = None;
    }

    /// What is known, to be kept.
    pub fn keeper(&self, state: Option<PathBuf>) -> Keeper {
        Keeper::new(Arc::clone(&self.gateway), state)
    }

    /// By which clients are told to go.
    pub fn clients_drain(&self) -> Drain {
        self.clients_drain.clone()
    }

    /// Takes nothing new, and waits until everything under way has ended, or for as long as is allowed. What has not ended then is told.
    pub async fn drain(mut self, mode: DrainMode, timeout: Duration) -> anyhow::Result<()> {
        // Nobody shall connect to what nobody accepts from.
        drop(self.listeners);
        self.clients_drain.begin(mode);
        let drained = match tokio::time::timeout(timeout, &mut self.clients).await {
            Ok(drained) => drained.map(|Drained| ()).context("the gateway panicked"),
            Err(_) => {
                self.clients_drain.begin(DrainMode::Abort);
                _ = tokio::time::timeout(TOLD_WITHIN, self.clients).await;
                Err(anyhow::anyhow!("requests were still under way after {timeout:?}, and were ended"))
            }
        };
        // Last: until then the others are told what is still under way.
        if let Some(goodbye) = self.goodbye {
            goodbye.leave().await;
        }
        drained
    }
}

/// A listener that is there already, or a new one; another handle of it is kept for a successor.
async fn listen(
    purpose: Purpose,
    address: SocketAddr,
    inherited: &mut Listeners,
    kept: &mut Listeners,
) -> anyhow::Result<TcpListener> {
    let (listener, opener) = match inherited.take(purpose) {
        Some(inherited) => inherited,
        None => {
            let bound = TcpListener::bind(address).await;
            let bound = bound.with_context(|| format!("cannot listen on {address}"))?;
            (bound.into_std()?, Opener::Gateway)
        }
    };
    kept.add(purpose, listener.try_clone()?, opener);
    Ok(TcpListener::from_std(listener)?)
}

/// Returns when the service is opened to them.
fn open(is_open: &watch::Sender<OpenTo>, to: OpenTo) -> impl Future<Output = ()> + Send + use<> {
    let mut is_open = is_open.subscribe();
    async move {
        if is_open.wait_for(|&open| open >= to).await.is_err() {
            // It ended before it was opened.
            std::future::pending().await
        }
    }
}

fn keep_house(gateway: &Arc<Gateway>, eviction_interval: Duration, background: &mut JoinSet<()>) {
    background.spawn(every(PRUNE_EVERY, Arc::clone(gateway), |gateway| gateway.prune_connections()));
    let forget = |gateway: &Gateway| gateway.router().tick(gateway.now());
    background.spawn(every(eviction_interval, Arc::clone(gateway), forget));
    background.spawn(every(SETTLE_EVERY, Arc::clone(gateway), |gateway| {
        gateway.router().settle(gateway.now());
        gateway.admit_next();
    }));
}

async fn every(interval: Duration, gateway: Arc<Gateway>, work: fn(&Gateway)) {
    loop {
        tokio::time::sleep(interval).await;
        work(&gateway);
    }
}
