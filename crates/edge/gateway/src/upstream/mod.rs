//! Connections to workers.

mod connection;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use warmroute_fleet::Worker;
use warmroute_router::{Feedback, Silence};
use warmroute_types::{BadUrl, Micros};
use warmroute_wire::{Dialer, Target};

use connection::Connection;
pub(crate) use connection::{Answer, Fault};

use crate::Config;
use crate::foresight::Foresight;
use crate::metrics::{CACHE_COUNTS, Ending};

/// One [`Upstream`] per worker, by seat.
pub(crate) struct Upstreams {
    seats: RwLock<Vec<Option<Arc<Upstream>>>>,
    idle_timeout: Duration,
    idle_max: usize,
    dialer: Dialer,
}

/// A worker, and the unused connections to it.
pub(crate) struct Upstream {
    worker: Arc<Worker>,
    pub(crate) target: Target,
    idle: Mutex<Vec<Idle>>,
    /// Requests by how they ended.
    endings: [AtomicU64; Ending::ALL.len()],
    /// What was predicted and found of prompts, in the order of [`CACHE_COUNTS`].
    cache: [AtomicU64; CACHE_COUNTS.len()],
    /// What is to be added to it once the engine has said a number: until then it is not known whether answers that say
    /// nothing mean zero.
    unsaid: [AtomicU64; CACHE_COUNTS.len()],
    /// Answers that said "not now", and when.
    backpressure: AtomicU64,
    /// Predicted times to first tokens against observed ones.
    foresight: Foresight,
    idle_max: usize,
    idle_timeout: Duration,
    dialer: Dialer,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

impl Upstreams {
    pub(crate) fn new(config: &Config) -> Upstreams {
        Upstreams {
            seats: RwLock::default(),
            idle_timeout: config.idle_timeout,
            idle_max: config.idle_connections_max,
            dialer: config.dialer.clone(),
        }
    }

    /// The worker's upstream. A seat may have gone to another worker since, so who sits there is checked.
    pub(crate) fn of(&self, worker: &Arc<Worker>) -> Result<Arc<Upstream>, BadUrl> {
        if let Some(upstream) = self.known(worker) {
            return Ok(upstream);
        }
        let upstream = Arc::new(self.open(worker)?);
        let mut seats = self.seats.write();
        if seats.len() <= worker.id.index() {
            seats.resize_with(worker.id.index() + 1, || None);
        }
        seats[worker.id.index()] = Some(Arc::clone(&upstream));
        Ok(upstream)
    }

    fn open(&self, worker: &Arc<Worker>) -> Result<Upstream, BadUrl> {
        Ok(Upstream {
            worker: Arc::clone(worker),
            target: worker.address.url.parse()?,
            idle: Mutex::default(),
            endings: Default::default(),
            cache: Default::default(),
            unsaid: Default::default(),
            backpressure: AtomicU64::new(0),
            foresight: Foresight::default(),
            idle_max: self.idle_max,
            idle_timeout: self.idle_timeout,
            dialer: self.dialer.clone(),
        })
    }

    /// Counts the end of a request.
    pub(crate) fn count(&self, worker: &Arc<Worker>, ending: Ending) {
        if let Some(upstream) = self.known(worker) {
            upstream.endings[ending as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an answer that said "not now".
    pub(crate) fn count_backpressure(&self, worker: &Arc<Worker>) {
        let upstream = self.known(worker);
        upstream.iter().for_each(|upstream| _ = upstream.backpressure.fetch_add(1, Ordering::Relaxed));
    }

    /// How many answers said "not now".
    pub(crate) fn backpressure(&self, worker: &Arc<Worker>) -> u64 {
        self.known(worker).map_or(0, |upstream| upstream.backpressure.load(Ordering::Relaxed))
    }

    /// Counts what an engine found in its cache against what was expected.
    pub(crate) fn count_feedback(&self, worker: &Arc<Worker>, feedback: &Feedback, silence: Silence) {
        let Some(upstream) = self.known(worker) else { return };
        upstream.count(&upstream.cache, |read| read(feedback));
        if feedback.cached.is_none() && silence == Silence::MeansZero {
            let nothing = Feedback { cached: Some(0), ..*feedback };
            upstream.count(&upstream.unsaid, |read| read(&nothing) - read(feedback));
        } else if feedback.cached.is_some() {
            upstream.understand_silence();
        }
    }

    /// Holds a first token's time against what was predicted of it.
    pub(crate) fn count_first_token(&self, worker: &Arc<Worker>, predicted_ms: f32, observed: Micros) {
        self.known(worker).iter().for_each(|upstream| upstream.foresight.count(predicted_ms, observed));
    }

    /// How good predictions of first tokens were.
    pub(crate) fn foresight(&self, worker: &Arc<Worker>) -> Foresight {
        self.known(worker).map(|upstream| upstream.foresight.clone()).unwrap_or_default()
    }

    /// What was predicted and found, in the order of [`CACHE_COUNTS`].
    pub(crate) fn cache_counts(&self, worker: &Arc<Worker>) -> [u64; CACHE_COUNTS.len()] {
        let count =
            |upstream: Arc<Upstream>| std::array::from_fn(|i| upstream.cache[i].load(Ordering::Relaxed));
        self.known(worker).map(count).unwrap_or_default()
    }

    /// Requests by how they ended, in the order of [`Ending::ALL`].
    pub(crate) fn counts(&self, worker: &Arc<Worker>) -> [u64; Ending::ALL.len()] {
        let count = |upstream: Arc<Upstream>| {
            std::array::from_fn(|ending| upstream.endings[ending].load(Ordering::Relaxed))
        };
        self.known(worker).map(count).unwrap_or_default()
    }

    fn known(&self, worker: &Arc<Worker>) -> Option<Arc<Upstream>> {
        let seats = self.seats.read();
        seats.get(worker.id.index())?.as_ref().filter(|upstream| *upstream.worker == **worker).cloned()
    }

    pub(crate) fn prune(&self) {
        self.seats.read().iter().flatten().for_each(|upstream| upstream.prune());
    }
}

impl Upstream {
    fn count(&self, counts: &[AtomicU64; CACHE_COUNTS.len()], what: impl Fn(fn(&Feedback) -> u64) -> u64) {
        for ((_, _, read), count) in CACHE_COUNTS.iter().zip(counts) {
            count.fetch_add(what(*read), Ordering::Relaxed);
        }
    }

    /// The engine says how much was cached: where it said nothing before, that was zero.
    fn understand_silence(&self) {
        for (count, unsaid) in self.cache.iter().zip(&self.unsaid) {
            if unsaid.load(Ordering::Relaxed) > 0 {
                count.fetch_add(unsaid.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// The data-parallel rank to ask for.
    pub(crate) fn rank(&self) -> Option<u16> {
        self.worker.address.rank
    }

    /// A connection that was used before and seems alive: the most recent one, so that those not needed grow old.
    pub(crate) fn reuse(&self) -> Option<Connection> {
        loop {
            let Idle { mut connection, since } = self.idle.lock().pop()?;
            if since.elapsed() < self.idle_timeout && connection.is_alive() {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self, timeout: Duration) -> Result<Connection, Fault> {
        let connecting = Connection::open(&self.dialer, &self.target);
        match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(Fault::ConnectTimeout),
        }
    }

    /// Keeps a connection for the next request, if there is room.
    pub(crate) fn keep(&self, connection: Connection) {
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
