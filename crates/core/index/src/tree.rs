//! The tree as the writer sees it: where spans are laid, covered, uncovered and forgotten.
//!
//! All of this runs under the writer's lock; readers walk the same nodes meanwhile (see `body.rs` for what they may
//! see change). What was replaced is freed by epoch, in batches. Every allocation is counted where it is made.
#![allow(unsafe_code)]

mod family;

use std::sync::Arc;

use crate::body::{Plan, SPANS_MAX, Sizes, ones};
use crate::chain::{Links, Origin, Point, Stretch};
use crate::children::{Children, Filling};
use crate::garbage::{Garbage, Waste};
use crate::holders::{self, Holders};
use crate::node::{Ledger, NodeId, NodeRef};
use crate::numbers::Numbers;
use crate::span::{Reach, Size, common};

/// The writer's side of the tree.
pub(crate) struct Tree {
    children: Arc<Children>,
    filling: Filling,
    numbers: Numbers,
    serials: u64,
    garbage: Garbage,
    scratch: Scratch,
    pub counts: Counts,
}

/// What the tree holds, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Bytes of nodes, bodies and fans.
    pub bytes: usize,
    pub nodes: usize,
    /// Distinct spans, held or on the way to one that is held.
    pub spans: usize,
    /// (worker, span) pairs.
    pub held: usize,
    /// Children that are found by digest only, because their node has too many lengths.
    pub fan_overflows: u64,
}

