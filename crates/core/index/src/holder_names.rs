//! The names under which one holder holds its spans.
//!
//! Where engines agree on hashes, all holders know a span by the shared name in its node, and this struct contains
//! one number per node. Only differences cost more: a span that this holder knows by another name, a name stored
//! twice, a span with several names.

use crate::name_table::{NameHash, NameTable, SpanAddress};
use crate::node::{NodeId, offsets};
use crate::number_map::NumberMap;
use crate::table_hash::TableHash;

/// One holder's names.
pub(crate) struct HolderNames {
    hash: TableHash,
    /// The nodes in which the holder holds spans, each with the names of spans that the holder does *not* hold by
    /// their shared name.
    pub nodes: NumberMap<NodeId, Option<Box<OwnNames>>>,
    /// Addresses of the names that only this holder uses.
    pub own: NameTable,
    /// How often each name was stored beyond the first time.
    pub extra_counts: NumberMap<u64, u32>,
    /// Further names of spans that have several.
    aliases: NumberMap<SpanAddress, Vec<u64>>,
    /// Bytes of all lists of names.
    listed_bytes: usize,
    /// Bytes of this struct, as last counted.
    pub counted_bytes: usize,
}

/// A holder's own names of the spans of one node.
#[derive(Default)]
pub(crate) struct OwnNames {
    /// The spans that have one.
    pub bits: u64,
    /// By offset.
    pub names: Vec<u64>,
}

impl OwnNames {
    fn bytes(&self) -> usize {
        size_of::<OwnNames>() + self.names.capacity() * size_of::<u64>()
    }
}

