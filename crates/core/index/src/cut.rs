//! A correction: an engine said how much of a prompt it really found, so it can not hold what lies beyond.
//!
//! From the first span that ends beyond what was found, everything on that way goes: what the prompt goes through and
//! whatever continues it, because no engine keeps the end of a chain without its beginning. That may be much, so a cut is
//! a walk that can be left and taken up again: the writer's lock is released in between. It goes from the leaves
//! upwards, so that whatever is left whenever it stops is still closed towards the root.

use crate::node::{NodeId, NodeRef, Serial};
use crate::tree::Tree;

/// What is still to be cut: a walk down the tree, parents before their children.
#[derive(Default)]
pub(crate) struct Cut {
    open: Vec<Open>,
}

/// A node that goes from span `from` on, once all that continues it from there has gone.
struct Open {
    node: NodeId,
    /// Another node may have got the number while nobody looked.
    serial: Serial,
    from: usize,
    /// The child to look at next, or zero.
    child: NodeId,
}

impl Cut {
    pub fn is_over(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds a node that goes from span `from` on, with all that continues it.
    pub fn add(&mut self, tree: &Tree, node: NodeRef, from: usize) {
        let child = tree.ledger(node).first_child;
        self.open.push(Open { node: node.id, serial: node.serial, from, child });
    }

    /// The next node that is to go, from the span said, or `None` for one that had nothing more to show.
    pub fn step(&mut self, tree: &Tree) -> Option<(NodeRef, usize)> {
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
        let is_mine = |child: &NodeRef| tree.ledger(*child).parent == Some(node);
        let Some(child) = tree.living(here.child).filter(is_mine) else {
            // It went while nobody looked. Those before it have nothing left to go, so beginning again costs only time.
            here.child = tree.ledger(node).first_child;
            return None;
        };
        here.child = tree.ledger(child).sibling_after;
        if child.at as usize > here.from {
            self.add(tree, child, 0);
        }
        None
    }
}

/// The first of the node's first `matched` spans that ends beyond this many tokens.
pub(crate) fn first_beyond(node: NodeRef, matched: usize, keep_tokens: u32) -> Option<usize> {
    if node.reach(matched).tokens <= keep_tokens {
        return None;
    }
    (0..matched).find(|&at| node.reach(at + 1).tokens > keep_tokens)
}