/// Buffers that are used again and again.
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
            filling: Filling::default(),
            numbers: Numbers::default(),
            serials: 0,
            garbage: Garbage::default(),
            scratch: Scratch::default(),
            counts: Counts::default(),
        }
    }

    /// Bytes of the tree with its tables.
    pub fn bytes(&self) -> usize {
        self.counts.bytes + self.numbers.bytes() + self.filling.bytes()
    }

    /// Whether there are numbers left for more nodes.
    pub fn has_numbers(&self) -> bool {
        self.numbers.has_room()
    }

    pub fn node(&self, id: NodeId) -> NodeRef {
        self.numbers.living(id).expect("the writer keeps only numbers of living nodes")
    }

    /// The writer's notes on a node.
    #[inline]
    pub fn ledger(&self, node: NodeRef) -> &Ledger {
        self.numbers.ledger(node.id)
    }

    /// The writer's notes on a node, to be changed.
    #[inline]
    pub fn ledger_mut(&mut self, node: NodeRef) -> &mut Ledger {
        self.numbers.ledger_mut(node.id)
    }

    /// Where the chains of a namespace begin, if any do.
    pub fn root(&self, key: u64) -> Option<NodeRef> {
        self.children.find(0, 0, key)
    }

    /// Where the chains of a namespace begin. A root that stays empty must be given to [`Tree::tidy`].
    pub fn root_or_new(&mut self, key: u64) -> NodeRef {
        self.root(key).unwrap_or_else(|| {
            let plan = Plan { cap: 0, digests: &[], sizes: Sizes::Even(Size(0)), words: &[], entries: &[] };
            self.add(None, 0, key, Reach::default(), plan.build())
        })
    }

    pub fn child(&self, point: Point, digest: u64) -> Option<NodeRef> {
        (self.ledger(point.node).children > 0)
            .then(|| self.children.find(point.node.serial, point.at, digest))
            .flatten()
    }

    /// Finds the first of `links` after `point`: as many as one node carries. `None` where the tree knows no such span.
    pub fn follow(&self, point: Point, links: Links<'_>) -> Option<Stretch> {
        let Point { node, at } = point;
        let body = node.body();
        let known = &body.digests(body.len())[at..];
        let count = common(known, links.digests);
        if count > 0 {
            return Some(Stretch { node, from: at, count, origin: Origin::Found });
        }
        let child = self.child(point, *links.digests.first()?)?;
        self.follow(Point { node: child, at: 0 }, links)
    }

    /// Like [`Tree::follow`], but lays the links for `worker` where the tree does not know them.
    pub fn lay(&mut self, worker: u16, point: Point, links: Links<'_>) -> Stretch {
        if let Some(found) = self.follow(point, links) {
            return found;
        }
        let Point { node, at } = point;
        let body = node.body();
        let can_grow = at > 0 && at == body.len() && at < SPANS_MAX && !holders::has_complete(body);
        let count = links.len().min(if can_grow { SPANS_MAX - at } else { SPANS_MAX });
        self.counts.spans += count;
        self.counts.held += count;
        if can_grow {
            self.extend(worker, node, links.first(count));
            return Stretch { node, from: at, count, origin: Origin::Laid };
        }
        let node = self.sprout(worker, point, links.first(count));
        Stretch { node, from: 0, count, origin: Origin::Laid }
    }

    /// Hangs a new node with these links, held by `worker`, after `point`.
    fn sprout(&mut self, worker: u16, point: Point, links: Links<'_>) -> NodeRef {
        let plan = Plan {
            cap: room_for(links.len()),
            digests: links.digests,
            sizes: even_or_ragged(links.sizes),
            words: &[],
            entries: &[(worker, ones(links.len()))],
        };
        let start = point.node.reach(point.at);
        self.add(Some(point.node), point.at as u32, links.digests[0], start, plan.build())
    }

    /// Appends links to a node's own spans, in place where there is room.
    fn extend(&mut self, worker: u16, node: NodeRef, links: Links<'_>) {
        let body = node.body();
        let (len, end) = (body.len(), body.len() + links.len());
        let mask = holders::mask(body, worker) | ones(links.len()) << len;
        let is_listed = body.entries().0.contains(&worker);
        if is_listed && end <= body.cap() && links.sizes.iter().all(|&size| body.has_room_for(size)) {
            for (&digest, &size) in links.digests.iter().zip(links.sizes) {
                // SAFETY: this is the only writer, and there is room for all of them.
                unsafe { body.push(digest, size) };
            }
            return self.put_mask(node, worker, mask);
        }
        let scratch = &mut self.scratch;
        scratch.holders.load(body);
        scratch.holders.set(worker, mask);
        scratch.take(node, len);
        scratch.digests.extend_from_slice(links.digests);
        scratch.sizes.extend_from_slice(links.sizes);
        self.replace(node, room_for(end.max(body.cap() * 3 / 2)));
    }

    /// Which of the node's spans a worker holds.
    pub fn mask(&self, node: NodeRef, worker: u16) -> u64 {
        holders::mask(node.body(), worker)
    }

    /// Changes which of the node's spans a worker holds. A node that nobody needs any more must be given to
    /// [`Tree::tidy`] afterwards.
    pub fn set_mask(&mut self, node: NodeRef, worker: u16, mask: u64) {
        let body = node.body();
        let before = holders::mask(body, worker).count_ones() as usize;
        self.counts.held = self.counts.held + mask.count_ones() as usize - before;
        self.put_mask(node, worker, mask);
    }

    fn put_mask(&mut self, node: NodeRef, worker: u16, mask: u64) {
        let body = node.body();
        if !holders::set_in_place(body, worker, mask) {
            self.scratch.holders.load(body);
            self.scratch.holders.set(worker, mask);
            self.scratch.take(node, body.len());
            self.replace(node, body.cap());
        }
    }

    /// Writes down the name under which most know a span.
    pub fn set_name(&mut self, node: NodeRef, offset: usize, name: u64) {
        let ledger = self.ledger_mut(node);
        ledger.named |= 1 << offset;
        if let Some(known) = ledger.names.get_mut(offset) {
            *known = name;
            return;
        }
        let before = ledger.names.capacity();
        ledger.names.reserve_exact(node.body().cap() - ledger.names.len());
        ledger.names.resize(offset, 0);
        ledger.names.push(name);
        let after = ledger.names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
    }

    /// Writes down the names of spans at the end of a node. They are not yet said to be in the shared table.
    pub fn set_names(&mut self, node: NodeRef, from: usize, names: &[u64]) {
        let ledger = self.ledger_mut(node);
        let before = ledger.names.capacity();
        ledger.names.truncate(from);
        if before < from + names.len() {
            ledger.names.reserve_exact(node.body().cap() - ledger.names.len());
        }
        ledger.names.resize(from, 0);
        ledger.names.extend_from_slice(names);
        let after = ledger.names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
    }

    /// The node with this number, if it is still there.
    pub fn living(&self, id: NodeId) -> Option<NodeRef> {
        self.numbers.living(id)
    }

    /// Forgets what nobody needs: the node where nobody holds a span and no child hangs, its tail where most of it is
    /// dead, and then its parents for the same reasons.
    pub fn tidy(&mut self, mut node: NodeRef) {
        while self.ledger(node).children == 0 && holders::union(node.body()) == 0 {
            let parent = self.ledger(node).parent;
            self.remove(node);
            let Some(parent) = parent else { return };
            node = parent;
        }
        self.trim(node);
    }

    /// Cuts off a dead tail once the live part fills less than half of the body.
    fn trim(&mut self, node: NodeRef) {
        let body = node.body();
        if body.cap() <= 4 || holders::has_complete(body) {
            return;
        }
        let held_end = 64 - holders::union(body).leading_zeros() as usize;
        let end = held_end.max(self.ledger(node).children_end as usize);
        if end == 0 || end * 2 > body.cap() || end > body.len() {
            return;
        }
        self.counts.spans -= body.len() - end;
        self.scratch.holders.load(body);
        self.scratch.take(node, end);
        let names = &mut self.ledger_mut(node).names;
        let before = names.capacity();
        names.truncate(end);
        names.shrink_to_fit();
        let after = names.capacity();
        self.counts.bytes = self.counts.bytes + after * 8 - before * 8;
        self.replace(node, room_for(end));
    }

    /// Puts the scratch in place of a node's body.
    fn replace(&mut self, node: NodeRef, cap: usize) {
        let Scratch { holders, digests, sizes } = &mut self.scratch;
        holders.settle(digests.len());
        let plan = Plan {
            cap,
            digests,
            sizes: even_or_ragged(sizes),
            words: &holders.words,
            entries: &holders.entries,
        };
        let old = node.body().allocated();
        let waste = node.swap_body(plan.build());
        self.counts.bytes = self.counts.bytes + node.body().allocated() - old;
        self.garbage.put(Waste::Body(waste), old);
    }

    /// Hands over everything that waits to be freed.
    pub fn flush(&mut self) {
        self.garbage.flush();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for node in self.numbers.drain() {
            // SAFETY: the index is being dropped, so there is no reader, and each node is in the list once.
            unsafe { node.free() };
        }
    }
}

impl Scratch {
    /// Takes over the first `len` spans of a node.
    fn take(&mut self, node: NodeRef, len: usize) {
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

/// Room for at least `len` spans, with a little to grow.
fn room_for(len: usize) -> usize {
    len.next_multiple_of(4).min(SPANS_MAX)
}

fn even_or_ragged(sizes: &[Size]) -> Sizes<'_> {
    let is_even = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    if is_even { Sizes::Even(sizes.first().copied().unwrap_or_default()) } else { Sizes::Ragged(sizes) }
}
