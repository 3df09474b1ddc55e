//! Chains on their way into the tree: what is to be laid, where it begins, and where it came to lie.

use crate::body::ones;
use crate::node::NodeRef;
use crate::orphans::Waiting;
use crate::span::{NamedSpan, Size};

/// The spans of a store, as parallel arrays.
#[derive(Default)]
pub(crate) struct Chain {
    pub names: Vec<u64>,
    pub digests: Vec<u64>,
    pub sizes: Vec<Size>,
    /// How often each is held; zero leaves its place in the chain to those behind it.
    pub counts: Vec<u32>,
}

impl Chain {
    pub fn clear(&mut self) {
        self.names.clear();
        self.digests.clear();
        self.sizes.clear();
        self.counts.clear();
    }

    pub fn push(&mut self, span: Waiting) {
        self.names.push(span.name);
        self.digests.push(span.digest);
        self.sizes.push(span.size);
        self.counts.push(span.count);
    }

    /// Adds spans, up to the first that has no size.
    pub fn extend(&mut self, spans: &[NamedSpan]) {
        self.sizes.extend(spans.iter().map_while(|named| named.span.size()));
        let spans = &spans[..self.sizes.len() - self.names.len()];
        self.names.extend(spans.iter().map(|named| named.name));
        self.digests.extend(spans.iter().map(|named| named.span.digest));
        self.counts.resize(self.names.len(), 1);
    }

    pub fn waiting(&self) -> Vec<Waiting> {
        let span = |at| Waiting {
            name: self.names[at],
            digest: self.digests[at],
            size: self.sizes[at],
            count: self.counts[at],
        };
        (0..self.names.len()).map(span).collect()
    }

    pub fn links(&self) -> Links<'_> {
        Links { digests: &self.digests, sizes: &self.sizes }
    }
}

/// Spans to be laid, as parallel arrays.
#[derive(Clone, Copy)]
pub(crate) struct Links<'a> {
    pub digests: &'a [u64],
    pub sizes: &'a [Size],
}

impl<'a> Links<'a> {
    pub fn len(self) -> usize {
        self.digests.len()
    }

    pub fn from(self, at: usize) -> Links<'a> {
        Links { digests: &self.digests[at..], sizes: &self.sizes[at..] }
    }

    pub fn first(self, count: usize) -> Links<'a> {
        Links { digests: &self.digests[..count], sizes: &self.sizes[..count] }
    }
}

/// A point in a chain: after the first `at` spans of `node`.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub node: NodeRef,
    pub at: usize,
}

/// Some spans of one node that carry the next links.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub node: NodeRef,
    pub from: usize,
    pub count: usize,
    pub origin: Origin,
}

/// Whether a stretch was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was: who holds it has not changed.
    Found,
    /// It is new, and the worker holds it.
    Laid,
}

impl Stretch {
    pub fn bits(&self) -> u64 {
        ones(self.count) << self.from
    }

    pub fn end(&self) -> Point {
        Point { node: self.node, at: self.from + self.count }
    }
}
