//! The writer's view of the tree: insertion, change and removal of spans.
//!
//! Everything here runs under the writer's lock, while readers walk the same nodes (`body.rs` says what they may see
//! change). Replaced memory is freed by epoch, in batches. Every allocation is counted where it is made.
#![allow(unsafe_code)]

mod linking;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam_epoch::Guard;

use crate::body::{Plan, SPANS_MAX, Sizes, ones};
use crate::chain::{ChainSlice, NodeRange, Origin, Point};
use crate::children::{Children, TableStats};
use crate::holder_bits::HolderPosition;
use crate::holders::{self, Holders};
use crate::node::{NodeId, NodeMeta, NodeRef, Pinned};
use crate::node_arena::NodeArena;
use crate::retired::{Retired, RetiredBatch};
use crate::span::{Reach, Size, common};

/// The writer's side of the tree.
pub(crate) struct Tree {
    children: Arc<Children>,
    table_stats: TableStats,
    arena: NodeArena,
    serials: u64,
    retired: RetiredBatch,
    scratch: Scratch,
    pub counts: Counts,
}

/// Sizes and counts of the tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Bytes of nodes, bodies and child lengths.
    pub bytes: usize,
    pub nodes: usize,
    /// Distinct spans that a holder holds, or that precede one in its chain.
    pub spans: usize,
    /// (holder, span) pairs.
    pub held: usize,
    /// Children found by digest only, because their node has too many child lengths.
    pub length_overflows: u64,
}

/// Reused buffers.
#[derive(Default)]
struct Scratch {
    holders: Holders,
    digests: Vec<u64>,
    sizes: Vec<Size>,
}

impl Tree {
    pub fn new(children: Arc<Children>) -> Tree {
        Tree {
            children,
            table_stats: TableStats::default(),
            arena: NodeArena::default(),
            serials: 0,
            retired: RetiredBatch::default(),
            scratch: Scratch::default(),
            counts: Counts::default(),
        }
    }

    /// The tree under an epoch guard, which gives access to its nodes.
    pub fn pin<'t, 'g>(&'t mut self, guard: &'g Guard) -> PinnedTree<'t, 'g> {
        PinnedTree { tree: self, pinned: Pinned::by(guard) }
    }

    /// Bytes of the tree with its tables.
    pub fn bytes(&self) -> usize {
        self.counts.bytes + self.arena.bytes() + self.table_stats.bytes()
    }

    /// The end of all node ids, less one. Some ids have no node.
    pub fn id_end(&self) -> usize {
        self.arena.id_end()
    }

    /// Whether there are ids for more nodes.
    pub fn has_free_ids(&self) -> bool {
        self.arena.has_room()
    }

    /// The writer's data about a node.
    #[inline]
    pub fn meta(&self, node: NodeRef<'_>) -> &NodeMeta {
        self.arena.meta(node.id)
    }

    /// The writer's data about a node, mutable.
    #[inline]
    pub fn meta_mut(&mut self, node: NodeRef<'_>) -> &mut NodeMeta {
        self.arena.meta_mut(node.id)
    }

