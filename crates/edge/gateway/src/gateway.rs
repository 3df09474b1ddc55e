//! State shared by all requests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::mpsc;
use warmroute_fleet::RetryBudget;
use warmroute_otel::Tracer;
use warmroute_policy::Standard;
use warmroute_record::{AccessLog, Recorder};
use warmroute_router::{Matching, Router};
use warmroute_types::{Address, Micros, RouterId};

use crate::admission_gate::{AdmissionGate, Waiter};
use crate::alignments::{Alignments, PromptFormat, TooManyFamilies};
use crate::body_budget::BodyMemory;
use crate::clock::Clock;
use crate::console::state::Console;
use crate::current::Current;
use crate::gateway_error::GatewayError;
use crate::history::History;
use crate::keys::{Keys, Tenant};
use crate::log_sinks::LogSinks;
use crate::metrics::{Metrics, Reload};
use crate::peer_transport::{PeerTransport, TransportStats};
use crate::prefix_observer::PrefixObserver;
use crate::request_reader::RequestReader;
use crate::response_report::PickReport;
use crate::upstream::Upstreams;
use crate::worker_texts::WorkerTexts;
use crate::{Config, ConfigError};

/// Reports that wait to be applied: about a second of a busy picker's.
const REPORTS_MAX: usize = 4_096;

/// The gateway: a router, connections to its workers, settings and metrics.
pub struct Gateway {
    pub(crate) router: Arc<Router<Standard>>,
    config: Current<Config>,
    /// `None`: requests need no API key.
    keys: Arc<Current<Option<Keys>>>,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) metrics: Metrics,
    pub(crate) reader: RequestReader,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) log_sinks: LogSinks,
    pub(crate) view_reasons: WorkerTexts,
    pub(crate) probe_problems: WorkerTexts,
    pub(crate) history: History,
    pub(crate) console: Console,
    pub(crate) prefixes: Arc<PrefixObserver>,
    pub(crate) retries: RetryBudget,
    pub(crate) admission_gate: Arc<AdmissionGate>,
    /// The transport to peer routers, if state is shared.
    transport: Arc<OnceLock<Arc<dyn PeerTransport>>>,
    /// Takes other pickers' reports, once the endpoint picker runs.
    reports: OnceLock<mpsc::Sender<PickReport>>,
    /// Set once all sources have listed their workers, or one is ready.
    workers_known: OnceLock<()>,
    pub(crate) clock: Clock,
}

/// What a gateway writes down about requests. By default nothing.
#[derive(Default)]
pub struct Records {
    /// A trace of the requests that are served.
    pub trace: Option<Recorder>,
    /// A line for each request.
    pub access_log: Option<AccessLog>,
    /// OpenTelemetry traces.
    pub tracer: Option<Tracer>,
}

