//! All changes of the index, behind one lock.
//!
//! One lock is enough, because a change takes a fraction of a microsecond per span, readers do not take it, and requests
//! do not wait for it. Long operations run in pieces, each bounded here,
//! and release the lock in between: see `index.rs`.

use std::sync::Arc;

use crossbeam_epoch::pin;
use warmroute_types::Micros;

use crate::body::ones;
use crate::chain::{Chain, ChainSlice, Point};
use crate::children::Children;
use crate::config::Config;
use crate::cut::{self, Cut};
use crate::digest::Digester;
use crate::holder_bits::{HolderBits, HolderPosition};
use crate::node::{NodeId, NodeRef, Serial};
use crate::node_uses::UseId;
use crate::operation::{Parent, Prompt, Stored};
use crate::paths;
use crate::pending::{Operation, PresumedPrompt};
use crate::presumed::{NewUse, PastUse, Presumed, Work};
use crate::reported::Reported;
use crate::root::{RootKey, Source};
use crate::snapshot::SnapshotBuilder;
use crate::span::{NamedSpan, Size};
use crate::stats::{Bytes, Stats};
use crate::table_hash::TableHash;
use crate::tree::Tree;

/// Upper estimate of the bytes of a reported span that only one holder holds.
const REPORTED_SPAN_BYTES: usize = 64;

/// Most spans stored, removed or inserted while the lock is held once.
pub(crate) const SPANS_A_HOLD: usize = 512;

/// Most nodes changed while the lock is held once.
pub(crate) const NODES_A_HOLD: usize = 64;

/// The same where all names of a node are removed with it, at one cache miss each: some 25 microseconds a node.
const NAMED_NODES_A_HOLD: usize = 16;

/// Nodes that may be visited without a change for each one that is changed.
const LOOKS_A_NODE: usize = 16;

/// The writer's state.
pub(crate) struct Writer {
    pub tree: Tree,
    pub reported: Reported,
    pub presumed: Presumed,
    holder_bits: Arc<HolderBits>,
    budget_bytes: usize,
    ttl: Micros,
    refused: u64,
    unpresumed: u64,
    chain: Chain,
    digests: Vec<u64>,
    sizes: Vec<Size>,
}

impl Writer {
    pub fn new(children: Arc<Children>, holder_bits: Arc<HolderBits>, config: &Config) -> Writer {
        let hash = TableHash::new(config.table_seed);
        Writer {
            tree: Tree::new(children),
            reported: Reported::new(config.orphans_max, hash),
            presumed: Presumed::new(config.presumed_tokens, hash),
            holder_bits,
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
        let (names, holder_names) = self.reported.bytes();
        Bytes { tree: self.tree.bytes(), names, holder_names, presumed: self.presumed.bytes() }
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
            path_overflows: 0,
            length_overflows: counts.length_overflows,
        }
    }

    /// Stores spans. `grafts` receives the names that waiting chains of the holder may continue.
    pub fn store(
        &mut self,
        holder: HolderPosition,
        parent: Parent,
        spans: &[NamedSpan],
        grafts: &mut Vec<u64>,
    ) -> Stored {
        let guard = &pin();
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        chain.extend(spans);
        let stored = self.store_chain(holder, parent, &chain, spans.len());
        if self.reported.orphans.has_waiting(holder) {
            grafts.extend_from_slice(&chain.names[..stored.placed]);
        }
        self.chain = chain;
        self.reported.prune(&mut self.tree.pin(guard), holder);
        self.refused += stored.refused as u64;
        stored
    }

    fn store_chain(
        &mut self,
        holder: HolderPosition,
        parent: Parent,
        chain: &Chain,
        offered: usize,
    ) -> Stored {
        let guard = &pin();
        let fitting = chain.names.len();
        // A cache miss that the search for the parent hides.
        chain.names.first().into_iter().for_each(|&name| self.reported.prefetch(holder, name));
        let point = match parent {
            Parent::Root(root) => {
                Some(Point { node: self.tree.pin(guard).root_or_new(root.digest()), at: 0 })
            }
            Parent::Name(name) => self.reported.after(&self.tree.pin(guard), holder, name),
        };
        let Some(point) = point else {
            if let Parent::Name(name) = parent {
                self.park(holder, name, chain);
            }
            return Stored { parked: fitting, refused: offered - fitting, ..Stored::default() };
        };
        let placed = self.insert(holder, point, chain);
        if placed == 0 {
            self.tree.prune(point.node);
        }
        Stored { placed, refused: offered - placed, ..Stored::default() }
    }

