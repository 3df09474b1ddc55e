//! Changes of the router's state: the fleet, the workers' caches, settings and time.

use std::sync::Arc;

use warmroute_feed::{Counters, Step};
use warmroute_fleet::{ModelCard, Models, ProbeResult, Worker};
use warmroute_types::{Address, CacheCapacity, CacheEvent, CacheView, LoadReport, Micros, SourceReadiness};

use crate::{Matching, SavedState};

/// A change of the router's state. Workers join by [`Router::join`](crate::Router::join), which can fail. Feeds, discovery, health probes, load reports, settings and
/// time all arrive as changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// A worker leaves: it finishes its requests and gets no new ones.
    Leave {
        /// Address of the worker.
        address: Address,
    },
    /// The source of a worker says whether it is ready. A worker that is not keeps what is known about it.
    Readiness {
        /// The worker that the source lists.
        worker: Arc<Worker>,
        /// What the source says.
        readiness: SourceReadiness,
    },
    /// The sources of a worker say to which groups it belongs.
    Grouped {
        /// The worker that the sources list.
        worker: Arc<Worker>,
        /// Names of all its groups.
        groups: Vec<String>,
    },
    /// A health probe completed.
    Probed {
        /// The worker that was probed.
        worker: Arc<Worker>,
        /// Whether the engine answered that it is healthy, or that it sleeps.
        result: ProbeResult,
        /// Time of the event.
        at: Micros,
    },
    /// The worker failed a request: its connection broke, it timed out, or it answered 502, 503 or 504.
    Faulted {
        /// The worker that failed.
        worker: Arc<Worker>,
        /// Time of the event.
        at: Micros,
    },
    /// An answer broke off, and the fault may be the worker's or the request's.
    Broke {
        /// The worker that sent the answer.
        worker: Arc<Worker>,
        /// Fingerprint of the request: equal for equal requests.
        request: u64,
        /// Time of the event.
        at: Micros,
    },
    /// The worker asked for a pause: 429 or 503 with Retry-After.
    Resting {
        /// The worker, which gets no requests until then.
        worker: Arc<Worker>,
        /// End of the pause.
        until: Micros,
    },
    /// The engine listed its models.
    Serves {
        /// The worker that serves them.
        worker: Arc<Worker>,
        /// All models that it lists; they replace those before.
        models: Models,
    },
    /// The engine described its models.
    ModelCards {
        /// The worker whose engine describes them.
        worker: Arc<Worker>,
        /// What it says about each model.
        cards: Vec<ModelCard>,
    },
    /// The engine reported the size of its cache.
    Capacity {
        /// The worker whose presumed cache gets this limit.
        worker: Arc<Worker>,
        /// Tokens of the cache, and of its blocks.
        capacity: CacheCapacity,
    },
    /// The matching of the worker's events was decided.
    Aligned {
        /// The worker whose events are matched with prompts.
        worker: Arc<Worker>,
        /// How events are matched; `None` if they cannot be read and the cache stays presumed.
        matching: Option<Matching>,
    },
    /// The engine published cache events.
    Cached {
        /// The worker whose feed has put the events in order.
        worker: Arc<Worker>,
        /// Events in order.
        events: Vec<CacheEvent>,
    },
    /// The worker's cache is empty: the engine was restarted.
    Emptied {
        /// The worker that is presumed and reported to hold nothing from now on.
        worker: Arc<Worker>,
    },
    /// The feed's assessment of the worker's events.
    Viewed {
        /// The worker that the feed follows.
        worker: Arc<Worker>,
        /// The view; `Presumed` when the feed is silent.
        view: CacheView,
    },
    /// The feed's counters.
    Fed {
        /// The worker that the feed follows.
        worker: Arc<Worker>,
        /// All counters since the feed began; they replace those before.
        counters: Counters,
    },
    /// The engine reported its load.
    Load {
        /// The worker whose engine sent the report.
        worker: Arc<Worker>,
        /// Running and waiting requests, and the use of the cache.
        report: LoadReport,
    },
    /// The engine reported the LoRA adapters that it works with.
    Adapters {
        /// The worker that may load an adapter for a request with another one.
        worker: Arc<Worker>,
        /// Names of the adapters of its running and waiting requests.
        names: Vec<Box<str>>,
        /// How many it can hold, if it says so.
        slots: Option<u32>,
    },
    /// A LoRA adapter exists. Its cache is separate from its base model's.
    Adapter {
        /// Name of the adapter.
        name: Box<str>,
    },
    /// A worker stored a response or a conversation for a client.
    ResponseStored {
        /// The hash of its identifier.
        id: u128,
        /// A hash of the tenant; 0 without API keys.
        owner: u64,
        /// The only worker that can continue from it.
        worker: Arc<Worker>,
    },
    /// The concurrency limit of workers changed.
    InFlightMax {
        /// The limit, in requests.
        requests: u32,
    },
    /// An earlier process left its state. Each worker gets its part when it joins, so this comes before any worker, on a
    /// router with the same seed.
    Restored {
        /// What that process knew about its workers.
        state: Box<SavedState>,
        /// Time since the state was saved.
        age: Micros,
        /// Time of the event.
        at: Micros,
    },
    /// Events for earlier requests must have arrived: presumptions that wait for them are withdrawn. Due about once a
    /// second.
    EventsDue {
        /// Time of the event.
        at: Micros,
    },
    /// Old presumptions and saved state expire. Due every few seconds.
    Expired {
        /// Time of the event.
        at: Micros,
    },
}

impl Change {
    /// Converts a step of a worker's feed. `None` for a replay request, which the feed's driver handles.
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
