//! Connection pools and counters, one for each worker.

mod body_decoder;
mod connection;
mod error;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod request_writer;
mod response_head;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use warmroute_fleet::Worker;
use warmroute_router::{Feedback, Silence};
use warmroute_types::{BadUrl, Micros};
use warmroute_wire::{Dialer, Target};

use connection::UpstreamConnection;
pub(crate) use connection::UpstreamResponse;
pub(crate) use error::UpstreamError;
#[cfg(any(test, fuzzing))]
pub(crate) use fuzz::response;
pub(crate) use request_writer::UpstreamRequest;

use crate::Config;
use crate::attempt_outcome::AttemptOutcome;
use crate::cache_counts::CACHE_COUNTS;
use crate::ttft_accuracy::TtftAccuracy;

/// A worker that has not yet answered twice on one connection may close each after its answer, without saying so. Its
/// connections are reused only after this time: a close that comes later than the request on it looks as if the worker
/// had taken the request and failed.
const UNPROVEN_IDLE_MIN: Duration = Duration::from_millis(100);

/// The [`Upstream`] of each worker, by worker index.
pub(crate) struct Upstreams {
    by_worker: RwLock<Vec<Option<Arc<Upstream>>>>,
    idle_timeout: Duration,
    idle_max: usize,
    dialer: Dialer,
}

/// One worker's idle connections and counters.
pub(crate) struct Upstream {
    worker: Arc<Worker>,
    pub(crate) target: Target,
    /// The address that a proxy connects to; `None` if the URL has a host name, which only a resolver can turn into one.
    pub(crate) endpoint: Option<SocketAddr>,
    /// Whether the log says that no proxy can be sent there.
    warned: Once,
    /// In the order in which they became idle.
    idle: Mutex<Vec<Idle>>,
    /// Whether the worker has answered twice on one connection.
    keeps_open: AtomicBool,
    /// Requests by outcome.
    outcomes: [AtomicU64; AttemptOutcome::ALL.len()],
    /// Predicted and found cache contents, in the order of [`CACHE_COUNTS`].
    cache: [AtomicU64; CACHE_COUNTS.len()],
    /// Counts to add once the engine has reported cached tokens. Before that, it is unknown whether a missing number
    /// means zero.
    unreported: [AtomicU64; CACHE_COUNTS.len()],
    /// Responses that asked for a pause.
    backpressure: AtomicU64,
    /// Predicted and observed times to first token.
    ttft_accuracy: TtftAccuracy,
    idle_max: usize,
    idle_timeout: Duration,
    dialer: Dialer,
}

struct Idle {
    connection: Box<UpstreamConnection>,
    since: Instant,
}

impl Upstreams {
    pub(crate) fn new(config: &Config) -> Upstreams {
        Upstreams {
            by_worker: RwLock::default(),
            idle_timeout: config.idle_timeout,
            idle_max: config.idle_connections_max,
            dialer: config.dialer.clone(),
        }
    }

    /// The worker's upstream. The index may have been reused for another worker, so the worker is compared.
    pub(crate) fn get_or_create(&self, worker: &Arc<Worker>) -> Result<Arc<Upstream>, BadUrl> {
        if let Some(upstream) = self.get(worker) {
            return Ok(upstream);
        }
        let upstream = Arc::new(self.create(worker)?);
        let mut by_worker = self.by_worker.write();
        if by_worker.len() <= worker.id.index() {
            by_worker.resize_with(worker.id.index() + 1, || None);
        }
        let place = &mut by_worker[worker.id.index()];
        // Another request may have been first.
        let known = place.take().filter(|known| *known.worker == **worker);
        Ok(Arc::clone(place.insert(known.unwrap_or(upstream))))
    }

