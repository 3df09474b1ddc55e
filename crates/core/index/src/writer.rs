//! All that changes the index, behind one lock.
//!
//! One lock, because a change takes a fraction of a microsecond per span and readers do not take it at all. Whoever
//! wants writers of two models not to wait for each other gives each its own index. What could take long is done in
//! pieces, each bounded here, and the lock is free in between: see `index.rs`.

use std::sync::Arc;

use warmroute_types::Micros;

use crate::body::ones;
use crate::chain::{Chain, Links, Point};
use crate::children::Children;
use crate::config::Config;
use crate::cut::{self, Cut};
use crate::digest::Digester;
use crate::index::{Parent, Prompt, Stored};
use crate::node::{NodeId, NodeRef, Serial};
use crate::paths;
use crate::presumed::{Past, Presumed, Work};
use crate::record::UseId;
use crate::reported::Reported;
use crate::root::{RootKey, Source};
use crate::span::{NamedSpan, Size, Span};
use crate::stats::{Bytes, Stats};
use crate::tree::Tree;

/// What a reported span costs where nobody else holds it, with room to spare.
const REPORTED_SPAN_BYTES: usize = 64;

/// Spans that are stored, removed or grafted under one hold of the lock, at most.
pub(crate) const SPANS_A_HOLD: usize = 2_048;

/// Nodes of which something is taken under one hold of the lock, at most.
pub(crate) const NODES_A_HOLD: usize = 64;

/// The same where all names of a node go with it, one cache miss each: some 25 microseconds a node.
const NAMED_NODES_A_HOLD: usize = 16;

/// Nodes that are only looked at for each one of which something may be taken.
const LOOKS_A_NODE: usize = 16;

