//! A correction: an engine reported how much of a prompt it found cached, so the holder cannot hold what lies beyond.
//!
//! A cut removes every span from the first one that ends beyond the reported tokens, together with everything that
//! continues it: no engine keeps the end of a chain without its beginning. That may be much, so a cut is a walk that
//! can be interrupted, and the writer releases its lock in between. It works from the leaves upwards. Wherever it
//! stops, each remaining chain is still complete towards its root.

use crate::node::{NodeId, NodeRef, Serial};
use crate::tree::PinnedTree;

/// The remaining work of a cut: a stack of nodes, parents below their children.
#[derive(Default)]
pub(crate) struct Cut {
    open: Vec<Open>,
}

/// A node to cut from span `from` on, once everything that continues it from there is gone.
struct Open {
    node: NodeId,
    /// Detects that the id was given to another node while the lock was released.
    serial: Serial,
    from: usize,
    /// The child to visit next, or zero.
    child: NodeId,
}

impl Cut {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds a node to cut from span `from` on, with everything that continues it.
    pub fn add(&mut self, tree: &PinnedTree<'_, '_>, node: NodeRef<'_>, from: usize) {
        let child = tree.meta(node).first_child;
        self.open.push(Open { node: node.id, serial: node.serial, from, child });
    }

    /// The next node to cut and the first span to remove, or `None` after a step that only moved the walk on.
    pub fn step<'g>(&mut self, tree: &PinnedTree<'_, 'g>) -> Option<(NodeRef<'g>, usize)> {
        let here = self.open.last_mut()?;
        let Some(node) = tree.living(here.node).filter(|node| node.serial == here.serial) else {
            self.open.pop();
            return None;
        };
        if here.child == 0 {
            let from = here.from;
            self.open.pop();
            return Some((node, from));
        }
        let is_mine = |child: &NodeRef<'_>| tree.parent(*child) == Some(node);
        let Some(child) = tree.living(here.child).filter(is_mine) else {
            // The child was removed while the lock was released. Starting over repeats only visits that have nothing
            // left to do.
            here.child = tree.meta(node).first_child;
            return None;
        };
        here.child = tree.meta(child).sibling_after;
        if child.at as usize > here.from {
            self.add(tree, child, 0);
        }
        None
    }
}

/// The first of the node's first `matched` spans that ends beyond this many tokens.
pub(crate) fn first_beyond(node: NodeRef<'_>, matched: usize, keep_tokens: u32) -> Option<usize> {
    if node.reach(matched).tokens <= keep_tokens {
        return None;
    }
    (0..matched).find(|&at| node.reach(at + 1).tokens > keep_tokens)
}
