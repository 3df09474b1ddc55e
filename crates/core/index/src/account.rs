//! One worker's presumed cache: what it holds of each node, and in which order it would be evicted.

use std::collections::BTreeSet;

use crate::hash::NumberMap;
use crate::node::{NodeId, NodeRef};
use crate::record::{Record, UseId};

/// Bytes of a use in an ordered set, with its share of the set's nodes.
const ORDER_BYTES: usize = size_of::<UseId>() * 3 / 2;

/// One worker's presumed cache.
pub(crate) struct Account {
    pub records: NumberMap<NodeId, Record>,
    /// Its answered uses that are still somebody's last, oldest first.
    pub order: BTreeSet<UseId>,
    /// Tokens of all spans that it is presumed to hold.
    pub tokens: u64,
    /// Tokens of those that an answered request has used: these must fit its capacity.
    pub sure_tokens: u64,
    pub capacity_tokens: u64,
    /// Bytes of the records beyond the map they are in.
    record_bytes: usize,
    /// Bytes of the account when they were last counted.
    pub weighed: usize,
}

impl Account {
    pub fn new(capacity_tokens: u64) -> Account {
        Account {
            records: NumberMap::default(),
            order: BTreeSet::new(),
            tokens: 0,
            sure_tokens: 0,
            capacity_tokens,
            record_bytes: 0,
            weighed: 0,
        }
    }

    /// Tokens beyond the capacity, if there are any.
    pub fn excess(&self) -> Option<u64> {
        self.sure_tokens.checked_sub(self.capacity_tokens).filter(|&excess| excess > 0)
    }

    pub fn bytes(&self) -> usize {
        size_of::<Account>() + self.records.allocated() + self.order.len() * ORDER_BYTES + self.record_bytes
    }

    /// Changes what is known of a node, and counts what that makes of it. Also returns how many of the node's spans the
    /// worker held before and holds now.
    pub fn change<T>(&mut self, node: NodeRef, change: impl FnOnce(&mut Record) -> T) -> (T, Held) {
        let record = self.records.get_or_default(node.id);
        let (held, sure, bytes) = (record.held(), record.sure(), record.bytes());
        let result = change(record);
        let (now, now_sure, now_bytes) = (record.held(), record.sure(), record.bytes());
        self.record_bytes = self.record_bytes + now_bytes - bytes;
        if now == 0 {
            self.record_bytes -= now_bytes;
            self.records.remove(&node.id);
        }
        let tokens = |spans: usize| u64::from(node.reach(spans).tokens);
        if now != held {
            self.tokens = self.tokens + tokens(now) - tokens(held);
        }
        if now_sure != sure {
            self.sure_tokens = self.sure_tokens + tokens(now_sure) - tokens(sure);
        }
        (result, Held { before: held, now })
    }
}

/// How many of a node's spans a worker held, and holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub before: usize,
    pub now: usize,
}
