//! Reported spans: stored, removed and cleared under the engines' own names.
//!
//! A name belongs to the holder that used it. It is counted (stored twice, it is removed twice), it stands for one
//! address at a time (stored elsewhere, it has moved), and it is a parent only while the holder holds it. Where
//! engines agree on hashes, the name stored with the span serves all of them; a holder's `HolderNames` contains only
//! what differs.

mod assign;
mod copy;
mod recount;

use crate::chain::{Chain, Point};
use crate::holder_bits::HolderPosition;
use crate::holder_names::HolderNames;
use crate::holders;
use crate::name_table::{NameHash, NameTable, SpanAddress};
use crate::node::{NodeId, NodeRef, offsets};
use crate::orphans::Orphans;
use crate::table_hash::TableHash;
use crate::tree::{PinnedTree, Tree};

/// Addresses that one shared name may have. More occur only where names are not hashes; those are kept per holder.
const HOMONYMS_MAX: usize = 4;

/// Names beyond the first under which one holder may hold one span; further ones are not taken. An engine that gives
/// one block many names would otherwise make every removal walk all of them.
const ALIASES_MAX: usize = 64;

/// How many names ahead of the current one are prefetched.
const AHEAD: usize = 8;

/// Most spans of a node.
const SPANS_A_NODE: usize = 64;

/// All reported spans.
pub(crate) struct Reported {
    hash: TableHash,
    shared: NameTable,
    /// By the holder's bit position.
    holders: Vec<Option<Box<HolderNames>>>,
    pub orphans: Orphans,
    /// Shared names with more than one address, counted once per additional address. While zero, a name determines
    /// its address.
    homonyms: usize,
    /// Nodes that lost spans during the current operation.
    to_prune: Vec<NodeId>,
    /// Bytes of all holders' names.
    holder_name_bytes: usize,
    /// Names that were stored again at another address.
    pub moved: u64,
}

/// Spans of a node that the holder holds in the tree, but not yet or no longer under their names.
#[derive(Clone, Copy, Default)]
struct Unnamed {
    node: NodeId,
    bits: u64,
}

impl Reported {
    pub fn new(orphans_max: usize, hash: TableHash) -> Reported {
        Reported {
            hash,
            shared: NameTable::default(),
            holders: Vec::new(),
            orphans: Orphans::new(orphans_max, hash),
            homonyms: 0,
            to_prune: Vec::new(),
            holder_name_bytes: 0,
            moved: 0,
        }
    }

    /// Bytes of the shared names, and of the holders' names with everything that waits.
    pub fn bytes(&self) -> (usize, usize) {
        let slots = self.holders.capacity() * size_of::<Option<Box<HolderNames>>>();
        (self.shared.allocated(), self.holder_name_bytes + slots + self.orphans.bytes())
    }