    /// The node that this one continues; none for a root.
    pub fn parent<'g>(&self, node: NodeRef<'g>) -> Option<NodeRef<'g>> {
        // SAFETY: a node with a linked child is linked.
        self.meta(node).parent.map(|parent| unsafe { parent.follow(node.pinned()) })
    }

    pub fn child<'g>(&self, point: Point<'g>, digest: u64) -> Option<NodeRef<'g>> {
        (self.meta(point.node).children > 0)
            .then(|| self.children.find(point.node.serial, point.at, digest, point.node.pinned()))
            .flatten()
    }

    /// Finds the first of these spans after `point`, as many as one node contains. `None` where the tree does not
    /// contain the first one.
    pub fn follow<'g>(&self, point: Point<'g>, slice: ChainSlice<'_>) -> Option<NodeRange<'g>> {
        let Point { node, at } = point;
        let body = node.body();
        let known = &body.digests(body.len())[at..];
        let count = common(known, slice.digests);
        if count > 0 {
            return Some(NodeRange { node, from: at, count, origin: Origin::Existing });
        }
        let child = self.child(point, *slice.digests.first()?)?;
        self.follow(Point { node: child, at: 0 }, slice)
    }

    /// Like [`Tree::follow`], but inserts the spans for `holder` where the tree does not contain them.
    pub fn insert<'g>(
        &mut self,
        holder: HolderPosition,
        point: Point<'g>,
        slice: ChainSlice<'_>,
    ) -> NodeRange<'g> {
        if let Some(found) = self.follow(point, slice) {
            return found;
        }
        let Point { node, at } = point;
        let body = node.body();
        let can_grow = at > 0 && at == body.len() && at < SPANS_MAX && !holders::has_complete(body);
        let count = slice.len().min(if can_grow { SPANS_MAX - at } else { SPANS_MAX });
        self.counts.spans += count;
        self.counts.held += count;
        if can_grow {
            self.extend(holder, node, slice.first(count));
            return NodeRange { node, from: at, count, origin: Origin::New };
        }
        let node = self.add_child(holder, point, slice.first(count));
        NodeRange { node, from: 0, count, origin: Origin::New }
    }

    /// Adds a new node with these spans, held by `holder`, after `point`.
    fn add_child<'g>(
        &mut self,
        holder: HolderPosition,
        point: Point<'g>,
        slice: ChainSlice<'_>,
    ) -> NodeRef<'g> {
        let plan = Plan {
            cap: room_for(slice.len()),
            digests: slice.digests,
            sizes: pack_sizes(slice.sizes),
            words: &[],
            entries: &[(holder, ones(slice.len()))],
        };
        let start = point.node.reach(point.at);
        self.add(
            Some(point.node),
            point.at as u32,
            slice.digests[0],
            start,
            plan.build(),
            point.node.pinned(),
        )
    }

    /// Appends spans to a node, in place where there is room.
    fn extend(&mut self, holder: HolderPosition, node: NodeRef<'_>, slice: ChainSlice<'_>) {
        let body = node.body();
        let (len, end) = (body.len(), body.len() + slice.len());
        let mask = holders::mask(body, holder) | ones(slice.len()) << len;
        let is_listed = body.entries().0.contains(&holder);
        if is_listed && end <= body.cap() && slice.sizes.iter().all(|&size| body.has_room_for(size)) {
            for (&digest, &size) in slice.digests.iter().zip(slice.sizes) {
                // SAFETY: this is the only writer, and there is room for all of them.
                unsafe { body.push(digest, size) };
            }
            return self.put_mask(node, holder, mask);
        }
        let scratch = &mut self.scratch;
        scratch.holders.load(body);
        scratch.holders.set(holder, mask);
        scratch.take(node, len);
        scratch.digests.extend_from_slice(slice.digests);
        scratch.sizes.extend_from_slice(slice.sizes);
        self.replace(node, room_for(end.max(body.cap() * 3 / 2)));
    }

    /// The spans of a node that a holder holds.
    pub fn mask(&self, node: NodeRef<'_>, holder: HolderPosition) -> u64 {
        holders::mask(node.body(), holder)
    }

    /// Changes the spans of a node that a holder holds. A node that may have become empty must be given to
    /// [`Tree::prune`] afterwards.
    pub fn set_mask(&mut self, node: NodeRef<'_>, holder: HolderPosition, mask: u64) {
        let body = node.body();
        let before = holders::mask(body, holder).count_ones() as usize;
        self.counts.held = self.counts.held + mask.count_ones() as usize - before;
        self.put_mask(node, holder, mask);
    }

    fn put_mask(&mut self, node: NodeRef<'_>, holder: HolderPosition, mask: u64) {
        let body = node.body();
        if !holders::set_in_place(body, holder, mask) {
            self.scratch.holders.load(body);
            self.scratch.holders.set(holder, mask);
            self.scratch.take(node, body.len());
            self.replace(node, body.cap());
        }
    }

    /// Sets the shared name of a span.
    pub fn set_name(&mut self, node: NodeRef<'_>, offset: usize, name: u64) {
        let meta = self.meta_mut(node);
        meta.named |= 1 << offset;
        if let Some(known) = meta.names.get_mut(offset) {
            *known = name;
            return;
        }
        let before = meta.names.capacity();
        meta.names.reserve_exact(node.body().cap() - meta.names.len());
        meta.names.resize(offset, 0);
        meta.names.push(name);
        let after = meta.names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
    }

    /// Sets the shared names of spans at the end of a node. The caller enters them into the shared table.
    pub fn set_names(&mut self, node: NodeRef<'_>, from: usize, names: &[u64]) {
        let meta = self.meta_mut(node);
        let before = meta.names.capacity();
        meta.names.truncate(from);
        if before < from + names.len() {
            meta.names.reserve_exact(node.body().cap() - meta.names.len());
        }
        meta.names.resize(from, 0);
        meta.names.extend_from_slice(names);
        let after = meta.names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
    }

    /// Removes what is not needed: the node if it has neither holders nor children, then its parents for the same
    /// reason, and finally the tail of the first node that stays.
    pub fn prune(&mut self, mut node: NodeRef<'_>) {
        while self.meta(node).children == 0 && holders::union(node.body()) == 0 {
            let parent = self.parent(node);
            self.remove(node);
            let Some(parent) = parent else { return };
            node = parent;
        }
        self.trim(node);
    }

    /// Cuts off an unheld tail once the rest fills less than half of the body.
    fn trim(&mut self, node: NodeRef<'_>) {
        let body = node.body();
        if body.cap() <= 4 || holders::has_complete(body) {
            return;
        }
        let held_end = 64 - holders::union(body).leading_zeros() as usize;
        let end = held_end.max(self.meta(node).children_end as usize);
        if end == 0 || end * 2 > body.cap() || end > body.len() {
            return;
        }
        self.counts.spans -= body.len() - end;
        self.scratch.holders.load(body);
        self.scratch.take(node, end);
        let names = &mut self.meta_mut(node).names;
        let before = names.capacity();
        names.truncate(end);
        names.shrink_to_fit();
        let after = names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
        self.replace(node, room_for(end));
    }

    /// Replaces a node's body by the scratch buffers.
    fn replace(&mut self, node: NodeRef<'_>, cap: usize) {
        let Scratch { holders, digests, sizes } = &mut self.scratch;
        holders.normalize(digests.len());
        let plan =
            Plan { cap, digests, sizes: pack_sizes(sizes), words: &holders.words, entries: &holders.entries };
        let old = node.body().allocated();
        let retired = node.swap_body(plan.build());
        self.counts.bytes = self.counts.bytes + node.body().allocated() - old;
        // SAFETY: the body was just replaced, and `swap_body` returns it once.
        unsafe { self.retired.add(Retired::Body(retired), old) };
    }

    /// Hands all retired memory to the collector.
    pub fn flush(&mut self) {
        self.retired.flush();
    }
}

