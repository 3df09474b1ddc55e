//! How a worker comes to hold a range of spans under its engine's names.
//!
//! Two cases cover nearly all stores, and take one pass each: other workers hold these spans under the same names
//! (`assign_shared`), or no worker holds them yet (`assign_new`). The rest is handled span by span: a name that the
//! worker used elsewhere has moved, a name that it used here counts once more, and a name that differs from the
//! shared one goes into its `WorkerNames`.

use super::{AHEAD, ALIASES_MAX, HOMONYMS_MAX, Reported, Unnamed};
use crate::chain::{NodeRange, Origin};
use crate::name_table::SpanAddress;
use crate::node::NodeRef;
use crate::tree::PinnedTree;
use crate::worker_names::NameKind;

impl Reported {
    /// Gives the spans of a range to the worker, under these names.
    pub(super) fn assign(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        range: NodeRange<'_>,
        names: &[u64],
        counts: &[u32],
    ) {
        let holds_all = counts.iter().all(|&count| count == 1);
        if holds_all
            && (self.assign_shared(tree, worker, range, names) || self.assign_new(tree, worker, range, names))
        {
            return;
        }
        let wanted =
            (0..names.len()).filter(|&i| counts[i] > 0).fold(0, |bits, i| bits | 1 << (range.from + i));
        let mut unnamed = self.cover(tree, worker, range, wanted);
        names.iter().take(AHEAD).for_each(|&name| self.prefetch(worker, name));
        for (i, &name) in names.iter().enumerate().filter(|&(i, _)| counts[i] > 0) {
            if let Some(&soon) = names.get(i + AHEAD) {
                self.prefetch(worker, soon);
            }
            let address = SpanAddress::new(range.node.id, range.from + i);
            if !self.assign_unheld(tree, worker, name, address, &mut unnamed) {
                self.set_own_names(worker, &mut unnamed, range.from, names);
                self.assign_one(tree, worker, name, address, unnamed);
                unnamed.bits &= !(1 << address.offset());
            }
            if counts[i] > 1 {
                *self.worker_mut(worker).extra_counts.get_or_default(name) += counts[i] - 1;
            }
        }
        self.set_own_names(worker, &mut unnamed, range.from, names);
    }

    /// The second most common case: spans that no worker stored before. Names that may be in use already are handled
    /// one by one afterwards.
    fn assign_new(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        range: NodeRange<'_>,
        names: &[u64],
    ) -> bool {
        let node = range.node;
        if range.origin != Origin::New || self.orphans.has_waiting(worker) {
            return false;
        }
        tree.set_names(node, range.from, names);
        self.worker_mut(worker).nodes.get_or_default(node.id);
        names.iter().take(AHEAD).for_each(|&name| self.prefetch(worker, name));
        let mut doubtful = 0;
        for (i, &name) in names.iter().enumerate() {
            if let Some(&soon) = names.get(i + AHEAD) {
                self.prefetch(worker, soon);
            }
            let is_new = self.worker_mut(worker).own_address(name).is_none()
                && self.shared.insert_new(name, SpanAddress::new(node.id, range.from + i));
            doubtful |= u64::from(!is_new) << (range.from + i);
        }
        tree.meta_mut(node).named |= range.bits() & !doubtful;
        let mut unnamed = Unnamed { node: node.id, bits: doubtful, own: 0 };
        while unnamed.bits != 0 {
            let offset = unnamed.bits.trailing_zeros() as usize;
            let name = names[offset - range.from];
            self.assign_one(tree, worker, name, SpanAddress::new(node.id, offset), unnamed);
            unnamed.bits &= unnamed.bits - 1;
        }
        true
    }

    /// The usual case of a span that the worker does not hold, under a name that it does not use. Returns false where
    /// another case is possible.
    fn assign_unheld(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        name: u64,
        address: SpanAddress,
        unnamed: &mut Unnamed,
    ) -> bool {
        let (node, bit) = (tree.node(address.node()), 1 << address.offset());
        if unnamed.bits & bit == 0 || self.orphans.has_waiting(worker) {
            return false;
        }
        if tree.meta(node).named & bit == 0 {
            return self.assign_unnamed(tree, worker, name, address, unnamed);
        }
        if tree.meta(node).names[address.offset()] == name || self.shared.find(name, |_| true).is_some() {
            return false;
        }
        let is_new = self.worker_mut(worker).own.insert_new(name, address);
        unnamed.own |= u64::from(is_new) << address.offset();
        is_new
    }

