//! Chains that are inserted into the tree: their spans, the point where they begin, and the nodes that received them.

use crate::body::ones;
use crate::node::NodeRef;
use crate::orphans::OrphanSpan;
use crate::span::{NamedSpan, Size};

/// The spans of a store, as parallel arrays.
#[derive(Default)]
pub(crate) struct Chain {
    pub names: Vec<u64>,
    pub digests: Vec<u64>,
    pub sizes: Vec<Size>,
    /// How often the holder holds each span. Zero for a placeholder, which keeps the position of the spans behind it.
    pub counts: Vec<u32>,
}

impl Chain {
    pub fn clear(&mut self) {
        self.names.clear();
        self.digests.clear();
        self.sizes.clear();
        self.counts.clear();
    }

    pub fn push(&mut self, span: OrphanSpan) {
        self.names.push(span.name);
        self.digests.push(span.digest);
        self.sizes.push(span.size);
        self.counts.push(span.count);
    }

    /// Adds spans, up to the first whose size cannot be indexed.
    pub fn extend(&mut self, spans: &[NamedSpan]) {
        let fitting = spans.iter().position(|named| named.span.size().is_none()).unwrap_or(spans.len());
        let spans = &spans[..fitting];
        self.sizes.extend(spans.iter().map(|named| named.span.size().unwrap_or_default()));
        self.names.extend(spans.iter().map(|named| named.name));
        self.digests.extend(spans.iter().map(|named| named.span.digest));
        self.counts.resize(self.names.len(), 1);
    }

    pub fn waiting(&self) -> Vec<OrphanSpan> {
        let span = |at| OrphanSpan {
            name: self.names[at],
            digest: self.digests[at],
            size: self.sizes[at],
            count: self.counts[at],
        };
        (0..self.names.len()).map(span).collect()
    }

    pub fn slice(&self) -> ChainSlice<'_> {
        ChainSlice { digests: &self.digests, sizes: &self.sizes }
    }
}

/// Spans to insert, as parallel arrays.
#[derive(Clone, Copy)]
pub(crate) struct ChainSlice<'a> {
    pub digests: &'a [u64],
    pub sizes: &'a [Size],
}

impl<'a> ChainSlice<'a> {
    pub fn len(self) -> usize {
        self.digests.len()
    }

    pub fn from(self, at: usize) -> ChainSlice<'a> {
        ChainSlice { digests: &self.digests[at..], sizes: &self.sizes[at..] }
    }

    pub fn first(self, count: usize) -> ChainSlice<'a> {
        ChainSlice { digests: &self.digests[..count], sizes: &self.sizes[..count] }
    }
}

/// A point in a chain: after the first `at` spans of `node`.
#[derive(Clone, Copy)]
pub(crate) struct Point<'g> {
    pub node: NodeRef<'g>,
    pub at: usize,
}

/// The spans of one node that match the next spans of a chain.
#[derive(Clone, Copy)]
pub(crate) struct NodeRange<'g> {
    pub node: NodeRef<'g>,
    pub from: usize,
    pub count: usize,
    pub origin: Origin,
}

/// Whether a range existed before the insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It existed. Its holders have not changed.
    Existing,
    /// It was inserted, and the inserting holder holds it.
    New,
}

impl<'g> NodeRange<'g> {
    pub fn bits(&self) -> u64 {
        ones(self.count) << self.from
    }

    pub fn end(&self) -> Point<'g> {
        Point { node: self.node, at: self.from + self.count }
    }
}