    /// Lets a chain wait. Names that the holder holds elsewhere have moved, as for any other store.
    fn park(&mut self, holder: HolderPosition, parent: u64, chain: &Chain) {
        let guard = &pin();
        self.reported.give_up(&mut self.tree.pin(guard), holder, &chain.names);
        self.reported.orphans.park(holder, parent, &chain.waiting());
    }

    fn insert(&mut self, holder: HolderPosition, point: Point<'_>, chain: &Chain) -> usize {
        let guard = &pin();
        let bytes = self.bytes();
        let tree_bytes_max = (self.budget_bytes + bytes.tree).saturating_sub(bytes.total());
        let may_grow = |tree: &Tree| tree.bytes() < tree_bytes_max && tree.has_free_ids();
        self.reported.store(&mut self.tree.pin(guard), holder, point, chain, may_grow)
    }

    /// Inserts the chains that wait for these names, last name first, then the chains that wait for those, within one
    /// hold of the lock. Returns the number of inserted spans. It uses a list instead of recursion: after one lost
    /// event, thousands of spans may each wait for the one before.
    pub fn graft(&mut self, holder: HolderPosition, names: &mut Vec<u64>) -> usize {
        let guard = &pin();
        let mut chain = Chain::default();
        let (mut grafted, mut steps) = (0, 0);
        while steps < SPANS_A_HOLD
            && let Some(name) = names.pop()
        {
            steps += 1;
            let Some(point) = self.reported.after(&self.tree.pin(guard), holder, name) else { continue };
            let Some(group) = self.reported.orphans.take(holder, name) else { continue };
            chain.clear();
            group.spans.iter().for_each(|&span| chain.push(span));
            let placed = self.insert(holder, point, &chain);
            self.refused += (chain.names.len() - placed) as u64;
            names.push(name);
            names.extend(chain.names[..placed].iter().rev());
            (grafted, steps) = (grafted + placed, steps + placed);
        }
        self.reported.orphans.grafted += grafted as u64;
        self.reported.prune(&mut self.tree.pin(guard), holder);
        grafted
    }

    pub fn remove(&mut self, holder: HolderPosition, names: &[u64]) -> usize {
        let guard = &pin();
        let removed = self.reported.remove(&mut self.tree.pin(guard), holder, names);
        self.reported.prune(&mut self.tree.pin(guard), holder);
        removed
    }

    /// Removes some of the spans that a holder held before `horizon`.
    pub fn clear_some(&mut self, holder: HolderPosition, horizon: UseId) -> Work {
        let has_more = self.reported.clear_some(&mut self.tree.pin(&pin()), holder, NAMED_NODES_A_HOLD);
        let presumed = self.presumed.clear(&mut self.tree.pin(&pin()), holder, horizon, NODES_A_HOLD);
        self.tree.flush();
        if has_more { Work::Left } else { presumed }
    }

    /// Removes some of the spans that a holder was presumed to hold before `horizon`.
    pub fn clear_presumed_some(&mut self, holder: HolderPosition, horizon: UseId) -> Work {
        let left = self.presumed.clear(&mut self.tree.pin(&pin()), holder, horizon, NODES_A_HOLD);
        self.tree.flush();
        left
    }

    /// The spans of a prompt that `from` holds from the start without a hole, up to `upto_tokens`: nodes with masks.
    pub fn held_by(
        &mut self,
        digester: &Digester,
        from: HolderPosition,
        root: RootKey,
        prompt: Prompt<'_>,
        upto_tokens: u32,
    ) -> Vec<(NodeId, Serial, u64)> {
        let guard = &pin();
        let mut held = Vec::new();
        paths::walk(&self.tree.pin(guard), digester, root.digest(), prompt, |tree, node, matched| {
            let count = (tree.mask(node, from).trailing_ones() as usize).min(matched);
            let count = cut::first_beyond(node, count, upto_tokens).unwrap_or(count);
            if count > 0 {
                held.push((node.id, node.serial, ones(count)));
            }
            count
        });
        held
    }