/// The tree together with an epoch guard: nodes found in it may be used for `'g`, even if they are unlinked
/// meanwhile.
pub(crate) struct PinnedTree<'t, 'g> {
    tree: &'t mut Tree,
    pinned: Pinned<'g>,
}

impl<'g> PinnedTree<'_, 'g> {
    /// The node with this id, which is linked.
    pub fn node(&self, id: NodeId) -> NodeRef<'g> {
        self.living(id).expect("the writer keeps only ids of linked nodes")
    }

    /// The node with this id, if it is still linked.
    pub fn living(&self, id: NodeId) -> Option<NodeRef<'g>> {
        self.tree.arena.living(id, self.pinned)
    }

    /// The root of a namespace, if anything is stored under it.
    pub fn root(&self, key: u64) -> Option<NodeRef<'g>> {
        self.tree.children.find(0, 0, key, self.pinned)
    }

    /// The root of a namespace, created where it is missing. A root that stays empty must be given to [`Tree::prune`].
    pub fn root_or_new(&mut self, key: u64) -> NodeRef<'g> {
        self.root(key).unwrap_or_else(|| {
            let plan = Plan { cap: 0, digests: &[], sizes: Sizes::Even(Size(0)), words: &[], entries: &[] };
            self.tree.add(None, 0, key, Reach::default(), plan.build(), self.pinned)
        })
    }
}

impl Deref for PinnedTree<'_, '_> {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        self.tree
    }
}

impl DerefMut for PinnedTree<'_, '_> {
    fn deref_mut(&mut self) -> &mut Tree {
        self.tree
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for node in self.arena.drain() {
            // SAFETY: the index is being dropped, so there is no reader, and each node is in the arena once.
            unsafe { node.free() };
        }
    }
}

impl Scratch {
    /// Copies the first `len` spans of a node.
    fn take(&mut self, node: NodeRef<'_>, len: usize) {
        let body = node.body();
        self.digests.clear();
        self.digests.extend_from_slice(body.digests(len));
        self.sizes.clear();
        match body.sizes(len) {
            Sizes::Even(size) => self.sizes.resize(len, size),
            Sizes::Ragged(sizes) => self.sizes.extend_from_slice(sizes),
        }
    }
}

/// Capacity for at least `len` spans, with a little room to grow.
fn room_for(len: usize) -> usize {
    len.next_multiple_of(4).min(SPANS_MAX)
}

fn pack_sizes(sizes: &[Size]) -> Sizes<'_> {
    let is_even = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    if is_even { Sizes::Even(sizes.first().copied().unwrap_or_default()) } else { Sizes::Ragged(sizes) }
}
