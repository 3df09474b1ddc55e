//! A running gateway with everything around it, for `serve` and for `demo`.
//!
//! ```text
//! discovery ──▶ worker list ──▶ router.apply ◀── probe, precise (engines' events)
//!                                  │
//!                   clients ──▶ gateway      admin ◀── operators
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use warmroute_follow::{
    EngineFollower, FollowSettings, FollowedSources, Listings, ReportEndpoint, SharePlan, Sources,
    exchange_with_peers, follow_sources,
};
use warmroute_gateway::{
    Admin, Configuration, Drain, DrainMode, Drained, Gateway, Reach, Records, Serving, serve,
};
use warmroute_otel::Tracer;
use warmroute_picker::PoolListener;
use warmroute_policy::Standard;
use warmroute_record::{AccessLog, Recorder};
use warmroute_router::{Change, Router};
use warmroute_share::LeaveHandle;
use warmroute_types::{Address, WorkerState};
use warmroute_wire::{Acceptor, long_work};

use crate::control::{ConfigReader, Control, InForce};
use crate::file_limit::connections_within_limit;
use crate::fingerprints::Fingerprints;
use crate::handover::{Listeners, Opener, Purpose, address_of};
use crate::listen_error::listen_error;
use crate::plan::{Acceptors, PickerPlan, Plan};
use crate::saved_state::{self, AgedState, StateWriter};

/// How often presumed entries whose events must have arrived are withdrawn.
const SETTLE_EVERY: Duration = Duration::from_millis(250);

/// How often idle upstream connections are pruned.
const PRUNE_EVERY: Duration = Duration::from_secs(2);

/// How long a successor waits for all workers to be ready, and for any worker.
const ALL_READY_WITHIN: Duration = Duration::from_secs(5);
const ANY_READY_WITHIN: Duration = Duration::from_secs(30);
const READY_CHECK_EVERY: Duration = Duration::from_millis(20);

/// How long aborted requests have to send their error after the drain timeout.
pub(crate) const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the collector may take for the last traces.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// How long clients wait at startup for the first ready worker. Not used for a handover.
const FIRST_WORKER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whose connections are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OpenTo {
    None,
    Operators,
    All,
}

/// An address of the endpoint picker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickerAddress {
    /// The pool whose workers it gives; `None`: all workers.
    pub pool: Option<String>,
    /// Where it listens; the port is the one that was bound.
    pub address: SocketAddr,
}

impl PickerAddress {
    fn of(listening: &PoolListener) -> std::io::Result<PickerAddress> {
        Ok(PickerAddress { pool: listening.pool.clone(), address: listening.listener.local_addr()? })
    }
}

