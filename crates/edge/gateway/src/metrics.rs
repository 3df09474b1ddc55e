//! Metrics, and their text for Prometheus.
//!
//! Labels are bounded. Worker series are read from the fleet at each scrape, so they exist only while the worker
//! belongs to the fleet. All other label values are constants.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use warmroute_fleet::WorkerView;
use warmroute_index::Stats as IndexStats;
use warmroute_otel::Tracer;
use warmroute_policy::Standard;
use warmroute_record::{AccessLog, Recorder};
use warmroute_router::Router;
use warmroute_types::{Micros, PrefixCache, WorkerState};

use crate::admission_gate::AdmissionGate;
use crate::attempt_outcome::AttemptOutcome;
use crate::cache_counts::CACHE_COUNTS;
use crate::clock::Clock;
use crate::current::Current;
use crate::gateway_error::GatewayError;
use crate::keys::Keys;
use crate::peer_link::PeerLink;
use crate::prefix_observer::PrefixObserver;
use crate::upstream::Upstreams;

mod access_log;
mod admission;
mod feeds;
mod peers;
mod prefixes;
mod record;
mod saturation;
mod shadows;
mod tenants;
mod traces;
mod ttft;
mod unrendered;

pub(crate) use unrendered::UnrenderedPrompts;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    policy: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The result of a configuration reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new settings are in force.
    Applied,
    /// The new settings are invalid; the old ones stay in force.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Metrics of the gateway as a whole.
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    refusals: Family<ReasonLabel, Counter>,
    pub(crate) unrendered: UnrenderedPrompts,
    reloads: Family<OutcomeLabel, Counter>,
    retries: Counter,
    retries_denied: Counter,
    ttft_budgets: Family<OutcomeLabel, Counter>,
    continuations: Family<OutcomeLabel, Counter>,
    pub(crate) client_connections: Gauge,
    /// Bytes of request bodies in memory.
    pub(crate) body_bytes: Gauge,
    first_token_seconds: Histogram,
    request_seconds: Histogram,
}

/// Histogram buckets in seconds, finest where routing matters.
const SECONDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

