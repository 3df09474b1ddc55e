//! One worker as the fleet knows it.

use std::sync::Arc;

use warmroute_types::{Address, PrefixCache, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Breaker, DeskView};

/// Which models a worker serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Models {
    /// Nobody said, and it has not been asked yet.
    #[default]
    Unknown,
    /// It does not list its models: it is offered every request.
    Any,
    /// These, by name: a base model and its LoRA adapters.
    Named(Vec<Arc<str>>),
}

impl Models {
    /// From names.
    pub fn named<S: AsRef<str>>(names: &[S]) -> Models {
        Models::Named(names.iter().map(|name| Arc::from(name.as_ref())).collect())
    }
}

/// Who a worker is. Shared with every decision that chose it.
#[derive(Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its seat.
    pub id: WorkerId,
    /// Where it is.
    pub address: Address,
    /// The address as one word, for labels and headers.
    pub label: Box<str>,
    /// A hash of the address: the same in every router and after every restart.
    pub identity: u64,
}

impl Worker {
    pub(crate) fn new(id: WorkerId, address: Address) -> Worker {
        let label = address.to_string().into_boxed_str();
        Worker { id, identity: Worker::identity_of(&address), address, label }
    }

    /// The identity of whoever is at this address.
    pub fn identity_of(address: &Address) -> u64 {
        xxh3_64(address.to_string().as_bytes())
    }
}

/// Everything about one worker at one moment, for lists and metrics.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Who.
    pub worker: Arc<Worker>,
    /// What it serves.
    pub models: Models,
    /// How it is and what it has to do.
    pub desk: DeskView,
    /// Whether nobody has tried to reach it yet.
    pub is_untried: bool,
    /// Whether requests reach it.
    pub breaker: Breaker,
    /// How often it was left alone because its first tokens came far later than predicted.
    pub ejections: u64,
    /// What the engine counts itself of its prefix cache.
    pub prefix_cache: Option<PrefixCache>,
}
