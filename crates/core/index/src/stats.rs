//! Counts and sizes of an index, for metrics.

/// What an index contains, what that costs, and how often a limit was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Distinct spans that a holder holds, or that precede one in its chain.
    pub spans: usize,
    /// (holder, span) pairs that are held.
    pub held: usize,
    /// Nodes of up to 64 spans each.
    pub nodes: usize,
    /// Requests whose presumed spans are recorded.
    pub uses: usize,
    /// Spans that wait for an unknown parent.
    pub orphans: usize,
    /// Bytes by part.
    pub bytes: Bytes,
    /// Names that were stored again at another address.
    pub moved: u64,
    /// Spans that began to wait for an unknown parent.
    pub orphans_parked: u64,
    /// Spans that waited for a parent and were inserted when it arrived.
    pub orphans_grafted: u64,
    /// Spans that waited for a parent and were dropped because too many waited.
    pub orphans_dropped: u64,
    /// Reported spans that were refused: no room, or a size that cannot be indexed.
    pub refused: u64,
    /// Prompts that were not presumed because unanswered requests and reported spans left no room.
    pub unpresumed: u64,
    /// The limit for all bytes together.
    pub budget_bytes: usize,
    /// Presumed spans evicted because their holder's cache was full.
    pub evicted_by_capacity: u64,
    /// Presumed spans evicted because they were not used for the time to live.
    pub evicted_by_age: u64,
    /// Presumed spans evicted because the index was full.
    pub evicted_by_budget: u64,
    /// Paths that lookups over bytes abandoned because they already followed four.
    pub path_overflows: u64,
    /// Children that lookups over bytes cannot find because their node has too many child lengths.
    pub length_overflows: u64,
}

/// Bytes in use, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Nodes with digests, sizes, holders and shared names, and the child table.
    pub tree: usize,
    /// The table from shared names to addresses.
    pub names: usize,
    /// Names that differ between holders, and spans that wait for a parent.
    pub holder_names: usize,
    /// The uses of presumed spans.
    pub presumed: usize,
}

impl Bytes {
    /// The sum of all parts.
    pub fn total(&self) -> usize {
        self.tree + self.names + self.holder_names + self.presumed
    }
}
