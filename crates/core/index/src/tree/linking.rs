//! How nodes enter the tree and leave it: ids, parents, siblings, and the parent's child lengths.

use super::Tree;
use crate::body::NewBody;
use crate::child_lengths::{Change, ChildLengths};
use crate::node::{NewNode, Node, NodeMeta, NodeRef, Pinned};
use crate::retired::Retired;
use crate::span::Reach;

impl Tree {
    /// Allocates a node and links it.
    pub(super) fn add<'g>(
        &mut self,
        parent: Option<NodeRef<'g>>,
        at: u32,
        digest: u64,
        start: Reach,
        body: NewBody,
        pinned: Pinned<'g>,
    ) -> NodeRef<'g> {
        let id = self.arena.next();
        self.serials += 1;
        let meta = NodeMeta { parent: parent.map(NodeRef::as_ptr), ..NodeMeta::default() };
        let parent_serial = parent.map_or(0, |parent| parent.serial);
        let new = NewNode { id, serial: self.serials, parent_serial, at, digest, start, body };
        let node = NodeRef::new(new, pinned);
        self.arena.put(node, meta);
        self.counts.nodes += 1;
        self.counts.bytes += size_of::<Node>() + node.body().allocated();
        if let Some(parent) = parent {
            self.link_child(parent, node);
        }
        if let Some(table) = self.children.link(&mut self.table_stats, node) {
            // SAFETY: the table was just replaced, and is returned once.
            unsafe { self.retired.add(Retired::Table(table), 0) };
        }
        node
    }

    fn link_child(&mut self, parent: NodeRef<'_>, node: NodeRef<'_>) {
        let eldest = self.meta(parent).first_child;
        if eldest != 0 {
            self.arena.meta_mut(eldest).sibling_before = node.id;
        }
        self.meta_mut(node).sibling_after = eldest;
        let meta = self.meta_mut(parent);
        meta.first_child = node.id;
        meta.children += 1;
        meta.children_end = meta.children_end.max(node.at);
        if parent.next().is_none() {
            parent.set_next(Some(node));
        }
        let bytes = node.body().size(0).bytes();
        let change = parent.child_lengths().map_or_else(
            || ChildLengths::default().add(node.at, bytes),
            |child_lengths| child_lengths.add(node.at, bytes),
        );
        self.meta_mut(node).is_length_counted = !matches!(change, Change::Full);
        self.counts.length_overflows += u64::from(matches!(change, Change::Full));
        self.replace_child_lengths(parent, change);
    }

    /// Unlinks a node that has neither holders nor children.
    pub(super) fn remove(&mut self, node: NodeRef<'_>) {
        if let Some(table) = self.children.unlink(&mut self.table_stats, node) {
            // SAFETY: the table was just replaced, and is returned once.
            unsafe { self.retired.add(Retired::Table(table), 0) };
        }
        if let Some(parent) = self.parent(node) {
            self.unlink_child(parent, node);
        }
        let names = self.arena.remove(node.id).names;
        let bytes = size_of::<Node>()
            + node.body().allocated()
            + node.child_lengths().map_or(0, ChildLengths::allocated)
            + names.capacity() * 8;
        self.counts.nodes -= 1;
        self.counts.spans -= node.body().len();
        self.counts.bytes -= bytes;
        // SAFETY: the node was in the child table once, and has left it, the arena and its parent's `next`.
        unsafe { self.retired.add(Retired::Node(node.as_ptr()), bytes) };
    }

    fn unlink_child(&mut self, parent: NodeRef<'_>, node: NodeRef<'_>) {
        let (before, after, is_length_counted) = {
            let meta = self.meta(node);
            (meta.sibling_before, meta.sibling_after, meta.is_length_counted)
        };
        if after != 0 {
            self.arena.meta_mut(after).sibling_before = before;
        }
        match before {
            0 => self.meta_mut(parent).first_child = after,
            _ => self.arena.meta_mut(before).sibling_after = after,
        }
        let meta = self.meta_mut(parent);
        meta.children -= 1;
        if meta.children == 0 {
            meta.children_end = 0;
        }
        if parent.next() == Some(node) {
            let heir = self.meta(parent).first_child;
            let heir = (heir != 0).then(|| self.arena.living(heir, parent.pinned())).flatten();
            parent.set_next(heir);
        }
        if let Some(child_lengths) = parent.child_lengths().filter(|_| is_length_counted) {
            let change = child_lengths.remove(node.at, node.body().size(0).bytes());
            self.replace_child_lengths(parent, change);
        }
    }

    fn replace_child_lengths(&mut self, node: NodeRef<'_>, change: Change) {
        let Change::Replaced(child_lengths) = change else { return };
        let old = node.child_lengths().map_or(0, ChildLengths::allocated);
        let retired = node.swap_child_lengths(child_lengths);
        self.counts.bytes = self.counts.bytes + node.child_lengths().map_or(0, ChildLengths::allocated) - old;
        if !retired.is_null() {
            // SAFETY: the list was just replaced, and `swap_child_lengths` returns it once.
            unsafe { self.retired.add(Retired::ChildLengths(retired), old) };
        }
    }
}
