//! All that changes the index, behind one lock.
//!
//! One lock, because a change takes a fraction of a microsecond per span and readers do not take it at all. Whoever
//! wants writers of two models not to wait for each other gives each its own index.

use std::sync::Arc;

use warmroute_types::Micros;

use crate::chain::{Chain, Links, Point};
use crate::children::Children;
use crate::config::Config;
use crate::cut::Spans;
use crate::index::{Parent, Stored};
use crate::presumed::Presumed;
use crate::record::UseId;
use crate::reported::Reported;
use crate::root::{RootKey, Source};
use crate::span::{NamedSpan, Size, Span};
use crate::stats::{Bytes, Stats};
use crate::tree::Tree;

/// What a reported span costs where nobody else holds it, with room to spare.
const REPORTED_SPAN_BYTES: usize = 64;

/// The writer's state.
pub(crate) struct Writer {
    pub tree: Tree,
    pub reported: Reported,
    pub presumed: Presumed,
    budget_bytes: usize,
    ttl: Micros,
    refused: u64,
    chain: Chain,
    digests: Vec<u64>,
    sizes: Vec<Size>,
}

impl Writer {
    pub fn new(children: Arc<Children>, config: &Config) -> Writer {
        Writer {
            tree: Tree::new(children),
            reported: Reported::new(config.orphans_max),
            presumed: Presumed::new(config.presumed_tokens),
            budget_bytes: config.budget_bytes,
            ttl: config.presumed_ttl,
            refused: 0,
            chain: Chain::default(),
            digests: Vec::new(),
            sizes: Vec::new(),
        }
    }

    pub fn bytes(&self) -> Bytes {
        let (names, books) = self.reported.bytes();
        Bytes { tree: self.tree.bytes(), names, books, presumed: self.presumed.bytes() }
    }

    pub fn stats(&self) -> Stats {
        let counts = self.tree.counts;
        Stats {
            spans: counts.spans,
            held: counts.held,
            nodes: counts.nodes,
            uses: self.presumed.len(),
            orphans: self.reported.orphans.len(),
            bytes: self.bytes(),
            moved: self.reported.moved,
            orphans_dropped: self.reported.orphans.dropped,
            refused: self.refused,
            evicted_by_capacity: self.presumed.evicted_by_capacity,
            evicted_by_age: self.presumed.evicted_by_age,
            evicted_by_budget: self.presumed.evicted_by_budget,
            way_overflows: 0,
            fan_overflows: counts.fan_overflows,
        }
    }

    pub fn store(&mut self, worker: u16, parent: Parent, spans: &[NamedSpan]) -> Stored {
        self.make_room(spans.len() * REPORTED_SPAN_BYTES);
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        chain.extend(spans);
        let stored = self.store_chain(worker, parent, &chain, spans.len());
        self.chain = chain;
        self.reported.tidy(&mut self.tree, worker);
        self.refused += stored.refused as u64;
        stored
    }

    fn store_chain(&mut self, worker: u16, parent: Parent, chain: &Chain, offered: usize) -> Stored {
        let fitting = chain.names.len();
        let point = match parent {
            Parent::Root(root) => Some(Point { node: self.tree.root_or_new(root.digest()), at: 0 }),
            Parent::Name(name) => self.reported.after(&self.tree, worker, name),
        };
        let Some(point) = point else {
            if let Parent::Name(name) = parent {
                self.park(worker, name, chain);
            }
            return Stored { placed: 0, parked: fitting, refused: offered - fitting };
        };
        let placed = self.place(worker, point, chain);
        if placed == 0 {
            self.tree.tidy(point.node);
        }
        Stored { placed, parked: 0, refused: offered - placed }
    }

    /// Lets a chain wait. Names that the worker holds elsewhere have moved, as for any other store.
    fn park(&mut self, worker: u16, parent: u64, chain: &Chain) {
        self.reported.give_up(&mut self.tree, worker, &chain.names);
        self.reported.orphans.park(worker, parent, &chain.waiting());
    }

    /// Places a chain, and then whatever waited for one of its names.
    fn place(&mut self, worker: u16, point: Point, chain: &Chain) -> usize {
        let placed = self.lay(worker, point, chain);
        if !self.reported.orphans.is_empty() {
            self.graft(worker, chain.names[..placed].iter().rev().copied().collect());
        }
        placed
    }

    fn lay(&mut self, worker: u16, point: Point, chain: &Chain) -> usize {
        let bytes = self.bytes();
        let tree_bytes_max = (self.budget_bytes + bytes.tree).saturating_sub(bytes.total());
        let may_grow = |tree: &Tree| tree.bytes() < tree_bytes_max && tree.has_numbers();
        self.reported.store(&mut self.tree, worker, point, chain, may_grow)
    }

    /// Places what waited for these names, last first, wherever the worker holds them now, and then what waited for
    /// that. A list and no recursion: a feed that lost one event may leave thousands of spans each waiting for the
    /// one before it.
    fn graft(&mut self, worker: u16, mut names: Vec<u64>) {
        let mut chain = Chain::default();
        while let Some(name) = names.pop() {
            let Some(point) = self.reported.after(&self.tree, worker, name) else { continue };
            let Some(group) = self.reported.orphans.take(worker, name) else { continue };
            chain.clear();
            group.spans.iter().for_each(|&span| chain.push(span));
            let placed = self.lay(worker, point, &chain);
            self.refused += (chain.names.len() - placed) as u64;
            names.push(name);
            names.extend(chain.names[..placed].iter().rev());
        }
    }

    pub fn remove(&mut self, worker: u16, names: &[u64]) -> usize {
        let removed = self.reported.remove(&mut self.tree, worker, names);
        self.reported.tidy(&mut self.tree, worker);
        removed
    }

    pub fn clear(&mut self, worker: u16) {
        self.reported.clear(&mut self.tree, worker);
        self.presumed.clear(&mut self.tree, worker);
        self.tree.flush();
    }

    pub fn presume(&mut self, worker: u16, root: RootKey, spans: &[Span], now: Micros) -> UseId {
        let (mut digests, mut sizes) = (std::mem::take(&mut self.digests), std::mem::take(&mut self.sizes));
        digests.clear();
        sizes.clear();
        for (span, size) in spans.iter().map_while(|span| Some((span, span.size()?))) {
            digests.push(span.digest);
            sizes.push(size);
        }
        let links = Links { digests: &digests, sizes: &sizes };
        let id = self.presumed.presume(&mut self.tree, worker, root.digest(), links, now);
        (self.digests, self.sizes) = (digests, sizes);
        self.make_room(0);
        id
    }

    /// Evicts presumed spans, oldest first, until so many more bytes fit the budget or none are left.
    fn make_room(&mut self, more_bytes: usize) {
        while self.bytes().total() + more_bytes > self.budget_bytes
            && self.presumed.evict_oldest(&mut self.tree)
        {}
    }

    pub fn forget(&mut self, worker: u16, source: Source, spans: &Spans) {
        match source {
            Source::Presumed => self.presumed.forget(&mut self.tree, worker, spans),
            Source::Reported => {
                self.reported.forget(&mut self.tree, worker, spans);
                self.reported.tidy(&mut self.tree, worker);
            }
        }
    }

    pub fn expire(&mut self, now: Micros) {
        self.presumed.expire(&mut self.tree, now, self.ttl);
        self.tree.flush();
    }
}