    fn create(&self, worker: &Arc<Worker>) -> Result<Upstream, BadUrl> {
        let target: Target = worker.address.url.parse()?;
        Ok(Upstream {
            worker: Arc::clone(worker),
            endpoint: target.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, target.port)),
            target,
            warned: Once::new(),
            idle: Mutex::default(),
            keeps_open: AtomicBool::new(false),
            outcomes: Default::default(),
            cache: Default::default(),
            unreported: Default::default(),
            backpressure: AtomicU64::new(0),
            ttft_accuracy: TtftAccuracy::default(),
            idle_max: self.idle_max,
            idle_timeout: self.idle_timeout,
            dialer: self.dialer.clone(),
        })
    }

    /// Counts an attempt's outcome.
    pub(crate) fn count_outcome(&self, worker: &Arc<Worker>, outcome: AttemptOutcome) {
        if let Some(upstream) = self.get(worker) {
            upstream.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a response that asked for a pause.
    pub(crate) fn count_backpressure(&self, worker: &Arc<Worker>) {
        let upstream = self.get(worker);
        upstream.iter().for_each(|upstream| _ = upstream.backpressure.fetch_add(1, Ordering::Relaxed));
    }

    /// Number of responses that asked for a pause.
    pub(crate) fn backpressure(&self, worker: &Arc<Worker>) -> u64 {
        self.get(worker).map_or(0, |upstream| upstream.backpressure.load(Ordering::Relaxed))
    }

    /// Counts found cache contents against the prediction.
    pub(crate) fn count_feedback(&self, worker: &Arc<Worker>, feedback: &Feedback, silence: Silence) {
        let Some(upstream) = self.get(worker) else { return };
        upstream.count(&upstream.cache, |read| read(feedback));
        if feedback.cached.is_none() && silence == Silence::MeansZero {
            let nothing = Feedback { cached: Some(0), ..*feedback };
            upstream.count(&upstream.unreported, |read| read(&nothing) - read(feedback));
        } else if feedback.cached.is_some() {
            upstream.confirm_unreported();
        }
    }

    /// Counts a time to first token against its prediction.
    pub(crate) fn count_first_token(&self, worker: &Arc<Worker>, predicted_ms: f32, observed: Micros) {
        self.get(worker).iter().for_each(|upstream| upstream.ttft_accuracy.count(predicted_ms, observed));
    }

    /// Accuracy of the predicted times to first token.
    pub(crate) fn ttft_accuracy(&self, worker: &Arc<Worker>) -> TtftAccuracy {
        self.get(worker).map(|upstream| upstream.ttft_accuracy.clone()).unwrap_or_default()
    }

    /// Cache counts, in the order of [`CACHE_COUNTS`].
    pub(crate) fn cache_counts(&self, worker: &Arc<Worker>) -> [u64; CACHE_COUNTS.len()] {
        let count =
            |upstream: Arc<Upstream>| std::array::from_fn(|i| upstream.cache[i].load(Ordering::Relaxed));
        self.get(worker).map(count).unwrap_or_default()
    }

    /// Requests by outcome, in the order of [`AttemptOutcome::ALL`].
    pub(crate) fn outcome_counts(&self, worker: &Arc<Worker>) -> [u64; AttemptOutcome::ALL.len()] {
        let count = |upstream: Arc<Upstream>| {
            std::array::from_fn(|outcome| upstream.outcomes[outcome].load(Ordering::Relaxed))
        };
        self.get(worker).map(count).unwrap_or_default()
    }

    fn get(&self, worker: &Arc<Worker>) -> Option<Arc<Upstream>> {
        let by_worker = self.by_worker.read();
        by_worker.get(worker.id.index())?.as_ref().filter(|upstream| *upstream.worker == **worker).cloned()
    }

    pub(crate) fn prune(&self) {
        // Closing takes time, and requests to new workers wait for the lock.
        let upstreams: Vec<Arc<Upstream>> = self.by_worker.read().iter().flatten().cloned().collect();
        upstreams.iter().for_each(|upstream| upstream.prune());
    }
}

impl Upstream {
    fn count(&self, counts: &[AtomicU64; CACHE_COUNTS.len()], what: impl Fn(fn(&Feedback) -> u64) -> u64) {
        for ((_, _, read), count) in CACHE_COUNTS.iter().zip(counts) {
            count.fetch_add(what(*read), Ordering::Relaxed);
        }
    }

    /// Counts earlier responses without a number as zero, now that the engine is known to report cached tokens.
    fn confirm_unreported(&self) {
        for (count, unreported) in self.cache.iter().zip(&self.unreported) {
            if unreported.load(Ordering::Relaxed) > 0 {
                count.fetch_add(unreported.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// The data-parallel rank, if any.
    pub(crate) fn rank(&self) -> Option<u16> {
        self.worker.address.rank
    }

    /// Logs once that the worker cannot be named to a proxy.
    pub(crate) fn warn_without_endpoint(&self) {
        let worker = &self.worker.label;
        self.warned.call_once(|| {
            tracing::warn!(%worker, "the picker skips this worker: its URL has a host name; use its IP address");
        });
    }

    /// An idle connection that seems alive. The most recent one, so that surplus connections age and close.
    pub(crate) fn reuse(&self) -> Option<Box<UpstreamConnection>> {
        let now = Instant::now();
        loop {
            let Idle { mut connection, since } = self.take_idle(now)?;
            if now.saturating_duration_since(since) < self.idle_timeout && connection.is_alive() {
                return Some(connection);
            }
        }
    }

    /// The most recent idle connection that may be reused.
    fn take_idle(&self, now: Instant) -> Option<Idle> {
        let idle_min = match self.keeps_open.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => UNPROVEN_IDLE_MIN,
        };
        let mut idle = self.idle.lock();
        let is_old_enough = |one: &Idle| now.saturating_duration_since(one.since) >= idle_min;
        let old_enough = idle.partition_point(is_old_enough);
        old_enough.checked_sub(1).map(|last| idle.remove(last))
    }

    /// Notes that the worker answered on a reused connection.
    pub(crate) fn mark_keeps_open(&self) {
        self.keeps_open.store(true, Ordering::Relaxed);
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self, timeout: Duration) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let connecting = UpstreamConnection::open(&self.dialer, &self.target);
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(UpstreamError::ConnectTimeout),
        }
    }

    /// Keeps a connection for another request, if the pool has room.
    pub(crate) fn keep(&self, connection: Box<UpstreamConnection>) {
        let mut idle = self.idle.lock();
        if idle.len() < self.idle_max {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    fn prune(&self) {
        let mut idle = self.idle.lock();
        let old = idle.iter().take_while(|idle| idle.since.elapsed() >= self.idle_timeout).count();
        let closed: Vec<Idle> = idle.drain(..old).collect();
        drop(idle);
        drop(closed);
    }
}
