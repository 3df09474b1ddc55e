//! What a feed remembers of where it stands.

use warmroute_types::Micros;

use crate::prints::Prints;

/// The longest pause between two attempts to rebuild an uncertain view.
const REBUILD_PAUSE_MAX: Micros = Micros::from_secs(600);

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Down,
    /// Up, but it is not sure that nothing was missed and nobody else is at its other end.
    Unproven,
    Proven,
}

/// What is known of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Unknown,
    Sound,
    Doubted,
}

/// A replay under way.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    pub why: Why,
    /// The highest live batch when it was asked for: it must cover everything below.
    pub covers: Option<u64>,
    pub has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing is known yet.
    Join,
    /// Is this the process we knew, and what did we miss?
    Reconnect,
    /// Batches are missing.
    Gap,
    /// To make an uncertain view exact again.
    Rebuild,
}

/// What was applied last.
#[derive(Debug, Default)]
pub struct Known {
    pub prints: Prints,
    /// The latest moment of a batch, by the engine's clock.
    pub at_unix_s: f64,
}

/// When an uncertain view is next rebuilt, if that has a chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rebuild {
    pub due: Option<Micros>,
    pub pause: Micros,
}

/// By which way a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Live,
    /// Live, but it had to wait.
    Held,
    Replayed,
}

/// Whose an old number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    SameProcess,
    NewProcess,
}

impl Rebuild {
    /// Plans the next attempt: after `first`, then after twice as long as last time.
    pub fn plan(&mut self, first: Micros, now: Micros) {
        let pause = match self.pause {
            Micros::ZERO => first,
            last => (last + last).min(REBUILD_PAUSE_MAX),
        };
        *self = Rebuild { due: Some(now + pause), pause };
    }
}
