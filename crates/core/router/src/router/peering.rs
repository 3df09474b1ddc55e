//! What this router exchanges with its peers: messages about assignments (`sharing.rs`) and engines' event streams
//! (`relaying.rs`). The message driver and the feeds' driver use it; requests do not.

use super::Router;

/// The router as its peers see it.
pub struct Peering<'a, P> {
    pub(super) router: &'a Router<P>,
}
