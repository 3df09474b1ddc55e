//! What a feed counts, for metrics and `GET /workers`.

/// Since the feed's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Batches that arrived, live or replayed, duplicates included.
    pub batches: u64,
    /// Of them live.
    pub live: u64,
    /// Batches that should have come live, and were found by asking for a replay after a suspicious silence.
    pub unheard: u64,
    /// Blocks stored by batches that were applied.
    pub blocks_stored: u64,
    /// Blocks removed by them.
    pub blocks_removed: u64,
    /// Times the sequence jumped.
    pub gaps: u64,
    /// Batches that no replay brought back.
    pub lost: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Times the engine turned out to be a new process.
    pub restarts: u64,
    /// Batches that were known already, or came too late to matter.
    pub duplicates: u64,
    /// Live batches let go because too many waited for a replay.
    pub dropped: u64,
    /// Events that could not be read.
    pub unreadable: u64,
    /// Blocks of caches that make no prefix, left out.
    pub skipped_blocks: u64,
    /// How long the last live batch was under way, by the engine's clock and ours; seconds, never negative.
    pub lag_s: f64,
    /// The first batch of what is known: 0 where nothing is missing at its beginning.
    pub floor_seq: Option<u64>,
    /// The batch that is expected next.
    pub next_seq: Option<u64>,
}
