//! Presumed spans: a holder is presumed to hold the prompts that were sent to it, until it must have evicted them.
//!
//! A request is presumed when it is routed, confirmed when its first token shows that the prompt was computed, and
//! withdrawn when it fails before that. The rules of ageing:
//!
//! * An answer uses all spans of its prompt. Spans beyond the holder's capacity, or older than the time to live, are
//!   evicted least recently used first, and a chain from its end.
//! * Spans of an unanswered request stay and do not count against the capacity: whether the holder will compute them
//!   is unknown, so they must not evict what it does hold. The capacity bounds their length, the time to live their
//!   age, and the budget their total.
//! * The budget evicts answered spans only, least recently used first across all holders. Where that is not enough, a
//!   new prompt is not presumed.
//!
//! Each call does a bounded number of steps and leaves the rest to the next call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warmroute_types::Micros;

use crate::body::ones;
use crate::chain::{ChainSlice, Point};
use crate::holder_bits::{HolderBits, HolderPosition};
use crate::node::{NodeId, NodeRef};
use crate::node_uses::{Mark, NodeUses, UseId};
use crate::presumed_lru::PresumedLru;
use crate::snapshot::SnapshotBuilder;
use crate::table_hash::TableHash;
use crate::tree::PinnedTree;
use crate::waiting_uses::WaitingUses;

/// One request on one holder.
#[derive(Debug)]
struct Use {
    holder: HolderPosition,
    /// The deepest node in which the use waits or is still the last use of a span.
    leaf: NodeId,
    at: Micros,
}

/// One request on one holder that is presumed now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewUse {
    /// Larger than those of all uses presumed before.
    pub id: UseId,
    pub holder: HolderPosition,
    pub root: u64,
    pub now: Micros,
}

/// One request on one holder that another index recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PastUse {
    pub holder: HolderPosition,
    pub root: u64,
    pub at: Micros,
    /// The use before it: this one gets a later id.
    pub after: UseId,
}

/// All presumed spans.
pub(crate) struct Presumed {
    hash: TableHash,
    lrus: Vec<Option<Box<PresumedLru>>>,
    /// Requests without a first token, in the order of arrival.
    waiting: WaitingUses<Use>,
    /// Answered requests that are still the last use of a span, in the order of their answers.
    answered: BTreeMap<UseId, Use>,
    /// Even: ids of merged uses are odd. Requests take ids without the writer lock.
    next_use: Arc<AtomicU64>,
    /// The latest time that any call passed.
    now: Micros,
    capacity_tokens: u64,
    to_prune: Vec<NodeId>,
    /// Bytes of all holders' entries.
    lru_bytes: usize,
    /// Spans evicted because a holder's cache was full, because they expired, or because the index was full.
    pub evicted_by_capacity: u64,
    pub evicted_by_age: u64,
    pub evicted_by_budget: u64,
}

/// Bytes of one use in the ordered map, including its share of the tree's nodes.
const USE_BYTES: usize = (size_of::<UseId>() + size_of::<Use>()) * 3 / 2;

/// Uses that may be skipped for each one that is evicted from.
const LOOKS_A_STEP: usize = 16;

/// Whether a bounded piece of work finished the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Done,
    Left,
}

impl Presumed {
    pub fn new(capacity_tokens: u64, hash: TableHash) -> Presumed {
        Presumed {
            hash,
            lrus: Vec::new(),
            waiting: WaitingUses::new(),
            answered: BTreeMap::new(),
            next_use: Arc::new(AtomicU64::new(2)),
            now: Micros::ZERO,
            capacity_tokens,
            to_prune: Vec::new(),
            lru_bytes: 0,
            evicted_by_capacity: 0,
            evicted_by_age: 0,
            evicted_by_budget: 0,
        }
    }

    /// Bytes of all holders' entries and uses.
    pub fn bytes(&self) -> usize {
        let slots = self.lrus.capacity() * size_of::<Option<Box<PresumedLru>>>();
        slots + self.lru_bytes + self.len() * USE_BYTES
    }

