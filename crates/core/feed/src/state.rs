//! What a feed remembers of where it stands.

use crate::prints::Prints;

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Down,
    /// Up, but it is not sure that nothing was missed and nobody else is at its other end.
    Unproven,
    Proven,
}

/// What is known of the cache, by the stream alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Unknown,
    Sound,
    /// Something of it is missing.
    Doubted(Doubt),
}

/// Why what a stream has told is not the whole truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Batches were lost, and no replay had them.
    Lost,
    /// An event could not be read.
    Unreadable,
    /// Answers contradict it.
    Contradicted,
}

/// Whether answers let the stream's word count, however whole the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    Given,
    /// They contradict it. Only answers that agree give it back, or another process.
    Withdrawn,
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
    /// The engine works, and nothing comes: has it told nothing?
    Hush,
}

impl Why {
    /// Whether what comes live has to wait until the replay has told what was before.
    pub fn holds_live(self) -> bool {
        matches!(self, Why::Join | Why::Reconnect | Why::Rebuild)
    }
}

/// What was applied last.
#[derive(Debug, Default)]
pub struct Known {
    pub prints: Prints,
    /// The latest moment of a batch, by the engine's clock.
    pub at_unix_s: f64,
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