/// A running gateway. Dropping it stops everything at once.
pub struct Service<C: ConfigReader> {
    /// The client listener's address.
    pub listening: SocketAddr,
    /// The admin listener's address.
    pub admin: SocketAddr,
    /// The endpoint picker's addresses, if there is one.
    pub picker: Vec<PickerAddress>,
    /// The schemes of the two listeners: `http` or `https`.
    pub schemes: [&'static str; 2],
    /// The routing core.
    pub router: Arc<Router<Standard>>,
    /// Reloads settings.
    pub(crate) control: Arc<Control<C>>,
    pub(crate) gateway: Arc<Gateway>,
    /// Second handles of the listeners, for a successor.
    listeners: Listeners,
    /// Whose connections are accepted.
    is_open: watch::Sender<OpenTo>,
    /// Whether all sources have listed their workers.
    listings: watch::Receiver<Listings>,
    clients: JoinHandle<Drained>,
    clients_drain: Drain,
    operators_drain: Drain,
    /// Tasks that only one process may run: following events, talking to peers, writing the state.
    exclusive: Vec<AbortHandle>,
    /// Tells peers that this router leaves.
    leave: Option<LeaveHandle>,
    /// Writes the state to a file.
    pub(crate) state_writer: StateWriter,
    /// Tasks that end with the service.
    _background: JoinSet<()>,
}

impl<C: ConfigReader> Service<C> {
    /// Starts everything on inherited or new listeners, and returns when they are open. Connections wait in the
    /// listeners' queues until [`Service::open`].
    pub async fn start(
        mut plan: Plan<C::Options>,
        reader: C,
        files: Fingerprints,
        inherited: Listeners,
    ) -> anyhow::Result<Service<C>> {
        plan.gateway.connections_max = connections_within_limit(plan.gateway.connections_max);
        let saved = read_saved_state(&mut plan);
        let router = Arc::new(Router::with_shadows(plan.policy, plan.shadows, plan.router));
        router.run_long_work_with(|work| long_work(work));
        router.set_model_rules(plan.model_rules);
        let records = Records {
            trace: Recorder::start(plan.record).context("record")?,
            access_log: AccessLog::start(plan.access_log).context("access-log")?,
            tracer: plan.collector.map(Tracer::start).transpose().context("otlp-endpoint")?,
        };
        let gateway = Gateway::new(Arc::clone(&router), plan.gateway.clone(), records)?;
        gateway.set_keys(plan.keys);
        if let Some(AgedState { state, age }) = saved {
            router.apply(Change::Restored { state: Box::new(state), age, at: gateway.now() });
        }
        let mut startup = Startup::new(Arc::clone(&gateway), inherited);
        let clients = startup.listen(Purpose::Clients, plan.process.listen).await?;
        let operators = startup.listen(Purpose::Admin, plan.process.admin).await?;
        let (listening, admin) = (clients.local_addr()?, operators.local_addr()?);
        let in_force = InForce {
            files,
            options: plan.options,
            admin_token: plan.gateway.admin_token,
            dialer: plan.gateway.dialer,
            acceptors: plan.acceptors.clone(),
        };
        let FollowedSources { changed, listings } =
            startup.follow_sources(plan.sources, plan.precise.as_ref());
        startup.background.spawn(note_known_workers(Arc::clone(&gateway), listings.clone()));
        let control = Arc::new(Control::new(reader, Arc::clone(&gateway), changed, in_force));
        startup.background.spawn(Arc::clone(&control).watch_files());
        startup.maintain(plan.probe, plan.process.eviction_interval);
        let state_writer = startup.save_every(plan.process.state_interval, plan.process.state);
        startup.share(plan.sharing).await?;
        let reports = startup.follow_events(plan.precise).await?;
        let (clients_drain, operators_drain) = (Drain::default(), Drain::default());
        let mut page = admin_page(&gateway, Arc::clone(&control) as _, admin, &clients_drain);
        if let (Some(reports), Some(token)) = (reports, plan.events_token) {
            page = page.with_reports(Arc::new(reports), token);
        }
        let Acceptors { clients: for_clients, operators: for_operators, picker: for_picker } = plan.acceptors;
        let schemes = [for_clients.scheme(), for_operators.scheme()];
        let is_open = watch::Sender::new(OpenTo::None);
        let serving = page.serve(operators, for_operators, operators_drain.clone());
        let serving = async move { _ = serving.await };
        startup.background.spawn(when_open(&is_open, OpenTo::Operators, serving));
        let serving = serve(Arc::clone(&gateway), clients, for_clients, clients_drain.clone());
        let picking = startup.picker(plan.picker, for_picker, &clients_drain).await?;
        let picker = picking.as_ref().map(|(addresses, _)| addresses.clone()).unwrap_or_default();
        let serving = async move {
            match picking {
                Some((_, picking)) => tokio::join!(serving, picking).0,
                None => serving.await,
            }
        };
        let clients = tokio::spawn(when_open(&is_open, OpenTo::All, serving));
        let Startup { listeners, background, exclusive, leave, .. } = startup;
        Ok(Service {
            listening,
            admin,
            picker,
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
            exclusive,
            leave,
            state_writer,
            _background: background,
        })
    }

    /// Accepts all connections.
    pub fn open(&self) {
        note_if_known(&self.gateway, &self.listings);
        self.is_open.send_replace(OpenTo::All);
    }

    /// Accepts operators' connections, then waits for workers. Returns when one is ready, when all have been probed
    /// and none is, or after `FIRST_WORKER_TIMEOUT`.
    pub(crate) async fn await_first_worker(&self) {
        self.is_open.send_replace(OpenTo::Operators);
        let since = Instant::now();
        while since.elapsed() < FIRST_WORKER_TIMEOUT && is_undecided(&self.gateway, &self.listings) {
            sleep(READY_CHECK_EVERY).await;
        }
    }

    /// Returns when all workers are ready, or any worker after `ALL_READY_WITHIN`.
    pub(crate) async fn await_ready_workers(&self) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            let workers = self.router.inspect().workers();
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

