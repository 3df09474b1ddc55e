//! The export of one worker's spans with their names, as chains.
//!
//! A node continues another one after some of its spans, whether the worker holds those or not. So each span is
//! written with everything between it and its root.

use std::collections::BTreeMap;

use super::Reported;
use crate::holdings::{EXTRA_COUNT_MAX, Holdings, Run};
use crate::index::Parent;
use crate::name_table::SpanAddress;
use crate::node::{NodeId, NodeRef, Serial};
use crate::orphans::OrphanSpan;
use crate::root::RootKey;
use crate::span::{NamedSpan, Size, Span};
use crate::tree::PinnedTree;

/// An export in progress.
#[derive(Default)]
pub(crate) struct Export {
    /// How many spans of each node the export needs.
    needed: BTreeMap<NodeId, (Serial, usize)>,
    /// The names under which the spans of each node were written.
    written: BTreeMap<NodeId, Vec<u64>>,
    holdings: Holdings,
}

impl Export {
    /// Adds a node in which the worker holds spans, and all nodes before it.
    pub fn need(&mut self, tree: &PinnedTree<'_, '_>, id: NodeId, mask: u64) {
        let (mut node, mut len) = (tree.node(id), 64 - mask.leading_zeros() as usize);
        loop {
            let known = self.needed.get(&node.id).filter(|(serial, _)| *serial == node.serial);
            if known.is_some_and(|(_, known)| *known >= len) {
                return;
            }
            self.needed.insert(node.id, (node.serial, len));
            let Some(parent) = tree.parent(node) else { return };
            (node, len) = (parent, node.at as usize);
        }
    }

    /// The nodes that the export needs.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.needed.keys().copied().collect()
    }

    /// Writes a node, after those that it continues.
    pub fn write(&mut self, tree: &PinnedTree<'_, '_>, reported: &Reported, worker: u16, id: NodeId) {
        let mut path = Vec::new();
        let mut next = self.living(tree, id);
        while let Some(node) = next.filter(|node| !self.written.contains_key(&node.id)) {
            path.push(node);
            next = tree.parent(node);
        }
        for node in path.into_iter().rev() {
            self.write_one(tree, reported, worker, node);
        }
    }

    fn living<'g>(&self, tree: &PinnedTree<'_, 'g>, id: NodeId) -> Option<NodeRef<'g>> {
        let (serial, _) = self.needed.get(&id)?;
        tree.living(id).filter(|node| node.serial == *serial)
    }

    fn write_one(&mut self, tree: &PinnedTree<'_, '_>, reported: &Reported, worker: u16, node: NodeRef<'_>) {
        let len = self.needed.get(&node.id).map_or(0, |(_, len)| (*len).min(node.body().len()));
        let mut names = Vec::with_capacity(len);
        if let Some(parent) = tree.parent(node) {
            let after = self.after(tree, parent, node.at as usize);
            let mask = tree.mask(node, worker);
            let mut run = Run { after, spans: Vec::with_capacity(len) };
            for at in 0..len {
                let before = run.spans.last().map_or(after, |last| Parent::Name(last.name));
                let is_held = mask >> at & 1 == 1;
                let known = if is_held { reported.names_at(tree, worker, node, at) } else { Vec::new() };
                let span = span(node.body().digests(len)[at], node.body().size(at));
                let name = known.first().copied().unwrap_or_else(|| self.hole(node.serial, at));
                run.spans.push(NamedSpan { name, span });
                names.push(name);
                self.name(reported, worker, before, span, &known);
            }
            self.holdings.runs.push(run);
        }
        self.written.insert(node.id, names);
    }

    /// The parent of a chain that follows the first `at` spans of a node.
    fn after(&self, tree: &PinnedTree<'_, '_>, node: NodeRef<'_>, at: usize) -> Parent {
        match (tree.parent(node), at.checked_sub(1)) {
            (None, _) => Parent::Root(RootKey::reported_from_bits(node.digest)),
            (Some(parent), None) => self.after(tree, parent, node.at as usize),
            (Some(_), Some(last)) => {
                let name = self.written.get(&node.id).and_then(|names| names.get(last));
                Parent::Name(name.copied().unwrap_or_else(|| hole(node.serial, last)))
            }
        }
    }

    /// Writes a span's further names, and the extra count of each.
    fn name(&mut self, reported: &Reported, worker: u16, before: Parent, span: Span, known: &[u64]) {
        for &name in known.iter().skip(1) {
            self.alias(before, NamedSpan { name, span });
        }
        let worker_names = reported.worker(worker);
        let extra_counts =
            |name: &u64| Some((*name, (*worker_names?.extra_counts.get(name)?).min(EXTRA_COUNT_MAX)));
        self.holdings.extra_counts.extend(known.iter().filter_map(extra_counts));
    }

    fn alias(&mut self, after: Parent, span: NamedSpan) {
        self.holdings.runs.push(Run { after, spans: vec![span] });
    }

    fn hole(&mut self, serial: Serial, at: usize) -> u64 {
        let name = hole(serial, at);
        self.holdings.holes.push(name);
        name
    }

    /// The finished export, including what waits for its parent.
    pub fn finish(mut self, reported: &Reported, worker: u16) -> Holdings {
        let capped = |one: &OrphanSpan| OrphanSpan { count: one.count.min(EXTRA_COUNT_MAX), ..*one };
        let waiting = reported.orphans.of(worker);
        self.holdings.waiting =
            waiting.map(|(parent, spans)| (parent, spans.iter().map(capped).collect())).collect();
        self.holdings
    }
}

impl Reported {
    /// The names under which a worker holds a span.
    fn names_at(&self, tree: &PinnedTree<'_, '_>, worker: u16, node: NodeRef<'_>, at: usize) -> Vec<u64> {
        let shared = tree.meta(node).names.get(at).copied().unwrap_or_default();
        self.worker(worker)
            .map(|worker| worker.names_of(SpanAddress::new(node.id, at), shared))
            .unwrap_or_default()
    }
}

fn span(digest: u64, size: Size) -> Span {
    Span { digest, bytes: size.bytes(), tokens: size.tokens() }
}

/// A placeholder's name: unique in this export, and different from every engine's names but for a chance of 1 in 2⁶⁴.
fn hole(serial: Serial, at: usize) -> u64 {
    let word = (serial << 6 | at as u64) ^ 0x9e37_79b9_7f4a_7c15;
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
