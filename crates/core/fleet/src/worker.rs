//! A worker: its identity, and everything known about it at one moment.

use std::sync::Arc;

use warmroute_types::{Address, PrefixCache, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Breaker, WorkerLoadView};

/// Which models a worker serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Models {
    /// Neither configured nor listed by the engine yet.
    #[default]
    Unknown,
    /// The engine does not list its models: it is a candidate for every request.
    Any,
    /// These, by name: a base model and its LoRA adapters.
    Named(Arc<[Arc<str>]>),
}

impl Models {
    /// Creates [`Models::Named`] from names.
    pub fn named<S: AsRef<str>>(names: &[S]) -> Models {
        Models::Named(names.iter().map(|name| Arc::from(name.as_ref())).collect())
    }
}

/// What an engine says about a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// Name of the model.
    pub id: Arc<str>,
    /// Unix time at which the model was created or loaded.
    pub created: Option<u64>,
    /// Longest prompt and answer together, in tokens.
    pub max_model_len: Option<u64>,
    /// The base model, if this is a LoRA adapter.
    pub parent: Option<Arc<str>>,
}

/// Identity of a worker. Shared with every decision that chose it.
#[derive(Debug, PartialEq, Eq)]
pub struct Worker {
    /// Index of the worker in the fleet.
    pub id: WorkerId,
    /// Address of the engine.
    pub address: Address,
    /// The address as one word, for labels and headers.
    pub label: Box<str>,
    /// Hash of the address: the same in every router and after every restart.
    pub identity: u64,
}

impl Worker {
    pub(crate) fn new(id: WorkerId, address: Address) -> Worker {
        let label = address.to_string().into_boxed_str();
        Worker { id, identity: Worker::identity_of(&address), address, label }
    }

    /// The identity of the worker at this address.
    pub fn identity_of(address: &Address) -> u64 {
        xxh3_64(address.to_string().as_bytes())
    }
}

/// Everything about one worker at one moment, for lists and metrics.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// The worker; what follows is a copy of the moment.
    pub worker: Arc<Worker>,
    /// Models that the worker serves.
    pub models: Models,
    /// State and load.
    pub load: WorkerLoadView,
    /// Whether no probe has completed yet.
    pub is_unprobed: bool,
    /// Circuit breaker.
    pub breaker: Breaker,
    /// Number of ejections as a latency outlier.
    pub ejections: u64,
    /// The engine's own prefix cache counters.
    pub prefix_cache: Option<PrefixCache>,
    /// What the engine says about its models.
    pub model_cards: Arc<[ModelCard]>,
}
