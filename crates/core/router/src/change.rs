//! What the router is told: news of the fleet, and how requests fared.

use std::sync::Arc;

use warmroute_feed::{Counters, Step};
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_types::{Address, CacheCapacity, CacheEvent, CacheView, LoadReport, Micros};

use crate::Matching;

/// News that changes the router's state. Feeds, discovery, health and load reports all come through this one door.
#[derive(Clone, Debug)]
pub enum Change {
    /// A worker is there.
    Join {
        /// Where.
        address: Address,
        /// What it serves, if somebody said so.
        models: Models,
    },
    /// A worker shall go: it finishes what it has and gets nothing new.
    Leave {
        /// Where.
        address: Address,
    },
    /// Somebody tried to reach the worker.
    Probed {
        /// Which.
        worker: Arc<Worker>,
        /// How it went.
        result: ProbeResult,
        /// When.
        at: Micros,
    },
    /// The worker took a request and failed it: its connection broke, nothing came in time, or it said 502, 503 or 504.
    Faulted {
        /// Which.
        worker: Arc<Worker>,
        /// When.
        at: Micros,
    },
    /// The same, and nobody knows yet whether it was the worker's fault or the request's.
    Broke {
        /// Which.
        worker: Arc<Worker>,
        /// What was asked, as a number: the same for the same.
        request: u64,
        /// When.
        at: Micros,
    },
    /// The worker asked not to be sent more for now: 429 or 503, with a time.
    Resting {
        /// Which.
        worker: Arc<Worker>,
        /// Until when.
        until: Micros,
    },
    /// The worker named its models.
    Serves {
        /// Which.
        worker: Arc<Worker>,
        /// What.
        models: Models,
    },
    /// The engine said how much its cache holds.
    Capacity {
        /// Which.
        worker: Arc<Worker>,
        /// So much.
        capacity: CacheCapacity,
    },
    /// It is known how the worker's events are to be read, or that they cannot be.
    Aligned {
        /// Which.
        worker: Arc<Worker>,
        /// How; `None`: its cache stays presumed.
        matching: Option<Matching>,
    },
    /// The worker's engine told what happened to its cache.
    Cached {
        /// Which.
        worker: Arc<Worker>,
        /// In this order.
        events: Vec<CacheEvent>,
    },
    /// The worker's cache is empty: its engine has been restarted.
    Emptied {
        /// Which.
        worker: Arc<Worker>,
    },
    /// What the worker's events are worth.
    Viewed {
        /// Which.
        worker: Arc<Worker>,
        /// `Presumed`: nothing, they have fallen silent.
        view: CacheView,
    },
    /// How the worker's event stream fares.
    Fed {
        /// Which.
        worker: Arc<Worker>,
        /// In numbers.
        counters: Counters,
    },
    /// The engine reported its load.
    Load {
        /// Which.
        worker: Arc<Worker>,
        /// What it said.
        report: LoadReport,
    },
}

impl Change {
    /// What a worker's feed says is to be done. A replay is nobody's but the feed's driver's to ask for.
    pub fn from_feed(worker: &Arc<Worker>, step: Step) -> Option<Change> {
        let worker = Arc::clone(worker);
        match step {
            Step::Apply(events) => Some(Change::Cached { worker, events }),
            Step::Forget => Some(Change::Emptied { worker }),
            Step::View(view) => Some(Change::Viewed { worker, view: view.into() }),
            Step::AskReplay { .. } => None,
        }
    }
}

/// How a request fared. A failure and a client that leaves are no outcomes: the booking is simply dropped. Whether a failure
/// speaks against its worker only the driver can tell; if so, it says [`Change::Faulted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The first token came: the prefill is over. The booking stays for the decoding.
    FirstToken {
        /// When.
        at: Micros,
    },
    /// It was answered to the end: the prompt has been computed.
    Ended,
    /// The worker refused it (backpressure, a client's error): it is alive, and has computed nothing.
    Refused,
}