    /// The same for a span without a shared name, which gets this one.
    fn assign_unnamed(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        name: u64,
        address: SpanAddress,
        unnamed: &mut Unnamed,
    ) -> bool {
        // Not `own_address`: names of this range may be in the table and not yet in the worker's list.
        if self.worker_mut(worker).own.find(name, |_| true).is_some() {
            return false;
        }
        let is_new = self.shared.insert_new(name, address);
        if is_new {
            let node = tree.node(address.node());
            tree.set_name(node, address.offset(), name);
            unnamed.bits &= !(1 << address.offset());
        }
        is_new
    }

    /// Records the spans of the range that the worker knows by names of its own. Until then they count as unnamed.
    fn set_own_names(&mut self, worker: u16, unnamed: &mut Unnamed, from: usize, names: &[u64]) {
        if unnamed.own != 0 {
            self.worker_mut(worker).set_own_names(unnamed.node, unnamed.own, from, names);
            unnamed.bits &= !unnamed.own;
            unnamed.own = 0;
        }
    }

    /// The most common case: spans that others hold under the same names, and this worker does not.
    fn assign_shared(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        range: NodeRange<'_>,
        names: &[u64],
    ) -> bool {
        let (node, bits) = (range.node, range.bits());
        if range.origin != Origin::Existing || self.homonyms > 0 || self.orphans.has_waiting(worker) {
            return false;
        }
        let meta = tree.meta(node);
        let mask = tree.mask(node, worker);
        let is_known = meta.named & bits == bits && meta.names[range.from..][..names.len()] == *names;
        // Without homonyms, only one of the worker's own names can stand for another address.
        let worker_names = self.worker_mut(worker);
        if !is_known || mask & bits != 0 || names.iter().any(|&name| worker_names.own_address(name).is_some())
        {
            return false;
        }
        worker_names.nodes.get_or_default(node.id);
        tree.set_mask(node, worker, mask | bits);
        true
    }

    /// Makes the worker hold the wanted spans of a range, and no others of those just inserted. Returns the spans
    /// that it did not hold before, which have no names yet.
    fn cover(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        range: NodeRange<'_>,
        wanted: u64,
    ) -> Unnamed {
        let node = range.node;
        let mask = tree.mask(node, worker);
        let before = if range.origin == Origin::New { mask & !range.bits() } else { mask };
        if mask != before | wanted {
            tree.set_mask(node, worker, before | wanted);
            self.to_prune.push(node.id);
        }
        if before | wanted != 0 {
            self.worker_mut(worker).nodes.get_or_default(node.id);
        }
        Unnamed { node: node.id, bits: wanted & !before, own: 0 }
    }

    /// Gives one span to the worker under one name.
    pub(super) fn assign_one(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        name: u64,
        address: SpanAddress,
        unnamed: Unnamed,
    ) {
        if let Some(other) = self.resolve(tree, worker, name, unnamed) {
            if other == address {
                *self.worker_mut(worker).extra_counts.get_or_default(name) += 1;
                return;
            }
            self.moved += 1;
            self.worker_mut(worker).extra_counts.remove(&name);
            self.release_name(tree, worker, name, other);
        }
        if self.orphans.has_waiting(worker) {
            self.orphans.forget(worker, name);
        }
        self.support(tree, worker, name, address, unnamed);
    }

    /// Adds a name to those under which the worker holds a span.
    fn support(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        worker: u16,
        name: u64,
        address: SpanAddress,
        unnamed: Unnamed,
    ) {
        let (node, bit) = (tree.node(address.node()), 1 << address.offset());
        let mask = tree.mask(node, worker);
        let is_first = mask & bit == 0 || (unnamed.node == node.id && unnamed.bits & bit != 0);
        let kind = self.share_name(tree, node, address, name);
        if mask & bit == 0 {
            tree.set_mask(node, worker, mask | bit);
        }
        let worker_names = self.worker_mut(worker);
        if is_first {
            worker_names.add_name(address, name, kind);
        } else if worker_names.aliases_of(address) < ALIASES_MAX {
            worker_names.add_alias(address, name, kind);
        }
    }

    /// Makes this the span's shared name where it has none. Returns which kind of name it is for the span.
    fn share_name(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        node: NodeRef<'_>,
        address: SpanAddress,
        name: u64,
    ) -> NameKind {
        let meta = tree.meta(node);
        if meta.named >> address.offset() & 1 == 1 {
            return if meta.names[address.offset()] == name { NameKind::Shared } else { NameKind::Own };
        }
        let homonyms = self.count_homonyms(tree, name);
        if homonyms >= HOMONYMS_MAX {
            return NameKind::Own;
        }
        self.homonyms += usize::from(homonyms > 0);
        tree.set_name(node, address.offset(), name);
        self.shared.insert(name, address);
        NameKind::Shared
    }
}
