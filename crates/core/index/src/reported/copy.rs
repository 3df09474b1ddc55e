//! Copying spans from one holder id to another, under the same names.
//!
//! An engine may have several holder ids: one for what it may hold, one for what it certainly holds. When a possible
//! span proves to be cached, it is copied from the first id to the second. Both then have the same names and counts,
//! so a removal that the engine reports applies to both. An id that is needed only later starts with a copy of
//! another one.

use super::{Reported, Unnamed};
use crate::holder_bits::HolderPosition;
use crate::holder_names::HolderNames;
use crate::name_table::{NameHash, SpanAddress};
use crate::node::{NodeId, NodeRef, Serial, offsets};
use crate::tree::PinnedTree;

impl Reported {
    /// The nodes of one partition in which a holder holds spans, each with those spans.
    pub fn nodes_in_partition(
        &self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        part: usize,
    ) -> Vec<(NodeId, Serial, u64)> {
        let ids = self.holder_names(holder).into_iter().flat_map(|holder| holder.nodes.keys_in(part));
        ids.map(|id| tree.node(id)).map(|node| (node.id, node.serial, tree.mask(node, holder))).collect()
    }

    /// Number of partitions of a holder's node map.
    pub fn partitions_of(&self, holder: HolderPosition) -> usize {
        self.holder_names(holder).map_or(0, |holder| holder.nodes.parts())
    }

    /// Gives spans of a node, all of which `from` holds, to `to` as well. Names that are new to `to` are added to
    /// `copied`. Returns the number of spans that `to` did not hold.
    pub fn copy_spans(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: HolderPosition,
        to: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
        copied: &mut Vec<u64>,
    ) -> usize {
        let before = tree.mask(node, to) & bits;
        if before == bits && self.have_same_names(from, to, node, bits) {
            return 0;
        }
        if !self.copy_unheld(tree, from, to, node, bits) {
            for offset in offsets(bits) {
                self.copy_span(tree, from, to, SpanAddress::new(node.id, offset), copied);
            }
        }
        (bits & !before).count_ones() as usize
    }

    fn have_same_names(
        &self,
        from: HolderPosition,
        to: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) -> bool {
        let names_of = |holder: HolderPosition| self.holders.get(holder.index()).and_then(Option::as_deref);
        names_of(from).zip(names_of(to)).is_some_and(|(from, to)| from.has_same_names(to, node.id, bits))
    }

    /// The common case: `to` holds none of the spans and uses none of their names, each of which was stored once.
    fn copy_unheld(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: HolderPosition,
        to: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) -> bool {
        let mask = tree.mask(node, to);
        if self.homonyms > 0 || self.orphans.has_waiting(to) || mask & bits != 0 {
            return false;
        }
        let (names, own) = self.names_of(tree, from, node, bits);
        let is_new = |offset: usize| self.is_new(tree, from, to, names[offset]);
        if self.holder_names(from).is_some_and(HolderNames::has_aliases) || !offsets(bits).all(is_new) {
            return false;
        }
        let hash = self.hash;
        let holder_names = self.holder_names_mut(to);
        holder_names.nodes.get_or_default(node.id);
        for offset in offsets(own) {
            let address = SpanAddress::new(node.id, offset);
            holder_names.own.insert(NameHash::of(hash, names[offset]), address);
        }
        if own != 0 {
            holder_names.set_own_names(node.id, own, 0, &names);
        }
        tree.set_mask(node, to, mask | bits);
        true
    }

    /// The names under which a holder without aliases holds spans of a node, by offset, and a mask of those that are
    /// its own.
    fn names_of(
        &self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderPosition,
        node: NodeRef<'_>,
        bits: u64,
    ) -> (Vec<u64>, u64) {
        let holder_names = self.holder_names(holder);
        let own = holder_names.map_or(0, |holder| holder.own_bits(node.id) & bits);
        let shared = &tree.meta(node).names;
        let name = |offset| match holder_names.filter(|_| own >> offset & 1 == 1) {
            Some(holder_names) => {
                holder_names.own_name(SpanAddress::new(node.id, offset)).unwrap_or_default()
            }
            None => shared.get(offset).copied().unwrap_or_default(),
        };
        ((0..64 - bits.leading_zeros() as usize).map(name).collect(), own)
    }

    /// Whether `from` stored a name once and `to` does not use it.
    fn is_new(&self, tree: &PinnedTree<'_, '_>, from: HolderPosition, to: HolderPosition, name: u64) -> bool {
        let is_once = |holder_names: &HolderNames| !holder_names.extra_counts.contains_key(&name);
        self.holders[from.index()].as_deref().is_some_and(is_once)
            && self.resolve(tree, to, name, Unnamed::default()).is_none()
    }

    fn copy_span(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: HolderPosition,
        to: HolderPosition,
        address: SpanAddress,
        copied: &mut Vec<u64>,
    ) {
        let meta = tree.meta(tree.node(address.node()));
        let shared = meta.names.get(address.offset()).copied().unwrap_or_default();
        for name in self.holder_names_mut(from).names_of(address, shared) {
            if self.resolve(tree, to, name, Unnamed::default()) == Some(address) {
                continue;
            }
            self.assign_one(tree, to, name, address, Unnamed::default());
            if let Some(&again) = self.holder_names_mut(from).extra_counts.get(&name) {
                *self.holder_names_mut(to).extra_counts.get_or_default(name) = again;
            }
            copied.push(name);
        }
    }
}