    /// Gives the spans that `from` still holds of these to `to` as well. Returns how many of them `to` did not hold
    /// before.
    pub fn copy_prefix(
        &mut self,
        from: HolderPosition,
        to: HolderPosition,
        nodes: &[(NodeId, Serial, u64)],
        grafts: &mut Vec<u64>,
    ) -> usize {
        let guard = &pin();
        let mut copied = 0;
        for &(id, serial, bits) in nodes {
            let Some(node) = self.tree.pin(guard).living(id).filter(|node| node.serial == serial) else {
                continue;
            };
            let bits = bits & self.tree.mask(node, from);
            copied += self.reported.copy_spans(&mut self.tree.pin(guard), from, to, node, bits, grafts);
        }
        self.reported.prune(&mut self.tree.pin(guard), to);
        self.make_room(0);
        copied
    }

    /// The nodes in one partition of a holder's names, each with the spans that the holder holds.
    pub fn nodes_in_partition(
        &mut self,
        holder: HolderPosition,
        partition: usize,
    ) -> Vec<(NodeId, Serial, u64)> {
        self.reported.nodes_in_partition(&self.tree.pin(&pin()), holder, partition)
    }

    /// Counts each of these names of a holder once more. Returns how many the holder knows.
    pub fn store_by_name(&mut self, holder: HolderPosition, names: &[u64]) -> usize {
        let guard = &pin();
        let known = self.reported.store_by_name(&self.tree.pin(guard), holder, names);
        self.reported.prune(&mut self.tree.pin(guard), holder);
        known
    }

    /// Whether a holder holds any of these names or has it waiting.
    pub fn knows_any(&mut self, holder: HolderPosition, names: &[u64]) -> bool {
        let guard = &pin();
        names.iter().any(|&name| self.reported.knows(&self.tree.pin(guard), holder, name))
    }

