//! Which router.

use std::fmt;

/// One router's number among those that act as one. Every process draws its own when it starts, so a router that was
/// restarted is another one, and no clock is needed to tell which of two is the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// For whom a message of a router is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All who are there now.
    Everyone,
    /// That one, if it is there.
    One(RouterId),
}
