//! The identity of a router.

use std::fmt;

/// A router's id among its peers. Every process draws a new one at its start, so a restarted router is a new one, and
/// no clock is needed to tell two processes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The recipient of a router's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All present peers.
    Everyone,
    /// This peer, if it is present.
    One(RouterId),
}