    /// The listeners for a successor. A second call returns none.
    pub(crate) fn listeners(&mut self) -> Listeners {
        std::mem::take(&mut self.listeners)
    }

    /// Stops what only one process may do, so that a successor can: accepting connections, following events, talking
    /// to peers, writing the state.
    pub(crate) async fn stop_accepting(&mut self) {
        self.clients_drain.begin(DrainMode::KeepIdle);
        self.operators_drain.begin(DrainMode::KeepIdle);
        self.exclusive.iter().for_each(AbortHandle::abort);
        while !self.exclusive.iter().all(AbortHandle::is_finished) {
            sleep(READY_CHECK_EVERY).await;
        }
        // Peers get no leave message: they find the successor at this router's address.
        self.leave = None;
    }

    /// The handle that drains clients.
    pub(crate) fn clients_drain(&self) -> Drain {
        self.clients_drain.clone()
    }

    /// Stops accepting, and waits until all requests have ended. Requests that outlast `timeout` are aborted.
    pub async fn drain(mut self, mode: DrainMode, timeout: Duration) -> anyhow::Result<()> {
        // An open listener that is not accepted from would let clients connect and wait.
        drop(self.listeners);
        self.clients_drain.begin(mode);
        let drained = match tokio::time::timeout(timeout, &mut self.clients).await {
            Ok(drained) => drained.map(|Drained| ()).context("the gateway panicked"),
            Err(_) => {
                self.clients_drain.begin(DrainMode::Abort);
                _ = tokio::time::timeout(ABORT_TIMEOUT, self.clients).await;
                Err(anyhow::anyhow!("requests were still under way after {timeout:?}, and were ended"))
            }
        };
        // Peers hear of requests in flight until the last one has ended.
        if let Some(leave) = self.leave {
            leave.leave().await;
        }
        self.gateway.flush_traces(FLUSH_TIMEOUT).await;
        drained
    }
}

/// Whether no worker is ready but one may be: a source or a first probe is still pending.
fn is_undecided(gateway: &Gateway, listings: &watch::Receiver<Listings>) -> bool {
    let workers = gateway.router().inspect().workers();
    let is_awaited = *listings.borrow() == Listings::Pending;
    let is_ready = workers.iter().any(|view| view.load.state.takes_requests());
    !is_ready && (is_awaited || workers.iter().any(|view| view.is_unprobed))
}

/// Tells the gateway once its workers are known. Returns whether they are.
fn note_if_known(gateway: &Gateway, listings: &watch::Receiver<Listings>) -> bool {
    let is_known = !is_undecided(gateway, listings);
    if is_known {
        gateway.note_workers_known();
    }
    is_known
}

/// Notes when the workers are known, which may be after the listeners have opened: an API server may be away.
async fn note_known_workers(gateway: Arc<Gateway>, listings: watch::Receiver<Listings>) {
    while !note_if_known(&gateway, &listings) {
        sleep(READY_CHECK_EVERY).await;
    }
}

/// Reads the saved state, if there is any. The index takes over its seed, because the same prompts must keep their
/// digests.
fn read_saved_state<O>(plan: &mut Plan<O>) -> Option<AgedState> {
    let seed = plan.sharing.as_ref().map(|sharing| sharing.seed);
    let saved = saved_state::read(plan.process.state.as_deref()?, &plan.router.index, seed)?;
    plan.router.index.seed = saved.state.seed();
    Some(saved)
}

fn admin_page(
    gateway: &Arc<Gateway>,
    configuration: Arc<dyn Configuration>,
    address: SocketAddr,
    clients_drain: &Drain,
) -> Admin {
    let reach = if address.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
    Admin::new(Arc::clone(gateway), configuration, reach, clients_drain.clone())
}

/// Runs `serving` once the service is open to `to`.
fn when_open<S: Future>(
    is_open: &watch::Sender<OpenTo>,
    to: OpenTo,
    serving: S,
) -> impl Future<Output = S::Output> + use<S> {
    let mut is_open = is_open.subscribe();
    async move {
        if is_open.wait_for(|&open| open >= to).await.is_err() {
            // The service ended before it was opened.
            std::future::pending::<()>().await;
        }
        serving.await
    }
}

/// A service while it starts: its listeners and background tasks.
struct Startup {
    gateway: Arc<Gateway>,
    /// Listeners from systemd or a predecessor that are not in use yet.
    inherited: Listeners,
    /// Second handles of the listeners in use, for a successor.
    listeners: Listeners,
    background: JoinSet<()>,
    exclusive: Vec<AbortHandle>,
    leave: Option<LeaveHandle>,
}

impl Startup {
    fn new(gateway: Arc<Gateway>, inherited: Listeners) -> Startup {
        Startup {
            gateway,
            inherited,
            listeners: Listeners::default(),
            background: JoinSet::new(),
            exclusive: Vec::new(),
            leave: None,
        }
    }