impl Metrics {
    pub(crate) fn new(
        router: Arc<Router<Standard>>,
        upstreams: Arc<Upstreams>,
        recorder: Option<Arc<Recorder>>,
    ) -> Metrics {
        let mut registry = Registry::with_prefix("warmroute");
        registry.register_collector(Box::new(WorkerCollector { router, upstreams }));
        recorder
            .into_iter()
            .for_each(|recorder| registry.register_collector(Box::new(record::RecordCollector(recorder))));
        let mut metrics = Metrics {
            registry: Registry::default(),
            decisions: Family::default(),
            refusals: Family::default(),
            unrendered: UnrenderedPrompts::default(),
            reloads: Family::default(),
            retries: Counter::default(),
            retries_denied: Counter::default(),
            ttft_budgets: Family::default(),
            continuations: Family::default(),
            client_connections: Gauge::default(),
            body_bytes: Gauge::default(),
            first_token_seconds: Histogram::new(SECONDS),
            request_seconds: Histogram::new(SECONDS),
        };
        start_at_zero(&metrics.refusals, &GatewayError::CODES);
        ["continued", "failed", "impossible"]
            .iter()
            .for_each(|outcome| _ = metrics.continuation_counter(outcome).inc_by(0));
        ["met", "missed"].iter().for_each(|outcome| _ = metrics.ttft_budget_counter(outcome).inc_by(0));
        [Reload::Applied, Reload::Refused]
            .iter()
            .for_each(|outcome| _ = metrics.reload_counter(*outcome).inc_by(0));
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    /// Registers the metrics of the admission gate and of tenants.
    pub(crate) fn watch_admission(&mut self, gate: &Arc<AdmissionGate>, keys: &Arc<Current<Option<Keys>>>) {
        self.registry.register_collector(Box::new(tenants::TenantCollector(Arc::clone(keys))));
        self.registry.register_collector(Box::new(admission::AdmissionCollector(Arc::clone(gate))));
    }

    /// Registers the metrics of the access log, if there is one.
    pub(crate) fn watch_access_log(&mut self, log: Option<&Arc<AccessLog>>) {
        if let Some(log) = log {
            self.registry.register_collector(Box::new(access_log::AccessLogCollector(Arc::clone(log))));
        }
    }

    /// Registers the metrics of what breaks prefixes. Returns the observer that counts it.
    pub(crate) fn watch_prefixes(&mut self) -> Arc<PrefixObserver> {
        let observer = Arc::<PrefixObserver>::default();
        self.registry.register_collector(Box::new(prefixes::PrefixCollector(Arc::clone(&observer))));
        observer
    }

    /// Registers the metrics of traces, if there are any.
    pub(crate) fn watch_tracer(&mut self, tracer: Option<&Arc<Tracer>>) {
        if let Some(tracer) = tracer {
            self.registry.register_collector(Box::new(traces::TraceCollector(Arc::clone(tracer))));
        }
    }

    /// Registers the metrics that depend on the clock: saturation, and peer routers.
    pub(crate) fn watch_peers(
        &mut self,
        router: &Arc<Router<Standard>>,
        peers: &Arc<PeerLink>,
        clock: Clock,
    ) {
        let saturation = saturation::SaturationCollector { router: Arc::clone(router), clock };
        self.registry.register_collector(Box::new(saturation));
        let (router, peers) = (Arc::clone(router), Arc::clone(peers));
        self.registry.register_collector(Box::new(peers::PeerCollector { router, peers, clock }));
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("decisions", "Routing decisions, by policy and reason", self.decisions.clone());
        registry.register(
            "refusals",
            "Requests that the gateway itself answered with an error",
            self.refusals.clone(),
        );
        registry.register(
            "unrendered",
            "Requests whose prompt could not be rendered in the engine's format, by reason",
            self.unrendered.0.clone(),
        );
        registry.register("config_reloads", "Configuration reloads, by result", self.reloads.clone());
        registry.register("retries", "Requests sent to another worker after a failure", self.retries.clone());
        registry.register("client_connections", "Open client connections", self.client_connections.clone());
        registry.register("body_bytes", "Bytes of request bodies in memory", self.body_bytes.clone());
        registry.register(
            "retries_denied",
            "Retries denied by the retry budget",
            self.retries_denied.clone(),
        );
        registry.register(
            "stream_continuations",
            "Streams whose worker failed, by whether another one continued them",
            self.continuations.clone(),
        );
        registry.register(
            "ttft_budgets",
            "Streamed responses of requests with a budget for the time to first token, by whether it was met",
            self.ttft_budgets.clone(),
        );
        registry.register(
            "time_to_first_token_seconds",
            "Streamed responses: time from the request's arrival to the first event with content",
            self.first_token_seconds.clone(),
        );
        registry.register(
            "request_seconds",
            "Time from the request's arrival to the end of its response or the client's disconnect",
            self.request_seconds.clone(),
        );
    }

    pub(crate) fn count_decision(&self, policy: &'static str, reason: &'static str) {
        self.decisions.get_or_create(&DecisionLabels { policy, reason }).inc();
    }

    pub(crate) fn count_refusal(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    fn reload_counter(&self, outcome: Reload) -> Counter {
        let outcome = match outcome {
            Reload::Applied => "applied",
            Reload::Refused => "refused",
        };
        self.reloads.get_or_create_owned(&OutcomeLabel { outcome })
    }

    pub(crate) fn count_reload(&self, outcome: Reload) {
        self.reload_counter(outcome).inc();
    }

    pub(crate) fn count_retry(&self) {
        self.retries.inc();
    }

    pub(crate) fn count_denied_retry(&self) {
        self.retries_denied.inc();
    }

    fn continuation_counter(&self, outcome: &'static str) -> Counter {
        self.continuations.get_or_create_owned(&OutcomeLabel { outcome })
    }

    pub(crate) fn count_continuation(&self, outcome: &'static str) {
        self.continuation_counter(outcome).inc();
    }

    fn ttft_budget_counter(&self, outcome: &'static str) -> Counter {
        self.ttft_budgets.get_or_create_owned(&OutcomeLabel { outcome })
    }

    pub(crate) fn count_ttft_budget(&self, outcome: &'static str) {
        self.ttft_budget_counter(outcome).inc();
    }

    pub(crate) fn observe_first_token(&self, after: Micros) {
        self.first_token_seconds.observe(after.as_secs_f64());
    }

    pub(crate) fn observe_request_end(&self, lasted: Micros) {
        self.request_seconds.observe(lasted.as_secs_f64());
    }

    /// The text of `/metrics`.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Creates all series at zero. A series that starts with its first event would hide that event from `rate`.
fn start_at_zero(family: &Family<ReasonLabel, Counter>, reasons: &[&'static str]) {
    reasons.iter().for_each(|&reason| _ = family.get_or_create(&ReasonLabel { reason }).inc_by(0));
}

/// Collects the workers' series at each scrape.
struct WorkerCollector {
    router: Arc<Router<Standard>>,
    upstreams: Arc<Upstreams>,
}

impl std::fmt::Debug for WorkerCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WorkerCollector")
    }
}

/// A gauge of each worker: name, help, and how to read it.
type WorkerGauge = (&'static str, &'static str, fn(&WorkerView) -> Option<f64>);

const WORKER_GAUGES: [WorkerGauge; 5] = [
    (
        "worker_requests_active",
        "Requests in flight: of this router, and of the routers that share with it",
        |view| Some(view.load.in_flight.into()),
    ),
    ("worker_prefill_tokens", "Prompt tokens booked and not yet prefilled", |view| {
        Some(view.load.prefill_tokens as f64)
    }),
    ("worker_waiting", "Waiting requests that the engine reports", |view| {
        Some(view.load.report?.waiting.into())
    }),
    ("worker_running", "Running requests that the engine reports", |view| {
        Some(view.load.report?.running.into())
    }),
    ("worker_kv_use", "Share of KV blocks in use that the engine reports", |view| {
        view.load.report?.kv_use.map(Into::into)
    }),
];

/// A counter that the engine reports: name, help, and how to read it.
type EngineCount = (&'static str, &'static str, fn(&PrefixCache) -> u64);

const ENGINE_COUNTS: [EngineCount; 2] = [
    ("worker_engine_prefix_queries_tokens", "Prompt tokens that the engine looked up in its cache", |c| {
        c.queries
    }),
    ("worker_engine_prefix_hits_tokens", "Prompt tokens that the engine found in its cache", |c| c.hits),
];

/// A counter of a worker's faults: name, help, and how to read it.
type FaultCount = (&'static str, &'static str, fn(&Upstreams, &WorkerView) -> u64);

const FAULT_COUNTS: [FaultCount; 3] = [
    ("worker_breaker_openings", "Times that the circuit breaker opened", |_, view| view.breaker.openings()),
    (
        "worker_ejections",
        "Times that a worker was avoided because its first tokens came far later than predicted",
        |_, view| view.ejections,
    ),
    (
        "worker_backpressure",
        "Responses that asked for a pause (429 or 503 with Retry-After)",
        |upstreams, view| upstreams.backpressure(&view.worker),
    ),
];

impl Collector for WorkerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let views = self.router.inspect().workers();
        for (name, help, read) in WORKER_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for view in &views {
                if let Some(value) = read(view) {
                    let labels = [("worker", &*view.worker.label)];
                    ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let help = "1 for the worker's current state";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("worker_state", help, None, kind)?;
        for view in &views {
            for state in WorkerState::ALL {
                let labels = [("worker", &*view.worker.label), ("state", state.as_str())];
                ConstGauge::new(i64::from(state == view.load.state))
                    .encode(family.encode_family(&labels)?)?;
            }
        }
        self.encode_faults(&mut encoder, &views)?;
        let help = "Requests sent to a worker, by outcome";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("requests", help, None, kind)?;
        for view in &views {
            let counts = self.upstreams.outcome_counts(&view.worker);
            for (outcome, count) in AttemptOutcome::ALL.into_iter().zip(counts) {
                let labels = [("worker", &*view.worker.label), ("outcome", outcome.as_str())];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        self.encode_caches(&mut encoder, &views)?;
        let accuracies: Vec<_> =
            views.iter().map(|view| (&view.worker, self.upstreams.ttft_accuracy(&view.worker))).collect();
        ttft::encode(&mut encoder, &accuracies)?;
        shadows::encode(&mut encoder, &self.router.inspect().policy_comparisons())?;
        feeds::encode(&mut encoder, &self.router, &views)?;
        let inspect = self.router.inspect();
        let help = "Stored responses and conversations whose worker is known";
        let family = encoder.encode_descriptor("stored_responses", help, None, MetricType::Gauge)?;
        ConstGauge::new(inspect.stored_responses() as i64).encode(family)?;
        encode_index(&mut encoder, inspect.index_stats(), inspect.group_cache_bytes())
    }
}

impl WorkerCollector {
    fn encode_faults(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        views: &[WorkerView],
    ) -> Result<(), std::fmt::Error> {
        for (name, help, read) in FAULT_COUNTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for view in views {
                let labels = [("worker", &*view.worker.label)];
                ConstCounter::new(read(&self.upstreams, view)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_caches(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        views: &[WorkerView],
    ) -> Result<(), std::fmt::Error> {
        let counts: Vec<_> = views.iter().map(|view| self.upstreams.cache_counts(&view.worker)).collect();
        for (name, help, read) in ENGINE_COUNTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for view in views {
                if let Some(counted) = &view.prefix_cache {
                    let labels = [("worker", &*view.worker.label)];
                    ConstCounter::new(read(counted)).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        for (row, (name, help, _)) in CACHE_COUNTS.iter().enumerate() {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (view, counts) in views.iter().zip(&counts) {
                let labels = [("worker", &*view.worker.label)];
                ConstCounter::new(counts[row]).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Metrics of the prefix index.
fn encode_index(
    encoder: &mut DescriptorEncoder<'_>,
    index: IndexStats,
    group_cache_bytes: usize,
) -> Result<(), std::fmt::Error> {
    let gauges = [
        ("index_bytes", "Bytes used by the prefix index", index.bytes.total()),
        ("group_cache_bytes", "Bytes used for workers with several KV cache groups", group_cache_bytes),
        ("index_spans", "Distinct prompt spans in the index", index.spans),
        ("index_held", "Pairs of worker and span in the index", index.held),
    ];
    for (name, help, value) in gauges {
        let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value as i64).encode(family)?;
    }
    let help = "Presumed spans evicted from the index, by cause";
    let mut family = encoder.encode_descriptor("index_evictions", help, None, MetricType::Counter)?;
    let causes = [
        ("capacity", index.evicted_by_capacity),
        ("age", index.evicted_by_age),
        ("budget", index.evicted_by_budget),
    ];
    for (cause, count) in causes {
        ConstCounter::new(count).encode(family.encode_family(&[("cause", cause)])?)?;
    }
    Ok(())
}
