//! What reading a request takes beside its settings: room for its body, and the prompt formats of its model's engines.

use std::sync::Arc;

use warmroute_policy::Standard;
use warmroute_router::Router;

use crate::alignments::Alignments;
use crate::body_budget::BodyMemory;
use crate::metrics::UnrenderedPrompts;

/// Reads requests: their bodies within the memory for bodies, and their prompts as engines see them.
pub(crate) struct RequestReader {
    pub router: Arc<Router<Standard>>,
    pub alignments: Alignments,
    pub body_memory: BodyMemory,
    pub unrendered: UnrenderedPrompts,
    /// Whether a trace of the requests is recorded.
    pub records_trace: bool,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A reader in front of a router with this policy, without engines.
    pub(crate) fn reader(policy: &str) -> RequestReader {
        let policy: Standard = policy.parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let (alignments, body_memory, unrendered) = Default::default();
        RequestReader { router, alignments, body_memory, unrendered, records_trace: false }
    }
}