    /// Number of recorded uses.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.answered.len()
    }

    /// Tokens that a holder is presumed to hold.
    pub fn tokens(&self, holder: HolderPosition) -> u64 {
        self.peek(holder).map_or(0, |lru| lru.tokens)
    }

    /// A holder's capacity in tokens; the default where the holder has no bit position.
    pub fn capacity_tokens(&self, holder: Option<HolderPosition>) -> u64 {
        let lru = holder.and_then(|holder| self.peek(holder));
        lru.map_or(self.capacity_tokens, |lru| lru.capacity_tokens)
    }

    /// Presumes a chain on a holder, from the root on, up to the holder's capacity.
    pub fn presume(&mut self, tree: &mut PinnedTree<'_, '_>, one: NewUse, slice: ChainSlice<'_>) {
        let NewUse { id: by, holder, root, now } = one;
        self.now = self.now.max(now);
        let slice = slice.first(fitting(slice, self.lru(holder).capacity_tokens));
        if slice.len() == 0 {
            return;
        }
        let mut point = Point { node: tree.root_or_new(root), at: 0 };
        let mut inserted = 0;
        while inserted < slice.len() {
            let range = tree.insert(holder, point, slice.from(inserted));
            (point, inserted) = (range.end(), inserted + range.count);
            let mark = Mark { end: point.at as u8, by };
            self.change(tree, holder, range.node, |node_uses| node_uses.add_waiting(mark));
        }
        self.waiting.push(by, Use { holder, leaf: point.node.id, at: self.now });
        self.recount_bytes(holder);
    }

    /// The counter of ids.
    pub fn next_use(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.next_use)
    }

    /// A free id for a use that another router reported, among those of its time. Such ids are odd, own ids are even.
    fn past_id(&mut self, at: Micros, after: UseId) -> UseId {
        let mut id = first_id(at).max(after + 1) | 1;
        while self.answered.contains_key(&id) {
            id += 2;
        }
        // Own ids from now on are larger.
        self.next_use.fetch_max(id + 1, Relaxed);
        id
    }

    /// The time of the least recent use.
    pub fn oldest(&self) -> Option<Micros> {
        self.answered.first_key_value().map(|(_, oldest)| oldest.at)
    }

    /// Changes the uses of a node by a holder, and the holder's mask in the tree accordingly.
    fn change<T>(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        change: impl FnOnce(&mut NodeUses) -> T,
    ) -> T {
        let (result, held) = self.lru(holder).change(node, change);
        if held.now != held.before {
            tree.set_mask(node, holder, ones(held.now));
        }
        if held.now < held.before {
            self.to_prune.push(node.id);
        }
        result
    }

    /// Confirms a request at its first token: it becomes the last use of its spans. Then evicts what no longer fits
    /// the holder's cache, within a number of steps.
    pub fn confirm(&mut self, tree: &mut PinnedTree<'_, '_>, id: UseId, steps_max: usize) {
        let Some(request) = self.waiting.remove(id) else { return };
        let (holder, by) = (request.holder, take_id(&self.next_use, self.now));
        let mut node = tree.living(request.leaf);
        let mut is_used = false;
        while let Some(here) = node {
            let touch = |node_uses: &mut NodeUses| {
                let mark = node_uses.remove_waiting(id)?;
                Some(node_uses.touch(Mark { end: mark.end, by }))
            };
            let Some(displaced) = self.change(tree, holder, here, touch) else { break };
            for other in displaced {
                self.drop_if_displaced(other, here.id);
            }
            node = tree.parent(here);
            is_used = true;
        }
        if is_used {
            self.answered.insert(by, Use { at: self.now, ..request });
            self.lru(holder).order.insert(by);
        }
        self.fit(tree, holder, steps_max);
    }

    /// Adds up to `uses_max` answered uses to a snapshot, from `from` on and back in time. Returns where to continue,
    /// or `None` when there are no more uses or the snapshot is full.
    pub fn save_some(
        &self,
        tree: &PinnedTree<'_, '_>,
        holder_bits: &HolderBits,
        from: UseId,
        now: Micros,
        uses_max: usize,
        builder: &mut SnapshotBuilder,
    ) -> Option<UseId> {
        let mut uses = self.answered.range(..=from).rev();
        for (&id, one) in uses.by_ref().take(uses_max) {
            if !builder.has_room() {
                return None;
            }
            if let Some((holder, leaf, spans)) = self.last_used(tree, id) {
                builder.add(tree, holder_bits.holder(holder), leaf, spans.end, now.since(one.at));
            }
        }
        uses.next().map(|(&id, _)| id)
    }

    /// Adds a use that another router recorded. Spans that were used here since keep their later use. Returns the
    /// use's id.
    pub fn add_past_use(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        past: PastUse,
        slice: ChainSlice<'_>,
        steps_max: usize,
    ) -> UseId {
        let PastUse { holder, root, at, after } = past;
        let id = self.past_id(at, after);
        let slice = slice.first(fitting(slice, self.lru(holder).capacity_tokens));
        if slice.len() == 0 {
            return id;
        }
        let mut point = Point { node: tree.root_or_new(root), at: 0 };
        let mut inserted = 0;
        while inserted < slice.len() {
            let range = tree.insert(holder, point, slice.from(inserted));
            (point, inserted) = (range.end(), inserted + range.count);
            let mark = Mark { end: point.at as u8, by: id };
            for other in self.change(tree, holder, range.node, |node_uses| node_uses.touch(mark)) {
                self.drop_if_displaced(other, range.node.id);
            }
        }
        // A use that is not the last use in its leaf is not the last use anywhere.
        let is_last = |node_uses: &NodeUses| node_uses.used_last_by(id).is_some();
        if self.node_uses(holder, point.node.id).is_some_and(is_last) {
            self.answered.insert(id, Use { holder, leaf: point.node.id, at });
            self.lru(holder).order.insert(id);
            self.fit(tree, holder, steps_max);
        }
        id
    }

    /// A use that is displaced in its leaf is displaced everywhere: a request that passes the leaf passed all nodes
    /// before it.
    fn drop_if_displaced(&mut self, other: UseId, node: NodeId) {
        if self.answered.get(&other).is_some_and(|old| old.leaf == node) {
            self.drop_use(other);
        }
    }

    fn drop_use(&mut self, id: UseId) {
        if let Some(gone) = self.answered.remove(&id) {
            self.lru(gone.holder).order.remove(&id);
        }
    }

    /// Withdraws a request that failed before its first token: spans that only it presumed are removed.
    pub fn withdraw(&mut self, tree: &mut PinnedTree<'_, '_>, id: UseId) {
        let Some(request) = self.waiting.remove(id) else { return };
        let mut node = tree.living(request.leaf);
        while let Some(here) = node {
            if self.change(tree, request.holder, here, |node_uses| node_uses.remove_waiting(id)).is_none() {
                break;
            }
            node = tree.parent(here);
        }
        self.prune(tree);
        self.recount_bytes(request.holder);
    }

    pub fn set_capacity(&mut self, holder: HolderPosition, tokens: u64) {
        self.lru(holder).capacity_tokens = tokens;
    }

    /// Evicts a holder's spans beyond its capacity, least recently used first, within a number of steps. Finishes
    /// when unanswered requests use all spans that it visited.
    pub fn fit(&mut self, tree: &mut PinnedTree<'_, '_>, holder: HolderPosition, steps_max: usize) -> Work {
        let (mut from, mut evicted) = (0, 0);
        let mut looks = steps_max * LOOKS_A_STEP;
        while looks > 0
            && let Some(excess) = self.lru(holder).excess()
            && let Some(&oldest) = self.lru(holder).order.range(from..).next()
        {
            match self.evict(tree, oldest, excess) {
                0 => (from, looks) = (oldest + 1, looks - 1),
                spans => (evicted, looks) = (evicted + spans, looks.saturating_sub(LOOKS_A_STEP)),
            }
        }
        self.evicted_by_capacity += evicted;
        self.prune(tree);
        self.recount_bytes(holder);
        if looks == 0 && evicted > 0 { Work::Left } else { Work::Done }
    }

    /// Evicts spans of one node whose last use is `id`, from the end of the chain, until `tokens` are free. Spans of
    /// unanswered requests stay. Returns the number of evicted spans.
    fn evict(&mut self, tree: &mut PinnedTree<'_, '_>, id: UseId, tokens: u64) -> u64 {
        let Some((holder, node, spans)) = self.last_used(tree, id) else { return 0 };
        let floor = spans.start.max(self.node_uses(holder, node.id).map_or(0, NodeUses::pinned));
        if floor >= spans.end {
            return 0;
        }
        let mut end = spans.end - 1;
        let freed = |end: usize| u64::from(node.reach(spans.end).tokens - node.reach(end).tokens);
        while end > floor && freed(end) < tokens {
            end -= 1;
        }
        self.shorten(tree, holder, node, end);
        (spans.end - end) as u64
    }

    /// The deepest node in which a use is still the last use of spans, and those spans.
    fn last_used<'g>(
        &self,
        tree: &PinnedTree<'_, 'g>,
        id: UseId,
    ) -> Option<(HolderPosition, NodeRef<'g>, std::ops::Range<usize>)> {
        let oldest = self.answered.get(&id)?;
        let spans = self.node_uses(oldest.holder, oldest.leaf)?.used_last_by(id)?;
        Some((oldest.holder, tree.node(oldest.leaf), spans))
    }

    /// Removes all answered uses of a node's spans from `end` on.
    fn shorten(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        end: usize,
    ) {
        for id in self.change(tree, holder, node, |node_uses| node_uses.evict(end)) {
            self.move_up(tree, id, node);
        }
    }

    /// Moves a use that lost its leaf up to the parent, or drops it where the parent has no span of it.
    fn move_up(&mut self, tree: &PinnedTree<'_, '_>, id: UseId, node: NodeRef<'_>) {
        let Some(one) = self.answered.get(&id).or_else(|| self.waiting.get(id)) else { return };
        if one.leaf != node.id {
            return;
        }
        let parent = tree.parent(node).map_or(0, |parent| parent.id);
        let means = |node_uses: &NodeUses| node_uses.used_last_by(id).is_some() || node_uses.is_waiting(id);
        if self.node_uses(one.holder, parent).is_some_and(means) {
            let moved = self.answered.get_mut(&id).or_else(|| self.waiting.get_mut(id));
            moved.into_iter().for_each(|one| one.leaf = parent);
        } else {
            self.drop_use(id);
            self.waiting.remove(id);
        }
    }

    /// Ends a use in its deepest node. Spans that an unanswered request uses there too keep only that request.
    /// Returns the number of spans that no request uses any more.
    fn retire(&mut self, tree: &mut PinnedTree<'_, '_>, id: UseId) -> u64 {
        let Some((holder, node, spans)) = self.last_used(tree, id) else {
            self.drop_use(id);
            return 0;
        };
        let pinned = self.node_uses(holder, node.id).map_or(0, NodeUses::pinned);
        self.shorten(tree, holder, node, spans.start);
        spans.end.saturating_sub(spans.start.max(pinned)) as u64
    }

    /// Ends the uses that are `ttl` or older, within a number of steps.
    pub fn expire(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        now: Micros,
        ttl: Micros,
        steps_max: usize,
    ) -> Work {
        self.now = self.now.max(now);
        for _ in 0..steps_max {
            let is_overdue = |one: &Use| now.since(one.at) >= ttl;
            let oldest_waiting = self.waiting.iter().next();
            let oldest_answered = self.answered.first_key_value();
            if let Some((id, _)) = oldest_waiting.filter(|(_, one)| is_overdue(one)) {
                self.withdraw(tree, id);
            } else if let Some((&id, _)) = oldest_answered.filter(|(_, one)| is_overdue(one)) {
                let holder = self.answered[&id].holder;
                self.evicted_by_age += self.retire(tree, id);
                self.prune(tree);
                self.recount_bytes(holder);
            } else {
                return Work::Done;
            }
        }
        Work::Left
    }

    /// Evicts the least recently used spans of any holder. `from` is where to continue, and moves past uses that
    /// unanswered requests pin. `None` when there is nothing more to evict.
    pub fn evict_oldest(&mut self, tree: &mut PinnedTree<'_, '_>, from: &mut UseId) -> Option<u64> {
        let (&id, oldest) = self.answered.range(*from..).next()?;
        let holder = oldest.holder;
        let evicted = self.evict(tree, id, u64::MAX);
        *from = if evicted == 0 { id + 1 } else { id };
        self.evicted_by_budget += evicted;
        self.prune(tree);
        self.recount_bytes(holder);
        Some(evicted)
    }

    /// Removes a node's spans from `end` on from a holder. The caller has removed deeper nodes before.
    pub fn forget(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        end: usize,
    ) {
        for id in self.change(tree, holder, node, |node_uses| node_uses.trim(end)) {
            self.move_up(tree, id, node);
        }
        self.prune(tree);
        self.recount_bytes(holder);
    }

    /// The next use id: [`Presumed::clear`] removes uses before it.
    pub fn horizon(&self) -> UseId {
        self.next_use.load(Relaxed)
    }

    /// Removes a holder's uses before `horizon`, within a number of steps. Its capacity stays.
    pub fn clear(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        horizon: UseId,
        steps_max: usize,
    ) -> Work {
        let before = self.waiting.iter().take_while(|&(id, _)| id < horizon);
        let mine = before.filter(|(_, one)| one.holder == holder).map(|(id, _)| id);
        let waiting: Vec<UseId> = mine.take(steps_max / 4).collect();
        waiting.iter().for_each(|&id| self.withdraw(tree, id));
        let mut work = Work::Left;
        for _ in waiting.len() * 4..steps_max {
            let oldest = self.peek(holder).and_then(|lru| lru.order.range(..horizon).next().copied());
            let Some(id) = oldest else {
                work = Work::Done;
                break;
            };
            self.retire(tree, id);
        }
        self.prune(tree);
        if self.peek(holder).is_some() {
            self.recount_bytes(holder);
        }
        work
    }

    fn prune(&mut self, tree: &mut PinnedTree<'_, '_>) {
        while let Some(id) = self.to_prune.pop() {
            if let Some(node) = tree.living(id) {
                tree.prune(node);
            }
        }
    }

    fn node_uses(&self, holder: HolderPosition, node: NodeId) -> Option<&NodeUses> {
        self.peek(holder)?.nodes.get(&node)
    }

    fn peek(&self, holder: HolderPosition) -> Option<&PresumedLru> {
        self.lrus.get(holder.index())?.as_deref()
    }

    fn lru(&mut self, holder: HolderPosition) -> &mut PresumedLru {
        let index = holder.index();
        if self.lrus.len() <= index {
            self.lrus.resize_with(index + 1, || None);
        }
        let (capacity_tokens, hash) = (self.capacity_tokens, self.hash);
        self.lrus[index].get_or_insert_with(|| Box::new(PresumedLru::new(capacity_tokens, hash)))
    }

    /// Updates the count of a holder's bytes after a change.
    fn recount_bytes(&mut self, holder: HolderPosition) {
        let lru = self.lru(holder);
        let (before, after) = (lru.counted_bytes, lru.bytes());
        lru.counted_bytes = after;
        self.lru_bytes = self.lru_bytes + after - before;
    }
}

/// Takes the next free id at this time.
pub(crate) fn take_id(next_use: &AtomicU64, now: Micros) -> UseId {
    let (first, mut free) = (first_id(now), next_use.load(Relaxed));
    loop {
        let id = free.max(first);
        match next_use.compare_exchange_weak(free, id + 2, Relaxed, Relaxed) {
            Ok(_) => return id,
            Err(other) => free = other,
        }
    }
}

/// The first id of a time. There are 256 ids for each microsecond.
fn first_id(at: Micros) -> UseId {
    at.0.min(1 << 54) << 8
}

/// How many of the first spans fit a cache of this many tokens.
fn fitting(slice: ChainSlice<'_>, capacity_tokens: u64) -> usize {
    let mut tokens = 0;
    let fits = |size: &&crate::span::Size| {
        tokens += u64::from(size.tokens());
        tokens <= capacity_tokens
    };
    slice.sizes.iter().take_while(fits).count()
}
