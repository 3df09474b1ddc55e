//! One holder's presumed cache: the spans that it holds of each node, and the order in which it evicts them.

use std::collections::BTreeSet;

use crate::node::{NodeId, NodeRef};
use crate::node_uses::{NodeUses, UseId};
use crate::number_map::NumberMap;
use crate::table_hash::TableHash;

/// Bytes of a use in an ordered set, including its share of the set's nodes.
const ORDER_BYTES: usize = size_of::<UseId>() * 3 / 2;

/// One holder's presumed cache.
pub(crate) struct PresumedLru {
    pub nodes: NumberMap<NodeId, NodeUses>,
    /// Answered uses that are still the last use of a span, oldest first.
    pub order: BTreeSet<UseId>,
    /// Tokens of all spans that the holder is presumed to hold.
    pub tokens: u64,
    /// Tokens of those that an answered request used. They must fit the capacity.
    pub answered_tokens: u64,
    pub capacity_tokens: u64,
    /// Bytes of the nodes' uses, beyond the map that contains them.
    uses_bytes: usize,
    /// Bytes of this struct, as last counted.
    pub counted_bytes: usize,
}

impl PresumedLru {
    pub fn new(capacity_tokens: u64, hash: TableHash) -> PresumedLru {
        PresumedLru {
            nodes: NumberMap::new(hash),
            order: BTreeSet::new(),
            tokens: 0,
            answered_tokens: 0,
            capacity_tokens,
            uses_bytes: 0,
            counted_bytes: 0,
        }
    }

    /// Tokens beyond the capacity, if any.
    pub fn excess(&self) -> Option<u64> {
        self.answered_tokens.checked_sub(self.capacity_tokens).filter(|&excess| excess > 0)
    }

    pub fn bytes(&self) -> usize {
        size_of::<PresumedLru>() + self.nodes.allocated() + self.order.len() * ORDER_BYTES + self.uses_bytes
    }

    /// Changes the uses of a node and updates the counts. Also returns how many of the node's spans the holder held
    /// before and holds now.
    pub fn change<T>(&mut self, node: NodeRef<'_>, change: impl FnOnce(&mut NodeUses) -> T) -> (T, Held) {
        let node_uses = self.nodes.get_or_default(node.id);
        let (held, answered, bytes) = (node_uses.held(), node_uses.answered(), node_uses.bytes());
        let result = change(node_uses);
        let (now, now_answered, now_bytes) = (node_uses.held(), node_uses.answered(), node_uses.bytes());
        self.uses_bytes = self.uses_bytes + now_bytes - bytes;
        if now == 0 {
            self.uses_bytes -= now_bytes;
            self.nodes.remove(&node.id);
        }
        let tokens = |spans: usize| u64::from(node.reach(spans).tokens);
        if now != held {
            self.tokens = self.tokens + tokens(now) - tokens(held);
        }
        if now_answered != answered {
            self.answered_tokens = self.answered_tokens + tokens(now_answered) - tokens(answered);
        }
        (result, Held { before: held, now })
    }
}

/// How many of a node's spans a holder held before a change, and holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub before: usize,
    pub now: usize,
}