impl HolderNames {
    pub fn new(hash: TableHash) -> HolderNames {
        HolderNames {
            hash,
            nodes: NumberMap::new(hash),
            own: NameTable::default(),
            extra_counts: NumberMap::new(hash),
            aliases: NumberMap::new(hash),
            listed_bytes: 0,
            counted_bytes: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn bytes(&self) -> usize {
        size_of::<HolderNames>()
            + self.nodes.allocated()
            + self.own.allocated()
            + self.extra_counts.allocated()
            + self.aliases.allocated()
            + self.listed_bytes
    }

    /// Whether the holder knows the span by a name of its own instead of the shared one.
    pub fn is_own(&self, address: SpanAddress) -> bool {
        !self.own.is_empty() && self.own_bits(address.node()) >> address.offset() & 1 == 1
    }

    /// The holder's own names of a node's spans, if it has any.
    #[inline]
    pub fn own_names(&self, node: NodeId) -> Option<&OwnNames> {
        self.nodes.get(&node)?.as_deref()
    }

    #[inline]
    pub fn own_bits(&self, node: NodeId) -> u64 {
        self.own_names(node).map_or(0, |own| own.bits)
    }

    /// The address of one of the holder's own names.
    #[inline]
    pub fn own_address(&self, name: u64, hash: NameHash) -> Option<SpanAddress> {
        if self.own.is_empty() {
            return None;
        }
        self.own.find(hash, |address| {
            self.own_name(address) == Some(name)
                || self.aliases.get(&address).is_some_and(|names| names.contains(&name))
        })
    }

    /// The holder's own name of a span, if it has one.
    pub fn own_name(&self, address: SpanAddress) -> Option<u64> {
        let own = self.own_names(address.node())?;
        (own.bits >> address.offset() & 1 == 1).then(|| own.names[address.offset()])
    }

    /// Records that the holder knows these spans of a node by names of its own; `names` begin at offset `from`. The
    /// caller has entered them into the table.
    pub fn set_own_names(&mut self, node: NodeId, mut bits: u64, from: usize, names: &[u64]) {
        let own = self.nodes.get_or_default(node);
        let before = own.as_ref().map_or(0, |own| own.bytes());
        let own = own.get_or_insert_default();
        own.bits |= bits;
        let end = 64 - bits.leading_zeros() as usize;
        if own.names.len() < end {
            own.names.reserve_exact((from + names.len()).max(end) - own.names.len());
            own.names.resize(end, 0);
        }
        while bits != 0 {
            let offset = bits.trailing_zeros() as usize;
            own.names[offset] = names[offset - from];
            bits &= bits - 1;
        }
        self.listed_bytes += own.bytes() - before;
    }

    /// Records that the holder knows a span by its shared name.
    fn set_shared(&mut self, address: SpanAddress) {
        if let Some(own) = self.nodes.get_or_default(address.node()) {
            own.bits &= !(1 << address.offset());
        }
    }

    /// Records the name of a span that the holder did not hold before.
    pub fn add_name(&mut self, address: SpanAddress, name: u64, kind: NameKind) {
        match kind {
            NameKind::Own => {
                self.own.insert(NameHash::of(self.hash, name), address);
                self.set_own_names(address.node(), 1 << address.offset(), address.offset(), &[name]);
            }
            NameKind::Shared => self.set_shared(address),
        }
    }

    /// Records one more name of a span that the holder holds.
    pub fn add_alias(&mut self, address: SpanAddress, name: u64, kind: NameKind) {
        let alias = match kind {
            NameKind::Own => {
                self.own.insert(NameHash::of(self.hash, name), address);
                name
            }
            // The shared name comes first; the holder's own name becomes the alias.
            NameKind::Shared => {
                let own = self.own_name(address).unwrap_or(name);
                self.set_shared(address);
                own
            }
        };
        let list = self.aliases.get_or_default(address);
        let before = list.capacity();
        list.push(alias);
        self.listed_bytes += (list.capacity() - before) * size_of::<u64>();
    }

    /// Removes a name from a span that the holder holds under it. Returns false where that was its last name.
    pub fn remove_name(&mut self, address: SpanAddress, name: u64) -> bool {
        if !self.own.is_empty() {
            self.own.remove(NameHash::of(self.hash, name), address);
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
            let gone = self.aliases.remove(&address).map_or(0, |gone| gone.capacity());
            self.listed_bytes -= gone * size_of::<u64>();
        }
        if let Some(heir) = left {
            self.set_own_names(address.node(), 1 << address.offset(), address.offset(), &[heir]);
        }
        true
    }

    /// The names under which the holder holds a span, sorted. `shared` is the span's shared name.
    pub fn names_of(&self, address: SpanAddress, shared: u64) -> Vec<u64> {
        let first = self.own_name(address).unwrap_or(shared);
        let mut names = self.aliases.get(&address).cloned().unwrap_or_default();
        names.push(first);
        names.sort_unstable();
        names
    }

    /// Whether two holders that hold these spans of a node know each of them by the same single name.
    pub fn has_same_names(&self, other: &HolderNames, node: NodeId, bits: u64) -> bool {
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

    /// Takes the own names of these spans out of the table. The caller removes the spans.
    pub fn drop_own_names(&mut self, node: NodeId, bits: u64) {
        if self.own.is_empty() {
            return;
        }
        let Some(Some(own)) = self.nodes.get(&node) else { return };
        let mut hashes = [NameHash::default(); 64];
        for offset in offsets(own.bits & bits) {
            hashes[offset] = NameHash::of(self.hash, own.names[offset]);
            self.own.prefetch(hashes[offset]);
        }
        for offset in offsets(own.bits & bits) {
            self.own.remove(hashes[offset], SpanAddress::new(node, offset));
        }
    }

    /// Drops the own names and aliases of these spans, and their extra counts.
    pub fn forget_names(&mut self, node: NodeId, bits: u64) {
        self.drop_own_names(node, bits);
        if !self.extra_counts.is_empty()
            && let Some(Some(own)) = self.nodes.get(&node)
        {
            for offset in offsets(own.bits & bits) {
                self.extra_counts.remove(&own.names[offset]);
            }
        }
        for offset in offsets(if self.aliases.is_empty() { 0 } else { bits }) {
            let address = SpanAddress::new(node, offset);
            let aliases = self.aliases.remove(&address).unwrap_or_default();
            self.listed_bytes -= aliases.capacity() * size_of::<u64>();
            for name in aliases {
                self.own.remove(NameHash::of(self.hash, name), address);
                self.extra_counts.remove(&name);
            }
        }
    }

    /// Records which spans of a node the holder still holds.
    pub fn retain(&mut self, node: NodeId, left: u64) {
        if left == 0 {
            let gone = self.nodes.remove(&node).flatten();
            self.listed_bytes -= gone.map_or(0, |gone| gone.bytes());
        } else if let Some(Some(own)) = self.nodes.get_mut(&node) {
            own.bits &= left;
        }
    }
}

/// The kind of name by which a holder knows a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameKind {
    /// A name that only this holder uses.
    Own,
    /// The shared name, stored with the span.
    Shared,
}
