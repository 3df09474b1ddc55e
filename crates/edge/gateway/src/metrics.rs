//! Counters and histograms, and the text that Prometheus reads.
//!
//! Labels are bounded: a worker's label by the size of the fleet (and it goes when the worker does), all others by the
//! code. What the fleet knows itself (load, states) is not counted again here but read when somebody asks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::StatusCode;
use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use warmroute_fleet::{Worker, WorkerView};
use warmroute_types::{MAX_WORKERS, Micros, WorkerState};

/// How a request that reached a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The worker answered with success.
    Ok,
    /// The worker said that the client was wrong.
    ClientError,
    /// The worker answered with an error of its own, or with "not now".
    ServerError,
    /// The worker broke off or never answered.
    Failed,
    /// The client left.
    Cancelled,
}

impl Ending {
    const ALL: [Ending; 5] =
        [Ending::Ok, Ending::ClientError, Ending::ServerError, Ending::Failed, Ending::Cancelled];

    pub(crate) fn of(status: StatusCode) -> Ending {
        match status.as_u16() {
            429 | 500.. => Ending::ServerError,
            400..500 => Ending::ClientError,
            _ => Ending::Ok,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Ending::Ok => "ok",
            Ending::ClientError => "client_error",
            Ending::ServerError => "server_error",
            Ending::Failed => "failed",
            Ending::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerEnding {
    worker: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabel {
    worker: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerInState {
    worker: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reasoned {
    policy: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
}

/// One worker's counters, at hand without a look-up by label.
struct PerWorker {
    worker: Arc<Worker>,
    endings: [Counter; Ending::ALL.len()],
}

/// Everything counted.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<WorkerEnding, Counter>,
    per_worker: RwLock<Vec<Option<PerWorker>>>,
    decisions: Family<Reasoned, Counter>,
    refusals: Family<Refused, Counter>,
    retries: Counter,
    first_token_seconds: Histogram,
    request_seconds: Histogram,
    in_flight: Family<WorkerLabel, Gauge>,
    prefill_tokens: Family<WorkerLabel, Gauge>,
    waiting: Family<WorkerLabel, Gauge>,
    kv_use: Family<WorkerLabel, Gauge<f64, AtomicU64>>,
    states: Family<WorkerInState, Gauge>,
}

/// From a millisecond to minutes, about two buckets an octave at the lower end where routing matters.
const SECONDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("warmroute");
        let metrics = Metrics {
            requests: Family::default(),
            per_worker: RwLock::new((0..MAX_WORKERS).map(|_| None).collect()),
            decisions: Family::default(),
            refusals: Family::default(),
            retries: Counter::default(),
            first_token_seconds: Histogram::new(SECONDS),
            request_seconds: Histogram::new(SECONDS),
            in_flight: Family::default(),
            prefill_tokens: Family::default(),
            waiting: Family::default(),
            kv_use: Family::default(),
            states: Family::default(),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        Metrics { registry, ..metrics }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("requests", "Requests sent to a worker, by how they ended", self.requests.clone());
        registry.register("decisions", "Routing decisions, by policy and reason", self.decisions.clone());
        registry.register("refusals", "Requests that the gateway refused itself", self.refusals.clone());
        registry.register("retries", "Requests sent to another worker after a failure", self.retries.clone());
        registry.register(
            "time_to_first_token_seconds",
            "From the request's arrival to the first data of its answer",
            self.first_token_seconds.clone(),
        );
        registry.register(
            "request_seconds",
            "From the request's arrival to the end of its answer",
            self.request_seconds.clone(),
        );
        registry.register("worker_requests_active", "Requests in flight", self.in_flight.clone());
        registry.register(
            "worker_prefill_tokens",
            "Prompt tokens booked whose prefill has not ended",
            self.prefill_tokens.clone(),
        );
        registry.register(
            "worker_waiting",
            "Requests waiting in the engine, as it says",
            self.waiting.clone(),
        );
        registry.register(
            "worker_kv_use",
            "Share of KV blocks in use, as the engine says",
            self.kv_use.clone(),
        );
        registry.register("worker_state", "1 for the state that the worker is in", self.states.clone());
    }

    pub(crate) fn decided(&self, policy: &'static str, reason: &'static str) {
        self.decisions.get_or_create(&Reasoned { policy, reason }).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&Refused { reason }).inc();
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn first_token(&self, after: Micros) {
        self.first_token_seconds.observe(after.as_secs_f64());
    }

    pub(crate) fn ended(&self, worker: &Arc<Worker>, ending: Ending, lasted: Micros) {
        self.request_seconds.observe(lasted.as_secs_f64());
        if let Some(counters) = &self.per_worker.read()[worker.id.index()]
            && *counters.worker == **worker
        {
            counters.endings[ending as usize].inc();
            return;
        }
        let counters = self.counters_of(worker);
        counters.endings[ending as usize].inc();
        self.per_worker.write()[worker.id.index()] = Some(counters);
    }

    fn counters_of(&self, worker: &Arc<Worker>) -> PerWorker {
        let counter = |ending: Ending| {
            let labels = WorkerEnding { worker: worker.label.to_string(), outcome: ending.as_str() };
            self.requests.get_or_create_owned(&labels)
        };
        PerWorker { worker: Arc::clone(worker), endings: Ending::ALL.map(counter) }
    }

    /// The text of `/metrics`, with the fleet's own numbers as they are now.
    pub(crate) fn encode(&self, workers: &[WorkerView]) -> Result<String, std::fmt::Error> {
        self.in_flight.clear();
        self.prefill_tokens.clear();
        self.waiting.clear();
        self.kv_use.clear();
        self.states.clear();
        workers.iter().for_each(|view| self.show(view));
        self.forget_others(workers);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn show(&self, view: &WorkerView) {
        let worker = || WorkerLabel { worker: view.worker.label.to_string() };
        self.in_flight.get_or_create(&worker()).set(i64::from(view.desk.in_flight));
        self.prefill_tokens.get_or_create(&worker()).set(view.desk.prefill_tokens as i64);
        if let Some(report) = view.desk.report {
            self.waiting.get_or_create(&worker()).set(i64::from(report.waiting));
            self.kv_use.get_or_create(&worker()).set(f64::from(report.kv_use));
        }
        let states =
            [WorkerState::Starting, WorkerState::Ready, WorkerState::Unhealthy, WorkerState::Draining];
        for state in states {
            let labels = WorkerInState { worker: view.worker.label.to_string(), state: state.as_str() };
            self.states.get_or_create(&labels).set(i64::from(state == view.desk.state));
        }
    }

    /// Drops the counters of workers that are gone, or a fleet that keeps changing would grow the page without end.
    fn forget_others(&self, workers: &[WorkerView]) {
        let mut per_worker = self.per_worker.write();
        for seat in per_worker.iter_mut() {
            let Some(counters) = seat else { continue };
            if !workers.iter().any(|view| view.worker == counters.worker) {
                for ending in Ending::ALL {
                    let worker = counters.worker.label.to_string();
                    self.requests.remove(&WorkerEnding { worker, outcome: ending.as_str() });
                }
                *seat = None;
            }
        }
    }
}
