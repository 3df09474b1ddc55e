//! The identity and the state of a worker.

use std::fmt;

/// Most workers of one router. It bounds every array that is indexed by a [`WorkerId`].
pub const MAX_WORKERS: usize = 4_096;

/// A worker's index in the fleet: a small dense number, so that per-worker state is an array.
///
/// An index is reused only after the last booking on it has been released, so a late release is never charged to
/// another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u16);

impl WorkerId {
    /// The id as an array index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The address of a worker: an engine's base URL and, for an engine with several data-parallel ranks, the rank. Each
/// rank has its own cache, so each is a separate worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The engine's base URL without a trailing slash, e.g. `http://10.0.0.7:8000`.
    pub url: String,
    /// The data-parallel rank, or `None` for an engine that has only one.
    pub rank: Option<u16>,
}

impl Address {
    /// An engine without data-parallel ranks.
    pub fn new(url: impl Into<String>) -> Address {
        Address { url: url.into(), rank: None }
    }

    pub(crate) fn ranks(url: &str, ranks: Option<u16>) -> Vec<Address> {
        match ranks {
            None => vec![Address::new(url)],
            Some(ranks) => (0..ranks).map(|rank| Address { url: url.to_owned(), rank: Some(rank) }).collect(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}@{rank}", self.url),
            None => f.write_str(&self.url),
        }
    }
}

/// Whether the source of a worker says that it can take requests, as Kubernetes does of a pod. A probe says that a process
/// answers, which is not the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceReadiness {
    /// It can.
    #[default]
    Ready,
    /// It cannot for now.
    NotReady,
}

/// A worker's state. A `Ready` worker receives requests, a `Recovering` one a single request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WorkerState {
    /// Known, but not yet healthy.
    Starting = 0,
    /// Healthy: it may be chosen.
    Ready = 1,
    /// It failed too often. Health checks continue until it responds.
    Unhealthy = 2,
    /// It finishes its requests and receives no new ones.
    Draining = 3,
    /// Health checks succeed again after its requests failed: single requests test whether it serves.
    Recovering = 4,
    /// Its source says that it is not ready.
    Unready = 5,
    /// The engine sleeps: it answers probes and has released its memory.
    Sleeping = 6,
}

impl WorkerState {
    /// All states.
    pub const ALL: [WorkerState; 7] = [
        WorkerState::Starting,
        WorkerState::Ready,
        WorkerState::Unhealthy,
        WorkerState::Recovering,
        WorkerState::Unready,
        WorkerState::Sleeping,
        WorkerState::Draining,
    ];

    /// Whether it receives requests, if only one at a time.
    pub fn takes_requests(self) -> bool {
        matches!(self, WorkerState::Ready | WorkerState::Recovering)
    }

    /// The word used in metrics, logs and `GET /workers`.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Starting => "starting",
            WorkerState::Ready => "ready",
            WorkerState::Unhealthy => "unhealthy",
            WorkerState::Draining => "draining",
            WorkerState::Recovering => "recovering",
            WorkerState::Unready => "unready",
            WorkerState::Sleeping => "sleeping",
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
