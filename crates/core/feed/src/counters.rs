//! Counters of a feed, for metrics and `GET /workers`.

/// Counts since the feed began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Batches that arrived, live or replayed, duplicates included.
    pub batches: u64,
    /// Live batches among them.
    pub live: u64,
    /// Batches that did not arrive live, found by a replay after a suspicious silence.
    pub missed_live: u64,
    /// Blocks stored by batches that were applied.
    pub blocks_stored: u64,
    /// Blocks removed by batches that were applied.
    pub blocks_removed: u64,
    /// Gaps in the sequence numbers.
    pub gaps: u64,
    /// Batches that no replay recovered.
    pub lost: u64,
    /// Replays requested.
    pub replays: u64,
    /// Times that the engine turned out to be a new process.
    pub restarts: u64,
    /// Batches that were known already, or arrived too late to matter.
    pub duplicates: u64,
    /// Live batches dropped because too many waited for a replay.
    pub dropped: u64,
    /// Events that could not be read.
    pub unreadable: u64,
    /// Blocks of caches that cannot be followed, and blocks without a position.
    pub skipped_blocks: u64,
    /// Delay of the last live batch in seconds, by the engine's clock and ours; never negative.
    pub lag_s: f64,
    /// The first batch of what is known: 0 where nothing is missing at the beginning.
    pub floor_seq: Option<u64>,
    /// The batch that is expected next.
    pub next_seq: Option<u64>,
}
