//! State shared by all requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::mpsc;
use warmroute_admission::LimitMessage;
use warmroute_fleet::RetryBudget;
use warmroute_otel::Tracer;
use warmroute_peers::Envelope;
use warmroute_policy::Standard;
use warmroute_record::{AccessLog, Recorder};
use warmroute_router::{Matching, Router};
use warmroute_types::{Address, Micros, RouterId};

use crate::admission_gate::AdmissionGate;
use crate::alignments::{Alignments, PromptFormat, TooManyFamilies};
use crate::body_budget::BodyMemory;
use crate::clock::Clock;
use crate::current::Current;
use crate::fleet_notes::FleetNotes;
use crate::forwarding::Forwarding;
use crate::gateway_error::GatewayError;
use crate::keys::{Keys, Tenant};
use crate::log_sinks::LogSinks;
use crate::metrics::{Metrics, Reload};
use crate::observers::Observers;
use crate::peer_link::PeerLink;
use crate::peer_transport::PeerTransport;
use crate::request_reader::RequestReader;
use crate::response_report::PickReport;
use crate::upstream::Upstreams;
use crate::{Config, ConfigError};

/// The gateway: a router, connections to its workers, settings and metrics.
///
/// Each phase of a request gets its own part: the reader, the gate, then forwarding. Only the top of a request's path
/// knows the whole.
pub struct Gateway {
    pub(crate) router: Arc<Router<Standard>>,
    pub(crate) clock: Clock,
    settings: Arc<Current<Config>>,
    /// `None`: requests need no API key.
    keys: Arc<Current<Option<Keys>>>,
    pub(crate) reader: RequestReader,
    pub(crate) gate: Arc<AdmissionGate>,
    pub(crate) forwarding: Arc<Forwarding>,
    pub(crate) log_sinks: LogSinks,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) fleet_notes: Arc<FleetNotes>,
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
        let (clock, peers) = (Clock::start(), Arc::<PeerLink>::default());
        let (settings, keys) = (Arc::new(Current::new(config)), Arc::new(Current::new(None)));
        let gate = AdmissionGate::new(Arc::clone(&router), Arc::clone(&settings), clock, Arc::clone(&peers));
        let gate = Arc::new(gate);
        let mut metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), recorder.clone());
        metrics.watch_admission(&gate, &keys);
        metrics.watch_access_log(access_log.as_ref());
        let prefixes = metrics.watch_prefixes();
        metrics.watch_tracer(tracer.as_ref());
        metrics.watch_peers(&router, &peers, clock);
        let reader = RequestReader {
            router: Arc::clone(&router),
            alignments: Alignments::default(),
            body_memory: BodyMemory::new(metrics.body_bytes.clone()),
            unrendered: metrics.unrendered.clone(),
            records_trace: recorder.is_some(),
        };
        let (history, console, worker_errors) = Default::default();
        let forwarding = Arc::new(Forwarding {
            router: Arc::clone(&router),
            clock,
            peers: Arc::clone(&peers),
            upstreams,
            retries: RetryBudget::default(),
            gate: Arc::clone(&gate),
            observers: Observers { metrics, history, console, prefixes, recorder, worker_errors },
        });
        let (log_sinks, fleet_notes) = (LogSinks::new(access_log, tracer, clock), Arc::default());
        Ok(Arc::new(Gateway {
            router,
            clock,
            settings,
            keys,
            reader,
            gate,
            forwarding,
            log_sinks,
            peers,
            fleet_notes,
        }))
    }

    /// The routing core.
    pub fn router(&self) -> &Arc<Router<Standard>> {
        &self.router
    }

    /// The current settings. A request reads them once, when it arrives.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.settings.load()
    }

    /// Replaces the settings for new requests. Requests in flight keep the settings they started with.
    pub fn set_config(&self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        self.gate.set_config(&config.admission);
        self.settings.set(config);
        // Higher limits may make room for waiting requests.
        let waiting = self.gate.waiting();
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
        self.forwarding.observers.metrics.count_reload(outcome);
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
        self.peers.set_transport(transport);
    }

    /// Tells the router that chose a worker what happened to the response.
    pub fn report(&self, to: RouterId, report: &PickReport) {
        if let Some(envelope) = self.router.peering().compose_report(to, report.encode()) {
            self.peers.send(envelope);
        }
    }

    /// Takes a peer's report about a request that this router has routed.
    pub fn receive_report(&self, message: &[u8]) {
        self.peers.receive_report(message);
    }

    /// Peers' reports from now on. `None` after the first call.
    pub fn pick_reports(&self) -> Option<mpsc::Receiver<PickReport>> {
        self.peers.pick_reports()
    }

    /// Shares tenants' limits with other routers. `seed` is the same on all of them.
    pub fn share_limits(&self, me: RouterId, seed: u64) {
        self.gate.share_limits(me, seed);
    }

    /// Messages about limits that are due, to these routers. Call it at least every 100 ms while limits are shared.
    pub fn compose_limits(&self, others: BTreeSet<RouterId>) -> Vec<Envelope> {
        self.gate.compose_limits(others)
    }

    /// Whether limits are shared with this router.
    pub fn shares_limits_with(&self, router: RouterId) -> bool {
        self.gate.shares_limits_with(router)
    }

    /// Messages about limits that requests have caused.
    pub fn take_limit_messages(&self) -> Vec<Envelope> {
        self.gate.limits.take_messages()
    }

    /// Takes another router's messages about limits; returns the answers.
    pub fn receive_limits(&self, from: RouterId, messages: Vec<LimitMessage>) -> Vec<Envelope> {
        self.gate.receive_limits(from, messages)
    }

    /// Notes that the workers are known: a request that finds none will find none later either.
    pub fn note_workers_known(&self) {
        self.fleet_notes.set_workers_known();
    }

    /// Whether the workers are known, or requests wait until they are.
    pub fn are_workers_known(&self) -> bool {
        self.fleet_notes.are_workers_known() || self.config().admission.waits_for_workers()
    }

    /// Retries left in the shared budget. A handover passes the number to [`Gateway::inherit_retries`].
    pub fn retries_left(&self) -> u64 {
        self.forwarding.retries.left(self.now())
    }

    /// Takes over the retry budget of the process whose clients this process now serves.
    pub fn inherit_retries(&self, left: u64) {
        self.forwarding.retries.inherit(self.now(), left);
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
        self.fleet_notes.view_reasons.set(worker, why);
    }

    /// Sets the text that `GET /workers` shows about a worker's last probe; `None`: the probe succeeded.
    pub fn set_probe_problem(&self, worker: &Address, problem: Option<String>) {
        self.fleet_notes.probe_problems.set(worker, problem);
    }

    /// Admits the next waiting request if there is room, and returns whether there was one. Every request that ends does
    /// the same. Call it periodically to use workers that joined or recovered.
    pub fn admit_next(&self) -> bool {
        self.gate.admit_next()
    }

    /// The metrics, as `GET /metrics` shows them.
    pub fn metrics_text(&self) -> String {
        self.forwarding.observers.metrics.encode().unwrap_or_default()
    }

    /// Closes upstream connections that have been idle for too long. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.forwarding.upstreams.prune();
    }
}