    /// Applies an operation that a request left behind.
    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Presume { id, prompt } => self.presume(id, &prompt),
            Operation::Confirm(id) => self.confirm(id),
            Operation::Withdraw(id) => self.presumed.withdraw(&mut self.tree.pin(&pin()), id),
        }
    }

    fn presume(&mut self, id: UseId, prompt: &PresumedPrompt) {
        let Some(holder) = self.holder_bits.take(prompt.holder) else { return };
        let guard = &pin();
        let (mut digests, mut sizes) = (std::mem::take(&mut self.digests), std::mem::take(&mut self.sizes));
        digests.clear();
        sizes.clear();
        for (span, size) in prompt.spans.iter().map_while(|span| Some((span, span.size()?))) {
            digests.push(span.digest);
            sizes.push(size);
        }
        let slice = ChainSlice { digests: &digests, sizes: &sizes };
        if self.is_full() {
            self.make_room(0);
        }
        if self.is_full() {
            self.unpresumed += 1;
        } else {
            let (tree, root) = (&mut self.tree.pin(guard), prompt.root.digest());
            self.presumed.presume(tree, NewUse { id, holder, root, now: prompt.now }, slice);
        }
        (self.digests, self.sizes) = (digests, sizes);
        self.make_room(0);
    }

    /// Adds a use that another index recorded, unless that would take room from more recent uses. Returns its id.
    pub fn add_past_use(&mut self, past: PastUse, slice: ChainSlice<'_>) -> UseId {
        let guard = &pin();
        let was_full = self.is_full();
        if was_full {
            self.make_room(0);
        }
        let is_older = || self.presumed.oldest().is_some_and(|oldest| past.at < oldest);
        if self.is_full() || (was_full && is_older()) {
            self.unpresumed += 1;
            return past.after;
        }
        self.presumed.add_past_use(&mut self.tree.pin(guard), past, slice, NODES_A_HOLD)
    }

    /// How long presumed spans live after their last use.
    pub fn ttl(&self) -> Micros {
        self.ttl
    }

    /// Whether the budget or the node ids are exhausted.
    fn is_full(&self) -> bool {
        self.bytes().total() > self.budget_bytes || !self.tree.has_free_ids()
    }

    /// Counts spans that were not tried, because those before them were refused.
    pub fn refuse(&mut self, spans: usize) {
        self.refused += spans as u64;
    }

    /// Evicts some of the spans beyond a holder's capacity.
    pub fn fit(&mut self, holder: HolderPosition) -> Work {
        let guard = &pin();
        self.presumed.fit(&mut self.tree.pin(guard), holder, NODES_A_HOLD)
    }

    /// Adds some answered uses to a snapshot, newest first. Returns where to continue.
    pub fn save_some(&mut self, from: UseId, now: Micros, builder: &mut SnapshotBuilder) -> Option<UseId> {
        self.presumed.save_some(&self.tree.pin(&pin()), &self.holder_bits, from, now, NODES_A_HOLD, builder)
    }

    fn confirm(&mut self, id: UseId) {
        let guard = &pin();
        self.presumed.confirm(&mut self.tree.pin(guard), id, NODES_A_HOLD);
        self.make_room(0);
    }

    /// Evicts some presumed spans if the budget has no room for this many reported ones.
    pub fn make_room_for(&mut self, spans: usize) -> Work {
        self.make_room(spans * REPORTED_SPAN_BYTES)
    }

    /// Evicts presumed spans, oldest first, until `more_bytes` fit the budget, none are left, or the bound for one
    /// hold of the lock is reached. Finishes when unanswered requests use all spans that it visited.
    fn make_room(&mut self, more_bytes: usize) -> Work {
        let (mut from, mut evicted) = (0, 0);
        let mut looks = NODES_A_HOLD * LOOKS_A_NODE;
        while looks > 0 && self.bytes().total() + more_bytes > self.budget_bytes {
            match self.presumed.evict_oldest(&mut self.tree.pin(&pin()), &mut from) {
                None => return Work::Done,
                Some(0) => looks -= 1,
                Some(spans) => (evicted, looks) = (evicted + spans, looks.saturating_sub(LOOKS_A_NODE)),
            }
        }
        if looks == 0 && evicted > 0 { Work::Left } else { Work::Done }
    }

    /// The cut that leaves a holder no more than `keep_tokens` of a prompt.
    pub fn cut(&mut self, digester: &Digester, root: RootKey, prompt: Prompt<'_>, keep_tokens: u32) -> Cut {
        let guard = &pin();
        let mut cut = Cut::default();
        paths::walk(&self.tree.pin(guard), digester, root.digest(), prompt, |tree, node, matched| {
            let first = cut::first_beyond(node, matched, keep_tokens);
            if let Some(first) = first {
                cut.add(tree, node, first);
            }
            first.unwrap_or(matched)
        });
        cut
    }

    /// Continues a cut for one hold of the lock. Spans that `spared_by` holds stay.
    pub fn cut_some(
        &mut self,
        holder: HolderPosition,
        source: Source,
        cut: &mut Cut,
        spared_by: Option<HolderPosition>,
    ) {
        let guard = &pin();
        let mut looks = NODES_A_HOLD * LOOKS_A_NODE;
        while looks > 0 && !cut.is_empty() {
            looks -= 1;
            let Some((node, from)) = cut.step(&self.tree.pin(guard)) else { continue };
            if self.forget(holder, source, node, from, spared_by) {
                looks = looks.saturating_sub(LOOKS_A_NODE);
            }
        }
        if source == Source::Reported {
            self.reported.prune(&mut self.tree.pin(guard), holder);
        }
    }

    /// Removes a node's spans from `from` on from a holder. Returns whether the holder held any of them.
    fn forget(
        &mut self,
        holder: HolderPosition,
        source: Source,
        node: NodeRef<'_>,
        from: usize,
        spared_by: Option<HolderPosition>,
    ) -> bool {
        let guard = &pin();
        let spared = spared_by.map_or(0, |other| self.tree.mask(node, other));
        let beyond = u64::MAX.checked_shl(from as u32).unwrap_or(0);
        let bits = self.tree.mask(node, holder) & beyond & !spared;
        if bits == 0 {
            return false;
        }
        match source {
            Source::Presumed => self.presumed.forget(&mut self.tree.pin(guard), holder, node, from),
            Source::Reported => self.reported.forget_spans(&mut self.tree.pin(guard), holder, node, bits),
        }
        true
    }

    pub fn expire(&mut self, now: Micros) -> Work {
        let work = self.presumed.expire(&mut self.tree.pin(&pin()), now, self.ttl, NODES_A_HOLD);
        self.make_room(0);
        self.tree.flush();
        work
    }
}