    /// Uses the inherited listener for this purpose, or opens one.
    async fn listen(&mut self, purpose: Purpose, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let (listener, opener) = match self.inherited.take(purpose) {
            Some(inherited) => inherited,
            None => {
                let bound = TcpListener::bind(address).await;
                let bound = bound.map_err(|error| listen_error(address, purpose.words().0, error))?;
                (bound.into_std()?, Opener::Gateway)
            }
        };
        self.listeners.add(purpose, listener.try_clone()?, opener);
        Ok(TcpListener::from_std(listener)?)
    }

    /// Opens the endpoint picker's listeners. Returns their addresses and what serves them.
    async fn picker(
        &mut self,
        plan: Option<PickerPlan>,
        acceptor: Acceptor,
        drain: &Drain,
    ) -> anyhow::Result<Option<(Vec<PickerAddress>, Serving)>> {
        let Some(PickerPlan { listen, pools, config }) = plan else { return Ok(None) };
        let mut listeners = Vec::new();
        if let Some(listen) = listen {
            listeners
                .push(PoolListener { listener: self.listen(Purpose::Picker, listen).await?, pool: None });
        }
        for (place, (pool, listen)) in (0..).zip(pools) {
            let listener = self.listen(Purpose::Pool(place), listen).await?;
            listeners.push(PoolListener { listener, pool: Some(pool) });
        }
        let addresses: Vec<PickerAddress> =
            listeners.iter().map(PickerAddress::of).collect::<Result<_, _>>()?;
        let gateway = Arc::clone(&self.gateway);
        Ok(Some((addresses, warmroute_picker::serve(gateway, config, listeners, acceptor, drain.clone()))))
    }

    fn follow_sources(&mut self, sources: Sources, precise: Option<&FollowSettings>) -> FollowedSources {
        let configured = precise.map(|precise| Arc::clone(&precise.configured)).unwrap_or_default();
        let router = Arc::clone(self.gateway.router());
        follow_sources(sources, router, configured, &mut self.background)
    }

    /// Starts what runs at intervals: health probes, eviction.
    fn maintain(&mut self, probe: warmroute_probe::Config, eviction: Duration) {
        let (clock, router) = (Arc::clone(&self.gateway), Arc::clone(self.gateway.router()));
        let shown = Arc::clone(&self.gateway);
        let problems = move |worker: &Address, problem: Option<&str>| {
            shown.set_probe_problem(worker, problem.map(str::to_owned));
        };
        self.background.spawn(warmroute_probe::run(router, probe, move || clock.now(), Arc::new(problems)));
        self.run_every(PRUNE_EVERY, |gateway| gateway.prune_connections());
        self.run_every(eviction, |gateway| gateway.router().apply(Change::Expired { at: gateway.now() }));
        self.run_every(SETTLE_EVERY, |gateway| {
            gateway.router().apply(Change::EventsDue { at: gateway.now() });
            gateway.admit_next();
        });
    }

    /// Starts to write the state at intervals.
    fn save_every(&mut self, interval: Duration, path: Option<PathBuf>) -> StateWriter {
        let writer = StateWriter::new(Arc::clone(&self.gateway), path);
        self.exclusive.push(self.background.spawn(writer.clone().save_every(interval)));
        writer
    }

    fn run_every(&mut self, interval: Duration, work: fn(&Gateway)) {
        self.background.spawn(every(interval, Arc::clone(&self.gateway), work));
    }

    /// Starts to share state with peers.
    async fn share(&mut self, plan: Option<SharePlan>) -> anyhow::Result<()> {
        let Some(plan) = plan else { return Ok(()) };
        let listener = match plan.listen() {
            Some(address) => Some(self.listen(Purpose::Mesh, address).await?),
            None => None,
        };
        let (sharing, leave) =
            exchange_with_peers(plan, Arc::clone(&self.gateway), listener).context("sharing")?;
        self.exclusive.push(self.background.spawn(sharing));
        self.leave = Some(leave);
        Ok(())
    }