impl Gateway {
    /// Creates a gateway over a router. Workers join and leave through [`Router::apply`].
    pub fn new(
        router: Arc<Router<Standard>>,
        config: Config,
        records: Records,
    ) -> Result<Arc<Gateway>, ConfigError> {
        config.validate()?;
        let (recorder, access_log) = (records.trace.map(Arc::new), records.access_log.map(Arc::new));
        let tracer = records.tracer.map(Arc::new);
        let upstreams = Arc::new(Upstreams::new(&config));
        let admission_gate = Arc::new(AdmissionGate::new(&config.admission));
        let keys = Arc::new(Current::new(None));
        let mut metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), recorder.clone());
        metrics.watch_admission(&admission_gate, &keys);
        metrics.watch_access_log(access_log.as_ref());
        let prefixes = metrics.watch_prefixes();
        metrics.watch_tracer(tracer.as_ref());
        let (view_reasons, probe_problems, history) = Default::default();
        let (retries, transport, console) = Default::default();
        let clock = Clock::start();
        let log_sinks = LogSinks::new(access_log, tracer, clock);
        let reader = RequestReader {
            router: Arc::clone(&router),
            alignments: Alignments::default(),
            body_memory: BodyMemory::new(metrics.body_bytes.clone()),
            unrendered: metrics.unrendered.clone(),
            records_trace: recorder.is_some(),
        };
        metrics.watch_peers(&router, &transport, clock);
        Ok(Arc::new(Gateway {
            router,
            config: Current::new(config),
            keys,
            upstreams,
            metrics,
            reader,
            recorder,
            log_sinks,
            view_reasons,
            probe_problems,
            history,
            console,
            prefixes,
            retries,
            admission_gate,
            transport,
            reports: OnceLock::new(),
            workers_known: OnceLock::new(),
            clock,
        }))
    }

    /// The routing core.
    pub fn router(&self) -> &Arc<Router<Standard>> {
        &self.router
    }

    /// The current settings. A request reads them once, when it arrives.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.load()
    }

    /// Replaces the settings for new requests. Requests in flight keep the settings they started with.
    pub fn set_config(&self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        self.admission_gate.set_config(&config.admission);
        self.config.set(config);
        // Higher limits may make room for waiting requests.
        let waiting = self.admission_gate.waiting();
        (0..waiting).take_while(|_| self.admit_next()).for_each(drop);
        Ok(())
    }

    /// Replaces the accepted API keys; `None` disables authentication. Requests in flight are not affected.
    pub fn set_keys(&self, keys: Option<Keys>) {
        let before = self.keys.load();
        self.keys.set(keys.map(|keys| match &*before {
            Some(before) => keys.with_counts_of(before),
            None => keys,
        }));
    }

    /// Sends the last traces to their collector. Returns when that is done or the time is over.
    pub async fn flush_traces(&self, within: Duration) {
        if let Some(tracer) = &self.log_sinks.tracer {
            tracer.flush(within).await;
        }
    }

    /// Counts a configuration reload.
    pub fn count_reload(&self, outcome: Reload) {
        self.metrics.count_reload(outcome);
    }

    /// Whether requests need an API key.
    pub(crate) fn requires_keys(&self) -> bool {
        self.keys.load().is_some()
    }

    /// The tenant whose API key the request carries; `None` if no key is required.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<Tenant>>, GatewayError> {
        let keys = self.keys.load();
        let Some(keys) = &*keys else { return Ok(None) };
        let tenant = keys.tenant_of(headers).ok_or(GatewayError::Unauthorized)?;
        tenant.requests.inc();
        Ok(Some(Arc::clone(tenant)))
    }

    /// Sets the transport to peer routers. Later calls have no effect.
    pub fn set_peer_transport(&self, transport: Arc<dyn PeerTransport>) {
        _ = self.transport.set(transport);
    }

    /// Tells the transport that a routing event should reach peer routers soon.
    pub(crate) fn notify_peers(&self) {
        self.transport.get().into_iter().for_each(|transport| transport.notify());
    }

    /// Tells the router that chose a worker what happened to the response.
    pub fn report(&self, to: RouterId, report: &PickReport) {
        let envelope = self.router.peering().compose_report(to, report.encode());
        if let (Some(envelope), Some(transport)) = (envelope, self.transport.get()) {
            transport.send(envelope);
        }
    }

    /// Takes a peer's report about a request that this router has routed.
    pub fn receive_report(&self, message: &[u8]) {
        if let (Some(report), Some(reports)) = (PickReport::decode(message), self.reports.get()) {
            // A full queue drops the report, as the transport does. The pick then ends without it.
            _ = reports.try_send(report);
        }
    }

    /// Peers' reports from now on. `None` after the first call.
    pub fn pick_reports(&self) -> Option<mpsc::Receiver<PickReport>> {
        let (reports, received) = mpsc::channel(REPORTS_MAX);
        self.reports.set(reports).ok().map(|()| received)
    }

    pub(crate) fn transport_stats(&self) -> Option<TransportStats> {
        self.transport.get().map(|transport| transport.stats())
    }

    /// Notes that the workers are known: a request that finds none will find none later either.
    pub fn note_workers_known(&self) {
        _ = self.workers_known.set(());
    }

    /// Whether the workers are known, or requests wait until they are.
    pub fn are_workers_known(&self) -> bool {
        self.workers_known.get().is_some() || self.config().admission.waits_for_workers()
    }

    /// Retries left in the shared budget. A handover passes the number to [`Gateway::inherit_retries`].
    pub fn retries_left(&self) -> u64 {
        self.retries.left(self.now())
    }

    /// Takes over the retry budget of the process whose clients this process now serves.
    pub fn inherit_retries(&self, left: u64) {
        self.retries.inherit(self.now(), left);
    }

    /// The router's clock.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Registers how an engine formats prompts, so that requests for its models can be compared with its KV events.
    /// Returns how the engine's events are to be read.
    pub fn align(&self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        self.reader.alignments.join(engine, format)
    }

    /// Removes an engine's prompt format.
    pub fn unalign(&self, engine: &str) {
        self.reader.alignments.leave(engine);
    }

    /// Sets the text that `GET /workers` shows to explain a worker's cache view; `None` clears it.
    pub fn set_view_reason(&self, worker: &Address, why: Option<String>) {
        self.view_reasons.set(worker, why);
    }

    /// Sets the text that `GET /workers` shows about a worker's last probe; `None`: the probe succeeded.
    pub fn set_probe_problem(&self, worker: &Address, problem: Option<String>) {
        self.probe_problems.set(worker, problem);
    }

    /// Admits the next waiting request if there is room, and returns whether there was one. Every request that ends does
    /// the same. Call it periodically to use workers that joined or recovered.
    pub fn admit_next(&self) -> bool {
        let has_room = |waiter: &Waiter| {
            let inspect = self.router.inspect();
            let vacancy = inspect.vacancy(waiter.model.as_deref(), waiter.usable(inspect.joins()));
            self.config().admission.may_wake(vacancy)
        };
        self.admission_gate.admit_next(has_room, || self.now())
    }

    /// The metrics, as `GET /metrics` shows them.
    pub fn metrics_text(&self) -> String {
        self.metrics.encode().unwrap_or_default()
    }

    /// Closes upstream connections that have been idle for too long. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.upstreams.prune();
    }
}
