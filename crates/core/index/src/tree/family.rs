//! How nodes come into the tree and leave it: numbers, parents, siblings, and what a parent knows of its children.

use std::ptr::NonNull;

use super::Tree;
use crate::body::Head;
use crate::fan::{Change, Fan};
use crate::garbage::Waste;
use crate::node::{Birth, Ledger, Node, NodeRef};
use crate::span::Reach;

impl Tree {
    /// Makes a node and links it.
    pub(super) fn add(
        &mut self,
        parent: Option<NodeRef>,
        at: u32,
        digest: u64,
        start: Reach,
        body: NonNull<Head>,
    ) -> NodeRef {
        let id = self.numbers.next();
        self.serials += 1;
        let ledger = Ledger { parent, ..Ledger::default() };
        let stem = parent.map_or(0, |parent| parent.serial);
        let birth = Birth { id, serial: self.serials, stem, at, digest, start, body };
        let node = NodeRef::new(birth);
        self.numbers.put(node, ledger);
        self.counts.nodes += 1;
        self.counts.bytes += size_of::<Node>() + node.body().allocated();
        if let Some(parent) = parent {
            self.adopt(parent, node);
        }
        if let Some(table) = self.children.link(&mut self.filling, node) {
            self.garbage.put(Waste::Table(table), 0);
        }
        node
    }

    fn adopt(&mut self, parent: NodeRef, node: NodeRef) {
        let eldest = self.ledger(parent).first_child;
        if eldest != 0 {
            self.numbers.ledger_mut(eldest).sibling_before = node.id;
        }
        self.ledger_mut(node).sibling_after = eldest;
        let ledger = self.ledger_mut(parent);
        ledger.first_child = node.id;
        ledger.children += 1;
        ledger.children_end = ledger.children_end.max(node.at);
        if parent.next().is_none() {
            parent.set_next(Some(node));
        }
        let bytes = node.body().size(0).bytes();
        let change =
            parent.fan().map_or_else(|| Fan::default().add(node.at, bytes), |fan| fan.add(node.at, bytes));
        self.ledger_mut(node).is_in_fan = !matches!(change, Change::Full);
        self.counts.fan_overflows += u64::from(matches!(change, Change::Full));
        self.refan(parent, change);
    }

    /// Unlinks a node that nobody needs any more.
    pub(super) fn remove(&mut self, node: NodeRef) {
        if let Some(table) = self.children.unlink(&mut self.filling, node) {
            self.garbage.put(Waste::Table(table), 0);
        }
        if let Some(parent) = self.ledger(node).parent {
            self.disown(parent, node);
        }
        let names = self.numbers.remove(node.id).names;
        let bytes = size_of::<Node>()
            + node.body().allocated()
            + node.fan().map_or(0, Fan::allocated)
            + names.capacity() * 8;
        self.counts.nodes -= 1;
        self.counts.spans -= node.body().len();
        self.counts.bytes -= bytes;
        self.garbage.put(Waste::Node(node), bytes);
    }

    fn disown(&mut self, parent: NodeRef, node: NodeRef) {
        let (before, after, is_in_fan) = {
            let ledger = self.ledger(node);
            (ledger.sibling_before, ledger.sibling_after, ledger.is_in_fan)
        };
        if after != 0 {
            self.numbers.ledger_mut(after).sibling_before = before;
        }
        match before {
            0 => self.ledger_mut(parent).first_child = after,
            _ => self.numbers.ledger_mut(before).sibling_after = after,
        }
        let ledger = self.ledger_mut(parent);
        ledger.children -= 1;
        if ledger.children == 0 {
            ledger.children_end = 0;
        }
        if parent.next() == Some(node) {
            let heir = self.ledger(parent).first_child;
            parent.set_next((heir != 0).then(|| self.node(heir)));
        }
        if let Some(fan) = parent.fan().filter(|_| is_in_fan) {
            let change = fan.remove(node.at, node.body().size(0).bytes());
            self.refan(parent, change);
        }
    }

    fn refan(&mut self, node: NodeRef, change: Change) {
        let Change::Replaced(fan) = change else { return };
        let old = node.fan().map_or(0, Fan::allocated);
        let waste = node.swap_fan(fan);
        self.counts.bytes = self.counts.bytes + node.fan().map_or(0, Fan::allocated) - old;
        if !waste.is_null() {
            self.garbage.put(Waste::Fan(waste), old);
        }
    }
}