/// The writer's state.
pub(crate) struct Writer {
    pub tree: Tree,
    pub reported: Reported,
    pub presumed: Presumed,
    budget_bytes: usize,
    ttl: Micros,
    refused: u64,
    unpresumed: u64,
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
            unpresumed: 0,
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
            orphans_parked: self.reported.orphans.parked,
            orphans_grafted: self.reported.orphans.grafted,
            orphans_dropped: self.reported.orphans.dropped,
            refused: self.refused,
            unpresumed: self.unpresumed,
            budget_bytes: self.budget_bytes,
            evicted_by_capacity: self.presumed.evicted_by_capacity,
            evicted_by_age: self.presumed.evicted_by_age,
            evicted_by_budget: self.presumed.evicted_by_budget,
            way_overflows: 0,
            fan_overflows: counts.fan_overflows,
        }
    }

    /// Stores spans. What waited for them is to be grafted next: `grafts` gets the names it may wait for.
    pub fn store(
        &mut self,
        worker: u16,
        parent: Parent,
        spans: &[NamedSpan],
        grafts: &mut Vec<u64>,
    ) -> Stored {
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        chain.extend(spans);
        let stored = self.store_chain(worker, parent, &chain, spans.len());
        if self.reported.orphans.waits(worker) {
            grafts.extend_from_slice(&chain.names[..stored.placed]);
        }
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
            return Stored { parked: fitting, refused: offered - fitting, ..Stored::default() };
        };
        let placed = self.lay(worker, point, chain);
        if placed == 0 {
            self.tree.tidy(point.node);
        }
        Stored { placed, refused: offered - placed, ..Stored::default() }
    }

    /// Lets a chain wait. Names that the worker holds elsewhere have moved, as for any other store.
    fn park(&mut self, worker: u16, parent: u64, chain: &Chain) {
        self.reported.give_up(&mut self.tree, worker, &chain.names);
        self.reported.orphans.park(worker, parent, &chain.waiting());
    }

    fn lay(&mut self, worker: u16, point: Point, chain: &Chain) -> usize {
        let bytes = self.bytes();
        let tree_bytes_max = (self.budget_bytes + bytes.tree).saturating_sub(bytes.total());
        let may_grow = |tree: &Tree| tree.bytes() < tree_bytes_max && tree.has_numbers();
        self.reported.store(&mut self.tree, worker, point, chain, may_grow)
    }

    /// Places what waited for these names, last first, wherever the worker holds them now, and then what waited for
    /// that, until enough was done under one hold of the lock. Returns how many spans were placed. A list and no
    /// recursion: a feed that lost one event may leave thousands of spans each waiting for the one before it.
    pub fn graft(&mut self, worker: u16, names: &mut Vec<u64>) -> usize {
        let mut chain = Chain::default();
        let (mut grafted, mut steps) = (0, 0);
        while steps < SPANS_A_HOLD
            && let Some(name) = names.pop()
        {
            steps += 1;
            let Some(point) = self.reported.after(&self.tree, worker, name) else { continue };
            let Some(group) = self.reported.orphans.take(worker, name) else { continue };
            chain.clear();
            group.spans.iter().for_each(|&span| chain.push(span));
            let placed = self.lay(worker, point, &chain);
            self.refused += (chain.names.len() - placed) as u64;
            names.push(name);
            names.extend(chain.names[..placed].iter().rev());
            (grafted, steps) = (grafted + placed, steps + placed);
        }
        self.reported.orphans.grafted += grafted as u64;
        self.reported.tidy(&mut self.tree, worker);
        grafted
    }

    pub fn remove(&mut self, worker: u16, names: &[u64]) -> usize {
        let removed = self.reported.remove(&mut self.tree, worker, names);
        self.reported.tidy(&mut self.tree, worker);
        removed
    }

    /// Forgets some of what a worker holds that was there before `horizon`.
    pub fn clear_some(&mut self, worker: u16, horizon: UseId) -> Work {
        let has_more = self.reported.clear_some(&mut self.tree, worker, NAMED_NODES_A_HOLD);
        let presumed = self.presumed.clear(&mut self.tree, worker, horizon, NODES_A_HOLD);
        self.tree.flush();
        if has_more { Work::Left } else { presumed }
    }

    /// Some of what a worker is presumed to hold.
    pub fn clear_presumed_some(&mut self, worker: u16, horizon: UseId) -> Work {
        let left = self.presumed.clear(&mut self.tree, worker, horizon, NODES_A_HOLD);
        self.tree.flush();
        left
    }

    /// What of a prompt `of` holds from its start without a hole, up to so many tokens: nodes with which of their spans.
    pub fn held_by(
        &self,
        digester: &Digester,
        of: u16,
        root: RootKey,
        prompt: Prompt<'_>,
        upto_tokens: u32,
    ) -> Vec<(NodeId, Serial, u64)> {
        let mut held = Vec::new();
        paths::walk(&self.tree, digester, root.digest(), prompt, |node, matched| {
            let count = (self.tree.mask(node, of).trailing_ones() as usize).min(matched);
            let count = cut::first_beyond(node, count, upto_tokens).unwrap_or(count);
            if count > 0 {
                held.push((node.id, node.serial, ones(count)));
            }
            count
        });
        held
    }

    /// Gives what `of` still holds of these spans to `by` too. Returns how many of them it did not hold before.
    pub fn adopt(
        &mut self,
        of: u16,
        by: u16,
        nodes: &[(NodeId, Serial, u64)],
        grafts: &mut Vec<u64>,
    ) -> usize {
        let mut adopted = 0;
        for &(id, serial, bits) in nodes {
            let Some(node) = self.tree.living(id).filter(|node| node.serial == serial) else { continue };
            let bits = bits & self.tree.mask(node, of);
            adopted += self.reported.adopt(&mut self.tree, of, by, node, bits, grafts);
        }
        self.reported.tidy(&mut self.tree, by);
        self.make_room(0);
        adopted
    }

    /// Counts each of these names of a worker once more. Returns how many it knows.
    pub fn store_again(&mut self, worker: u16, names: &[u64]) -> usize {
        let known = self.reported.store_again(&self.tree, worker, names);
        self.reported.tidy(&mut self.tree, worker);
        known
    }

    /// Counts each of these names of a worker so many times more.
    pub fn count_again(&mut self, worker: u16, names: &[(u64, u32)]) {
        for &(name, times) in names {
            self.reported.count_again(&self.tree, worker, name, times);
        }
        self.reported.tidy(&mut self.tree, worker);
    }

    /// Whether a worker holds any of these names, or has it waiting.
    pub fn knows_any(&self, worker: u16, names: &[u64]) -> bool {
        names.iter().any(|&name| self.reported.knows(&self.tree, worker, name))
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
        if self.is_full() {
            self.make_room(0);
        }
        let id = if self.is_full() {
            self.unpresumed += 1;
            self.presumed.next_id()
        } else {
            self.presumed.presume(&mut self.tree, worker, root.digest(), links, now)
        };
        (self.digests, self.sizes) = (digests, sizes);
        self.make_room(0);
        id
    }

    /// A use that another index has seen, unless there is no room for it, or only in the place of what was used since. Returns its number.
    pub fn recall(&mut self, past: Past, links: Links<'_>) -> UseId {
        let was_full = self.is_full();
        if was_full {
            self.make_room(0);
        }
        let is_older = || self.presumed.oldest().is_some_and(|oldest| past.at < oldest);
        if self.is_full() || (was_full && is_older()) {
            self.unpresumed += 1;
            return past.after;
        }
        self.presumed.recall(&mut self.tree, past, links, NODES_A_HOLD)
    }

    /// How long what is presumed is believed.
    pub fn ttl(&self) -> Micros {
        self.ttl
    }

    /// Whether there is no room.
    fn is_full(&self) -> bool {
        self.bytes().total() > self.budget_bytes || !self.tree.has_numbers()
    }

    /// Counts spans that were not even looked at, because those before them were refused.
    pub fn refuse(&mut self, spans: usize) {
        self.refused += spans as u64;
    }

    /// Evicts some of what does not fit a worker's cache.
    pub fn fit(&mut self, worker: u16) -> Work {
        self.presumed.fit(&mut self.tree, worker, NODES_A_HOLD)
    }

    pub fn confirm(&mut self, id: UseId) {
        self.presumed.confirm(&mut self.tree, id, NODES_A_HOLD);
        self.make_room(0);
    }

    /// Evicts some presumed spans where these many reported ones would not fit the budget.
    pub fn make_room_for(&mut self, spans: usize) -> Work {
        self.make_room(spans * REPORTED_SPAN_BYTES)
    }

    /// Evicts presumed spans, oldest first, until so many more bytes fit the budget, none are left, or enough was done
    /// under one hold of the lock. Where all that it saw is used by unanswered requests, that is all there is to do.
    fn make_room(&mut self, more_bytes: usize) -> Work {
        let (mut from, mut evicted) = (0, 0);
        let mut looks = NODES_A_HOLD * LOOKS_A_NODE;
        while looks > 0 && self.bytes().total() + more_bytes > self.budget_bytes {
            match self.presumed.evict_oldest(&mut self.tree, &mut from) {
                None => return Work::Done,
                Some(0) => looks -= 1,
                Some(spans) => (evicted, looks) = (evicted + spans, looks.saturating_sub(LOOKS_A_NODE)),
            }
        }
        if looks == 0 && evicted > 0 { Work::Left } else { Work::Done }
    }

    /// What a worker can not hold if it holds no more than `keep_tokens` of a prompt.
    pub fn cut(&self, digester: &Digester, root: RootKey, prompt: Prompt<'_>, keep_tokens: u32) -> Cut {
        let mut cut = Cut::default();
        paths::walk(&self.tree, digester, root.digest(), prompt, |node, matched| {
            let first = cut::first_beyond(node, matched, keep_tokens);
            if let Some(first) = first {
                cut.add(&self.tree, node, first);
            }
            first.unwrap_or(matched)
        });
        cut
    }

    /// Goes on with a cut, as far as one hold of the lock goes. What `spared_by` holds stays.
    pub fn cut_some(&mut self, worker: u16, source: Source, cut: &mut Cut, spared_by: Option<u16>) {
        let mut looks = NODES_A_HOLD * LOOKS_A_NODE;
        while looks > 0 && !cut.is_over() {
            looks -= 1;
            let Some((node, from)) = cut.step(&self.tree) else { continue };
            if self.forget(worker, source, node, from, spared_by) {
                looks = looks.saturating_sub(LOOKS_A_NODE);
            }
        }
        if source == Source::Reported {
            self.reported.tidy(&mut self.tree, worker);
        }
    }

    /// True where the worker held any of these spans.
    fn forget(
        &mut self,
        worker: u16,
        source: Source,
        node: NodeRef,
        from: usize,
        spared_by: Option<u16>,
    ) -> bool {
        let spared = spared_by.map_or(0, |other| self.tree.mask(node, other));
        let beyond = u64::MAX.checked_shl(from as u32).unwrap_or(0);
        let bits = self.tree.mask(node, worker) & beyond & !spared;
        if bits == 0 {
            return false;
        }
        match source {
            Source::Presumed => self.presumed.forget(&mut self.tree, worker, node, from),
            Source::Reported => self.reported.forget_one(&mut self.tree, worker, node, bits),
        }
        true
    }

    pub fn expire(&mut self, now: Micros) -> Work {
        let work = self.presumed.expire(&mut self.tree, now, self.ttl, NODES_A_HOLD);
        self.make_room(0);
        self.tree.flush();
        work
    }
}
