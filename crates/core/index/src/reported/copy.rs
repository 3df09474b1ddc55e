//! Copying spans from one worker id to another, under the same names.
//!
//! An engine may have several worker ids: one for what it may hold, one for what it certainly holds. When a possible
//! span proves to be cached, it is copied from the first id to the second. Both then have the same names and counts,
//! so a removal that the engine reports applies to both. An id that is needed only later starts with a copy of
//! another one.

use super::{Reported, Unnamed};
use crate::name_table::{NameHash, SpanAddress};
use crate::node::{NodeId, NodeRef, Serial, offsets};
use crate::tree::PinnedTree;
use crate::worker_names::WorkerNames;

impl Reported {
    /// The nodes of one partition in which a worker holds spans, each with those spans.
    pub fn nodes_in_partition(
        &self,
        tree: &PinnedTree<'_, '_>,
        worker: u16,
        part: usize,
    ) -> Vec<(NodeId, Serial, u64)> {
        let ids = self.worker(worker).into_iter().flat_map(|worker| worker.nodes.keys_in(part));
        ids.map(|id| tree.node(id)).map(|node| (node.id, node.serial, tree.mask(node, worker))).collect()
    }

    /// Number of partitions of a worker's node map.
    pub fn partitions_of(&self, worker: u16) -> usize {
        self.worker(worker).map_or(0, |worker| worker.nodes.parts())
    }

    /// Gives spans of a node, all of which `from` holds, to `to` as well. Names that are new to `to` are added to
    /// `copied`. Returns the number of spans that `to` did not hold.
    pub fn copy_spans(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: u16,
        to: u16,
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

    fn have_same_names(&self, from: u16, to: u16, node: NodeRef<'_>, bits: u64) -> bool {
        let names_of = |index: u16| self.workers.get(usize::from(index)).and_then(Option::as_deref);
        names_of(from).zip(names_of(to)).is_some_and(|(from, to)| from.has_same_names(to, node.id, bits))
    }

    /// The common case: `to` holds none of the spans and uses none of their names, each of which was stored once.
    fn copy_unheld(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: u16,
        to: u16,
        node: NodeRef<'_>,
        bits: u64,
    ) -> bool {
        let mask = tree.mask(node, to);
        if self.homonyms > 0 || self.orphans.has_waiting(to) || mask & bits != 0 {
            return false;
        }
        let (names, own) = self.names_of(tree, from, node, bits);
        let is_new = |offset: usize| self.is_new(tree, from, to, names[offset]);
        if self.worker(from).is_some_and(WorkerNames::has_aliases) || !offsets(bits).all(is_new) {
            return false;
        }
        let hash = self.hash;
        let worker_names = self.worker_mut(to);
        worker_names.nodes.get_or_default(node.id);
        for offset in offsets(own) {
            let address = SpanAddress::new(node.id, offset);
            worker_names.own.insert(NameHash::of(hash, names[offset]), address);
        }
        if own != 0 {
            worker_names.set_own_names(node.id, own, 0, &names);
        }
        tree.set_mask(node, to, mask | bits);
        true
    }

    /// The names under which a worker without aliases holds spans of a node, by offset, and a mask of those that are
    /// its own.
    fn names_of(
        &self,
        tree: &PinnedTree<'_, '_>,
        worker: u16,
        node: NodeRef<'_>,
        bits: u64,
    ) -> (Vec<u64>, u64) {
        let worker_names = self.worker(worker);
        let own = worker_names.map_or(0, |worker| worker.own_bits(node.id) & bits);
        let shared = &tree.meta(node).names;
        let name = |offset| match worker_names.filter(|_| own >> offset & 1 == 1) {
            Some(worker_names) => {
                worker_names.own_name(SpanAddress::new(node.id, offset)).unwrap_or_default()
            }
            None => shared.get(offset).copied().unwrap_or_default(),
        };
        ((0..64 - bits.leading_zeros() as usize).map(name).collect(), own)
    }

    /// Whether `from` stored a name once and `to` does not use it.
    fn is_new(&self, tree: &PinnedTree<'_, '_>, from: u16, to: u16, name: u64) -> bool {
        let is_once = |worker_names: &WorkerNames| !worker_names.extra_counts.contains_key(&name);
        self.workers[usize::from(from)].as_deref().is_some_and(is_once)
            && self.resolve(tree, to, name, Unnamed::default()).is_none()
    }

    fn copy_span(
        &mut self,
        tree: &mut PinnedTree<'_, '_>,
        from: u16,
        to: u16,
        address: SpanAddress,
        copied: &mut Vec<u64>,
    ) {
        let meta = tree.meta(tree.node(address.node()));
        let shared = meta.names.get(address.offset()).copied().unwrap_or_default();
        for name in self.worker_mut(from).names_of(address, shared) {
            if self.resolve(tree, to, name, Unnamed::default()) == Some(address) {
                continue;
            }
            self.assign_one(tree, to, name, address, Unnamed::default());
            if let Some(&again) = self.worker_mut(from).extra_counts.get(&name) {
                *self.worker_mut(to).extra_counts.get_or_default(name) = again;
            }
            copied.push(name);
        }
    }
}
