//! Who a worker is, and what state it is in.

use std::fmt;

/// The most workers one router knows. It bounds every array that is indexed by a [`WorkerId`].
pub const MAX_WORKERS: usize = 4_096;

/// A worker's seat in the fleet: a small dense number, so that per-worker state is an array.
///
/// A seat is given to a newcomer only after the last booking on it has been released, so a late release can never be
/// charged to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u16);

impl WorkerId {
    /// The seat as an array index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Where a worker is: an engine's base URL and, where one engine runs several data-parallel ranks, which of them.
/// Each rank has a cache of its own, so each is a worker of its own.
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

/// A worker's life: a `Ready` one is given new requests, a `Recovering` one a single request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WorkerState {
    /// Known, but it has not yet said that it is well.
    Starting = 0,
    /// Well: it may be chosen.
    Ready = 1,
    /// It failed too often, and is asked again and again until it answers.
    Unhealthy = 2,
    /// It finishes what it has and gets nothing new.
    Draining = 3,
    /// It answers again, but its requests had failed: one at a time finds out whether it serves.
    Recovering = 4,
}

impl WorkerState {
    /// Every state there is.
    pub const ALL: [WorkerState; 5] = [
        WorkerState::Starting,
        WorkerState::Ready,
        WorkerState::Unhealthy,
        WorkerState::Recovering,
        WorkerState::Draining,
    ];

    /// Whether it is given requests, if only one at a time.
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
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