    /// The point after the span that the holder holds under this name.
    pub fn after<'g>(
        &self,
        tree: &PinnedTree<'_, 'g>,
        holder: HolderPosition,
        name: u64,
    ) -> Option<Point<'g>> {
        let address = self.resolve(tree, holder, name, Unnamed::default())?;
        Some(Point { node: tree.node(address.node()), at: address.offset() + 1 })
    }

    /// The address at which the holder holds this name.
    fn resolve(
        &self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        name: u64,
        unnamed: Unnamed,
    ) -> Option<SpanAddress> {
        let holder_names = self.holder_names(holder)?;
        let hash = NameHash::of(self.hash, name);
        if let Some(address) = holder_names.own_address(name, hash) {
            return Some(address);
        }
        self.shared.find(hash, |address| {
            let (node, bit) = (tree.node(address.node()), 1 << address.offset());
            tree.meta(node).names[address.offset()] == name
                && tree.mask(node, holder) & bit != 0
                && !(unnamed.node == node.id && unnamed.bits & bit != 0)
                && !holder_names.is_own(address)
        })
    }

    /// Prefetches the slots of a name.
    pub fn prefetch(&self, holder: HolderPosition, name: u64) {
        let hash = NameHash::of(self.hash, name);
        self.shared.prefetch(hash);
        if let Some(holder_names) = self.holder_names(holder).filter(|names| !names.own.is_empty()) {
            holder_names.own.prefetch(hash);
        }
    }

    /// Stores a chain after `point` while `may_grow` allows it. Returns the number of stored spans.
    pub fn store(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        mut point: Point<'_>,
        chain: &Chain,
        may_grow: impl Fn(&Tree) -> bool,
    ) -> usize {
        let mut stored = 0;
        while stored < chain.names.len() && may_grow(tree) {
            let placed = tree.insert(holder, point, chain.slice().from(stored));
            let end = stored + placed.count;
            self.assign(tree, holder, placed, &chain.names[stored..end], &chain.counts[stored..end]);
            (point, stored) = (placed.end(), end);
        }
        stored
    }

    fn count_homonyms(&self, tree: &PinnedTree<'_, '_>, name: u64) -> usize {
        let count = std::cell::Cell::new(0);
        self.shared.find(NameHash::of(self.hash, name), |address| {
            let is_same = tree.meta(tree.node(address.node())).names[address.offset()] == name;
            count.set(count.get() + usize::from(is_same));
            false
        });
        count.get()
    }

    /// Removes a name from the span that the holder holds under it, and the span with its last name.
    fn release_name(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        name: u64,
        address: SpanAddress,
    ) {
        if self.holder_names_mut(holder).remove_name(address, name) {
            return;
        }
        self.drop_spans(tree, holder, tree.node(address.node()), 1 << address.offset());
    }

    /// Removes spans of one node from a holder, whatever their names.
    fn drop_spans(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) {
        let left = tree.mask(node, holder) & !bits;
        tree.set_mask(node, holder, left);
        self.holder_names_mut(holder).retain(node.id, left);
        let dead = bits & !holders::union(node.body());
        self.unname(tree, node, dead);
        if self.to_prune.last() != Some(&node.id) {
            self.to_prune.push(node.id);
        }
    }

    /// Removes the shared names of spans that no holder holds.
    fn unname(&mut self, tree: &mut PinnedTree<'_, '_>, node: NodeRef<'_>, dead: u64) {
        let meta = tree.meta_mut(node);
        let named = meta.named & dead;
        meta.named &= !dead;
        let mut hashes = [NameHash::default(); SPANS_A_NODE];
        for offset in offsets(named) {
            hashes[offset] = NameHash::of(self.hash, meta.names[offset]);
            self.shared.prefetch(hashes[offset]);
        }
        for offset in offsets(named) {
            self.shared.remove(hashes[offset], SpanAddress::new(node.id, offset));
            if self.homonyms > 0 && self.count_homonyms(tree, tree.meta(node).names[offset]) > 0 {
                self.homonyms -= 1;
            }
        }
    }

    /// Removes each of these names once. Returns how many were held.
    pub fn remove(&mut self, tree: &mut PinnedTree<'_, '_>, holder: HolderPosition, names: &[u64]) -> usize {
        if !self.has_names(holder) && !self.orphans.has_waiting(holder) {
            return 0;
        }
        let mut found = 0;
        let mut leaving = Unnamed::default();
        let mut rest = names;
        while let Some((&name, after)) = rest.split_first() {
            if let Some(&soon) = after.get(AHEAD - 1) {
                self.prefetch(holder, soon);
            }
            rest = after;
            if self.orphans.has_waiting(holder) && self.orphans.remove(holder, name) {
                found += 1;
            } else if let Some(address) = self.resolve(tree, holder, name, leaving) {
                let neighbors = self.remove_at(tree, holder, name, address, &mut leaving, after);
                rest = &after[neighbors..];
                found += 1 + neighbors;
            }
        }
        self.drop_leaving(tree, holder, leaving);
        found
    }

    fn holder_names(&self, holder: HolderPosition) -> Option<&HolderNames> {
        self.holders.get(holder.index())?.as_deref()
    }

    /// Removes a name once, at the address where the holder holds it, and those of the names `after` it that belong to
    /// its neighbours. Returns how many those are. Consecutive spans of one node are collected in `leaving` and removed
    /// together.
    fn remove_at(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        name: u64,
        address: SpanAddress,
        leaving: &mut Unnamed,
        after: &[u64],
    ) -> usize {
        let has_waiting = self.orphans.has_waiting(holder);
        let holder_names = self.holder_names_mut(holder);
        if holder_names.take_extra_count(name) {
            return 0;
        }
        if holder_names.has_aliases() {
            self.drop_leaving(tree, holder, std::mem::take(leaving));
            self.release_name(tree, holder, name, address);
            return 0;
        }
        let has_counts = !holder_names.extra_counts.is_empty();
        if leaving.node != address.node() {
            self.drop_leaving(tree, holder, std::mem::take(leaving));
            leaving.node = address.node();
        }
        let bit = 1 << address.offset();
        leaving.bits |= bit;
        let neighbors = if has_waiting || has_counts {
            0
        } else {
            self.neighbors(tree, holder, *leaving, address, after)
        };
        leaving.bits |= neighbors;
        self.holder_names_mut(holder).drop_own_names(leaving.node, bit | neighbors);
        neighbors.count_ones() as usize
    }

    /// The spans around an address to which the first of these names belong, each a neighbour of the one before.
    /// Engines evict chains from their ends, so most names are found here and not in the tables. For a holder that has
    /// one name for each span, stored once.
    fn neighbors(
        &self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        leaving: Unnamed,
        address: SpanAddress,
        names: &[u64],
    ) -> u64 {
        let node = tree.node(address.node());
        let meta = tree.meta(node);
        let own_names = self.holder_names(holder).and_then(|holder_names| holder_names.own_names(node.id));
        let mut held = tree.mask(node, holder) & !leaving.bits;
        let own = own_names.map_or(0, |own| own.bits);
        let is_it = |at: usize, name: u64| match own_names {
            Some(names) if own >> at & 1 == 1 => names.names[at] == name,
            _ => meta.named >> at & 1 == 1 && meta.names[at] == name,
        };
        let (mut at, mut neighbors) = (address.offset(), 0);
        for &name in names {
            let is_next = |&next: &usize| next < SPANS_A_NODE && held >> next & 1 == 1 && is_it(next, name);
            let Some(next) = [at.wrapping_sub(1), at + 1].into_iter().find(is_next) else { break };
            neighbors |= 1 << next;
            held &= !(1 << next);
            at = next;
        }
        neighbors
    }

    fn drop_leaving(&mut self, tree: &mut PinnedTree<'_, '_>, holder: HolderPosition, leaving: Unnamed) {
        if leaving.bits != 0 {
            self.drop_spans(tree, holder, tree.node(leaving.node), leaving.bits);
        }
    }

    /// Removes all of these names that the holder holds, whatever their counts: they are about to be held elsewhere.
    pub fn give_up(&mut self, tree: &mut PinnedTree<'_, '_>, holder: HolderPosition, names: &[u64]) {
        for &name in names {
            if let Some(address) = self.resolve(tree, holder, name, Unnamed::default()) {
                self.moved += 1;
                self.holder_names_mut(holder).extra_counts.remove(&name);
                self.release_name(tree, holder, name, address);
            }
        }
    }

    /// Removes some of one holder's spans, up to so many nodes. Returns true while there are more.
    pub fn clear_some(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        nodes_max: usize,
    ) -> bool {
        // Whole groups are dropped. A group has at most as many spans as one hold of the lock stores.
        if self.orphans.clear_some(holder, nodes_max * SPANS_A_NODE) {
            return true;
        }
        if !self.has_names(holder) {
            return false;
        }
        for _ in 0..nodes_max {
            let Some(id) = self.holder_names_mut(holder).nodes.any_key() else { break };
            let node = tree.node(id);
            let bits = tree.mask(node, holder);
            self.forget_spans(tree, holder, node, bits);
            self.holder_names_mut(holder).retain(id, 0);
        }
        let is_empty = self.holder_names_mut(holder).is_empty();
        self.prune(tree, holder);
        !is_empty
    }

    /// Removes these spans of a node from a holder, whatever their names and counts.
    pub fn forget_spans(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) {
        if self.has_names(holder) {
            self.forget_counts(tree, holder, node, bits);
            self.holder_names_mut(holder).forget_names(node.id, bits);
            self.drop_spans(tree, holder, node, bits);
        }
    }

    /// Drops the extra counts of spans that the holder knows by their shared names.
    fn forget_counts(
        &mut self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) {
        let holder_names = self.holder_names_mut(holder);
        if holder_names.extra_counts.is_empty() {
            return;
        }
        for offset in offsets(bits & tree.meta(node).named & !holder_names.own_bits(node.id)) {
            holder_names.extra_counts.remove(&tree.meta(node).names[offset]);
        }
    }

    /// Removes the nodes that the current operation left empty. No node is created between the removal and this call,
    /// so an id in the list is the same node or unused.
    pub fn prune(&mut self, tree: &mut PinnedTree<'_, '_>, holder: HolderPosition) {
        while let Some(id) = self.to_prune.pop() {
            if let Some(node) = tree.living(id) {
                tree.prune(node);
            }
        }
        self.recount_bytes(holder);
    }

    /// Updates the count of a holder's bytes, and frees names that are empty.
    fn recount_bytes(&mut self, holder: HolderPosition) {
        let Some(index) = self.holders.get_mut(holder.index()) else { return };
        let Some(holder_names) = index else { return };
        let before = holder_names.counted_bytes;
        holder_names.counted_bytes = if holder_names.is_empty() { 0 } else { holder_names.bytes() };
        self.holder_name_bytes = self.holder_name_bytes + holder_names.counted_bytes - before;
        if holder_names.is_empty() {
            *index = None;
        }
    }

    fn holder_names_mut(&mut self, holder: HolderPosition) -> &mut HolderNames {
        let index = holder.index();
        if self.holders.len() <= index {
            self.holders.resize_with(index + 1, || None);
        }
        self.holders[index].get_or_insert_with(|| Box::new(HolderNames::new(self.hash)))
    }

    fn has_names(&self, holder: HolderPosition) -> bool {
        self.holders.get(holder.index()).is_some_and(Option::is_some)
    }
}
