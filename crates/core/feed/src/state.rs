//! The states of a feed.

use crate::groups::GroupObstacle;
use crate::recent_batches::RecentBatches;

/// How far the connection to the stream can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    Down,
    /// Up, but batches may have been missed, or another process may be sending.
    Unverified,
    Verified,
}

/// How complete the knowledge of the cache is, judged by the stream alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    Unknown,
    Complete,
    /// A part is missing or unreadable.
    Doubted(Doubt),
}

/// Why the view of a stream is not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Batches were lost, and no replay had them.
    Lost,
    /// An event could not be read.
    Unreadable,
    /// Answers contradict the view.
    Contradicted,
    /// The events do not show what the model's caches can reuse together.
    Groups(GroupObstacle),
}

/// Whether answers confirm the stream's view, however complete the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credibility {
    Trusted,
    /// Answers contradict the view. Only answers that agree, or a new process, restore trust.
    Contradicted,
}

/// A replay in progress.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    pub reason: ReplayReason,
    /// The highest live batch when the replay was requested: the replay must cover everything below it.
    pub covers: Option<u64>,
    pub has_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReason {
    /// Nothing is known yet.
    Join,
    /// Whether this is the known process, and what was missed, is open.
    Reconnect,
    /// Batches are missing.
    Gap,
    /// To make an uncertain view exact again.
    Rebuild,
    /// The engine works and nothing arrives: has it published anything?
    Silence,
}

impl ReplayReason {
    /// Whether live batches wait until the replay has brought the batches before them.
    pub fn holds_live(self) -> bool {
        matches!(self, ReplayReason::Join | ReplayReason::Reconnect | ReplayReason::Rebuild)
    }
}

/// The last applied batches.
#[derive(Debug, Default)]
pub struct Applied {
    pub recent: RecentBatches,
    /// The latest timestamp of a batch, by the engine's clock.
    pub at_unix_s: f64,
}

/// How a batch arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOrigin {
    Live,
    /// Live, but it had to wait for a replay.
    Held,
    Replayed,
}

/// Which process sent a batch with an old number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    SameProcess,
    NewProcess,
}
