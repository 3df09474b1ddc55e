//! What this router exchanges with its peers: messages about assignments and presumed caches (`sharing.rs`). The task
//! that sends and receives messages uses it; requests do not.

use super::Router;

/// The router as its peers see it.
pub struct Peering<'a, P> {
    pub(super) router: &'a Router<P>,
}