    /// Starts to follow engines' events. Returns the receiver of reports about them.
    async fn follow_events(
        &mut self,
        settings: Option<FollowSettings>,
    ) -> anyhow::Result<Option<ReportEndpoint>> {
        let Some(settings) = settings else { return Ok(None) };
        let listener = match settings.bind.as_deref().and_then(address_of) {
            Some(address) => {
                let bound = self.listen(Purpose::Events, address).await;
                Some(bound.with_context(|| format!("cannot bind kv-events-bind at tcp://{address}"))?)
            }
            None => None,
        };
        let follower = EngineFollower::new(Arc::clone(&self.gateway), settings, listener).await?;
        let reports = follower.report_endpoint();
        self.exclusive.push(self.background.spawn(follower.run()));
        Ok(Some(reports))
    }
}

async fn every(interval: Duration, gateway: Arc<Gateway>, work: fn(&Gateway)) {
    loop {
        tokio::time::sleep(interval).await;
        work(&gateway);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::test_plan::{PolicyFile, plan};

    async fn started() -> Service<PolicyFile> {
        let reader = PolicyFile(PathBuf::from("/nowhere"));
        let plan = plan("round_robin".to_owned()).unwrap();
        Service::start(plan, reader, Fingerprints::default(), Listeners::default()).await.unwrap()
    }

    /// The status line of the answer to `GET path`.
    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn clients_wait_until_the_service_is_open_and_a_drained_one_refuses_them() {
        let service = started().await;
        let address = service.listening;
        let asked = tokio::spawn(get(address, "/v1/models"));
        // Nothing is listed, so nothing is waited for; operators are served at once.
        service.await_first_worker().await;
        assert_eq!(get(service.admin, "/workers").await, "HTTP/1.1 200 OK");
        assert!(!asked.is_finished(), "the client's connection waits in the listener's queue");
        service.open();
        assert_eq!(asked.await.unwrap(), "HTTP/1.1 200 OK");
        service.drain(DrainMode::CloseIdle, Duration::from_secs(5)).await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn a_crash_loses_no_places_of_stored_responses_that_were_saved_at_an_interval() {
        let path = std::env::temp_dir().join(format!("warmroute-crash-{}", std::process::id()));
        let start = || {
            let mut plan = plan("round_robin".to_owned()).unwrap();
            plan.process.state = Some(path.clone());
            plan.process.state_interval = Duration::from_millis(100);
            let reader = PolicyFile(PathBuf::from("/nowhere"));
            Service::start(plan, reader, Fingerprints::default(), Listeners::default())
        };
        let service = start().await.unwrap();
        let worker =
            service.router.join(Address::new("http://127.0.0.1:1".to_owned()), Default::default()).unwrap();
        let hashed = *b"an identifier...";
        let id = u128::from_le_bytes(hashed);
        service.router.apply(Change::ResponseStored { id, owner: 3, worker: Arc::clone(&worker) });
        let is_saved = |file: Vec<u8>| file.windows(16).any(|bytes| bytes == hashed);
        while !std::fs::read(&path).is_ok_and(is_saved) {
            sleep(Duration::from_millis(10)).await;
        }
        // Without a drain.
        drop(service);
        let service = start().await.unwrap();
        let stored = service.router.inspect().stored_response(id);
        assert_eq!(stored.map(|stored| (stored.owner, stored.worker)), Some((3, worker.identity)));
        drop(service);
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn a_successor_serves_on_the_same_listeners() {
        let mut old = started().await;
        old.open();
        let address = old.listening;
        let listeners = old.listeners();
        assert_eq!(listeners.names(), ["clients", "admin"]);
        let reader = PolicyFile(PathBuf::from("/nowhere"));
        let plan = plan("round_robin".to_owned()).unwrap();
        let new = Service::start(plan, reader, Fingerprints::default(), listeners).await.unwrap();
        old.stop_accepting().await;
        new.open();
        old.drain(DrainMode::KeepIdle, Duration::from_secs(5)).await.unwrap();
        assert_eq!(new.listening, address);
        assert_eq!(get(address, "/v1/models").await, "HTTP/1.1 200 OK");
    }
}
