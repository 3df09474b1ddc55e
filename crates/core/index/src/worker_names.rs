//! The names under which one worker holds its spans.
//!
//! Where engines agree on hashes, all workers know a span by the shared name in its node, and this struct contains
//! one number per node. Only differences cost more: a span that this worker knows by another name, a name stored
//! twice, a span with several names.

use crate::name_table::{NameTable, SpanAddress};
use crate::node::NodeId;
use crate::number_map::NumberMap;
use crate::table_hash::TableHash;

/// One worker's names.
pub(crate) struct WorkerNames {
    /// The nodes in which the worker holds spans, each with a mask of the spans that it does *not* hold by their
    /// shared name.
    pub nodes: NumberMap<NodeId, u64>,
    /// Addresses of the names that only this worker uses.
    pub own: NameTable,
    /// By node and offset: the worker's own name of each span that has one.
    own_names: NumberMap<NodeId, Vec<u64>>,
    /// How often each name was stored beyond the first time.
    pub extra_counts: NumberMap<u64, u32>,
    /// Further names of spans that have several.
    aliases: NumberMap<SpanAddress, Vec<u64>>,
    /// Capacity of all lists of names.
    listed: usize,
    /// Bytes of this struct, as last counted.
    pub counted_bytes: usize,
}

impl WorkerNames {
    pub fn new(hash: TableHash) -> WorkerNames {
        WorkerNames {
            nodes: NumberMap::new(hash),
            own: NameTable::new(hash),
            own_names: NumberMap::new(hash),
            extra_counts: NumberMap::new(hash),
            aliases: NumberMap::new(hash),
            listed: 0,
            counted_bytes: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn bytes(&self) -> usize {
        size_of::<WorkerNames>()
            + self.nodes.allocated()
            + self.own.allocated()
            + self.own_names.allocated()
            + self.extra_counts.allocated()
            + self.aliases.allocated()
            + self.listed * size_of::<u64>()
    }

    /// Whether the worker knows the span by a name of its own instead of the shared one.
    pub fn is_own(&self, address: SpanAddress) -> bool {
        !self.own_names.is_empty() && self.own_bits(address.node()) >> address.offset() & 1 == 1
    }

    #[inline]
    pub fn own_bits(&self, node: NodeId) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }

    /// The address of one of the worker's own names.
    #[inline]
    pub fn own_address(&self, name: u64) -> Option<SpanAddress> {
        if self.own.is_empty() {
            return None;
        }
        self.own.find(name, |address| {
            self.own_name(address) == Some(name)
                || self.aliases.get(&address).is_some_and(|names| names.contains(&name))
        })
    }

    /// The worker's own name of a span, if it has one.
    pub fn own_name(&self, address: SpanAddress) -> Option<u64> {
        let names = self.own_names.get(&address.node())?;
        self.is_own(address).then(|| names[address.offset()])
    }

    /// Records that the worker knows these spans of a node by names of its own; `names` begin at offset `from`. The
    /// caller has entered them into the table.
    pub fn set_own_names(&mut self, node: NodeId, mut bits: u64, from: usize, names: &[u64]) {
        *self.nodes.get_or_default(node) |= bits;
        let list = self.own_names.get_or_default(node);
        let before = list.capacity();
        let end = 64 - bits.leading_zeros() as usize;
        if list.len() < end {
            list.reserve_exact((from + names.len()).max(end) - list.len());
            list.resize(end, 0);
        }
        while bits != 0 {
            let offset = bits.trailing_zeros() as usize;
            list[offset] = names[offset - from];
            bits &= bits - 1;
        }
        self.listed += list.capacity() - before;
    }

    /// Records the name of a span that the worker did not hold before.
    pub fn add_name(&mut self, address: SpanAddress, name: u64, kind: NameKind) {
        let bit = 1 << address.offset();
        match kind {
            NameKind::Own => {
                self.own.insert(name, address);
                self.set_own_names(address.node(), bit, address.offset(), &[name]);
            }
            NameKind::Shared => *self.nodes.get_or_default(address.node()) &= !bit,
        }
    }

    /// Records one more name of a span that the worker holds.
    pub fn add_alias(&mut self, address: SpanAddress, name: u64, kind: NameKind) {
        let alias = match kind {
            NameKind::Own => {
                self.own.insert(name, address);
                name
            }
            // The shared name comes first; the worker's own name becomes the alias.
            NameKind::Shared => {
                let own = self.own_name(address).unwrap_or(name);
                *self.nodes.get_or_default(address.node()) &= !(1 << address.offset());
                own
            }
        };
        let list = self.aliases.get_or_default(address);
        let before = list.capacity();
        list.push(alias);
        self.listed += list.capacity() - before;
    }

    /// Removes a name from a span that the worker holds under it. Returns false where that was its last name.
    pub fn remove_name(&mut self, address: SpanAddress, name: u64) -> bool {
        if !self.own.is_empty() {
            self.own.remove(name, |at| at == address);
        }
        let Some(aliases) = self.aliases.get_mut(&address) else { return false };
        let left = match aliases.iter().position(|&alias| alias == name) {
            Some(at) => {
                aliases.swap_remove(at);
                None
            }
            None => aliases.pop(),
        };
        if aliases.is_empty() {
            self.listed -= self.aliases.remove(&address).map_or(0, |gone| gone.capacity());
        }
        if let Some(heir) = left {
            self.set_own_names(address.node(), 1 << address.offset(), address.offset(), &[heir]);
        }
        true
    }

    /// The names under which the worker holds a span, sorted. `shared` is the span's shared name.
    pub fn names_of(&self, address: SpanAddress, shared: u64) -> Vec<u64> {
        let first = self.own_name(address).unwrap_or(shared);
        let mut names = self.aliases.get(&address).cloned().unwrap_or_default();
        names.push(first);
        names.sort_unstable();
        names
    }

    /// Whether two workers that hold these spans of a node know each of them by the same single name.
    pub fn has_same_names(&self, other: &WorkerNames, node: NodeId, bits: u64) -> bool {
        let own = self.own_bits(node) & bits;
        let is_same = |offset: usize| {
            let address = SpanAddress::new(node, offset);
            own >> offset & 1 == 0 || self.own_name(address) == other.own_name(address)
        };
        !self.has_aliases()
            && !other.has_aliases()
            && other.own_bits(node) & bits == own
            && (0..64).all(is_same)
    }

    /// Takes one extra count off a name. Returns false where it had none.
    pub fn take_extra_count(&mut self, name: u64) -> bool {
        if self.extra_counts.is_empty() {
            return false;
        }
        let Some(count) = self.extra_counts.get_mut(&name) else { return false };
        *count -= 1;
        if *count == 0 {
            self.extra_counts.remove(&name);
        }
        true
    }

    /// Number of further names of a span.
    pub fn aliases_of(&self, address: SpanAddress) -> usize {
        self.aliases.get(&address).map_or(0, Vec::len)
    }

    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// Drops the own names and aliases of these spans, and their extra counts.
    pub fn forget_names(&mut self, node: NodeId, bits: u64) {
        let own = if self.own_names.is_empty() { 0 } else { self.own_bits(node) & bits };
        let mut left = if self.aliases.is_empty() { own } else { bits };
        while left != 0 {
            let address = SpanAddress::new(node, left.trailing_zeros() as usize);
            let aliases = self.aliases.remove(&address).unwrap_or_default();
            self.listed -= aliases.capacity();
            for name in aliases.into_iter().chain(self.own_name(address)) {
                self.own.remove(name, |at| at == address);
                self.extra_counts.remove(&name);
            }
            left &= left - 1;
        }
    }

    /// Records which spans of a node the worker still holds.
    pub fn retain(&mut self, node: NodeId, left: u64) {
        if left == 0 {
            self.nodes.remove(&node);
            if !self.own_names.is_empty() {
                self.listed -= self.own_names.remove(&node).map_or(0, |gone| gone.capacity());
            }
        } else if let Some(own) = self.nodes.get_mut(&node) {
            *own &= left;
        }
    }
}

/// The kind of name by which a worker knows a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A name that only this worker uses.
    Own,
    /// The shared name, stored with the span.
    Shared,
}
