//! What a rule builds, and what it needs.

use std::sync::Arc;

use warmroute_policy::Policy;

use crate::watch::Watcher;

/// A policy, with its observer if the rule needs more than the numbers of a choice.
pub struct BuiltRule {
    /// Policy that the router calls.
    pub policy: Box<dyn Policy>,
    /// Observer that the simulated router notifies.
    pub watcher: Option<Arc<dyn Watcher>>,
}

/// Costly inputs of a policy. The router computes only those that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Cached tokens per worker.
    pub overlap: bool,
    /// Hash of the prompt's beginning.
    pub prefix_key: bool,
    /// Session key.
    pub session_key: bool,
}
