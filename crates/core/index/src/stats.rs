//! The index in numbers, for metrics.

/// What an index holds, what that costs, and how often it met a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Distinct spans, held or on the way to one that is held.
    pub spans: usize,
    /// (worker, span) pairs that are held.
    pub held: usize,
    /// Nodes of up to 64 spans each.
    pub nodes: usize,
    /// Requests whose presumed spans are remembered.
    pub uses: usize,
    /// Spans that wait for an unknown parent.
    pub orphans: usize,
    /// Bytes by part.
    pub bytes: Bytes,
    /// Names that were stored again in another place.
    pub moved: u64,
    /// Spans that came to wait for an unknown parent.
    pub orphans_parked: u64,
    /// Spans that waited for a parent and were placed when it came.
    pub orphans_grafted: u64,
    /// Spans that waited for a parent and left because too many did.
    pub orphans_dropped: u64,
    /// Reported spans that were refused: no room, or no size that can be indexed.
    pub refused: u64,
    /// Prompts that were not presumed, because unanswered requests and reported spans left no room.
    pub unpresumed: u64,
    /// The bytes that all of it must fit.
    pub budget_bytes: usize,
    /// Presumed spans evicted because their worker's cache was full.
    pub evicted_by_capacity: u64,
    /// Presumed spans evicted because nobody used them for too long.
    pub evicted_by_age: u64,
    /// Presumed spans evicted because the index was full.
    pub evicted_by_budget: u64,
    /// Ways that lookups over bytes gave up, because they already followed four.
    pub way_overflows: u64,
    /// Children that lookups over bytes can not find, because their node has too many lengths.
    pub fan_overflows: u64,
}

/// Live bytes, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Nodes with digests, sizes, holders and shared names, and the table of children.
    pub tree: usize,
    /// From shared names to places.
    pub names: usize,
    /// What workers' names differ in, and what waits for a parent.
    pub books: usize,
    /// Last uses of presumed spans.
    pub presumed: usize,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> usize {
        self.tree + self.names + self.books + self.presumed
    }
}
