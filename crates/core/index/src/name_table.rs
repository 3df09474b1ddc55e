//! The table from a name to the address of its span: 8 bytes a slot, eight slots a bucket, one cache line a bucket.
//!
//! A slot contains 32 bits of the name's hash and a 32-bit address. The full name is stored with the span in its node
//! or in its `HolderNames`, where a probable match is checked. A name has two buckets and lies in either, so a search
//! reads two cache lines that can be prefetched together, and a removal only clears a slot. Of two buckets the emptier
//! one is filled; where both are full, a slot moves to its other bucket. A table so becomes nine tenths full. A large
//! table consists of small ones that are split and joined one at a time: none is ever rebuilt as a whole.

use crate::node::NodeId;
use crate::number_map::Partitions;
use crate::prefetch;
use crate::table_hash::TableHash;

/// The address of a span: 26 bits of node id, 6 of offset. Node id zero is unused, so zero is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SpanAddress(u32);

/// The most nodes that addresses can distinguish.
pub(crate) const NODES_MAX: usize = 1 << 26;

impl SpanAddress {
    pub fn new(node: NodeId, offset: usize) -> SpanAddress {
        debug_assert!(node > 0 && (node as usize) < NODES_MAX && offset < 64);
        SpanAddress(node << 6 | offset as u32)
    }

    pub fn node(self) -> NodeId {
        self.0 >> 6
    }

    pub fn offset(self) -> usize {
        (self.0 & 63) as usize
    }
}

/// A name's hash in all name tables of an index. The lowest bits choose a small table, all of them the buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameHash(u32);

impl NameHash {
    #[inline]
    pub fn of(hash: TableHash, name: u64) -> NameHash {
        NameHash((hash.of(name) >> 32) as u32)
    }
}

/// A map from the hashes of names to addresses. A hash may have several.
pub(crate) struct NameTable {
    partitions: Partitions<Table>,
    len: usize,
    /// Buckets that the tables have allocated.
    buckets: usize,
}

/// Average names in one table before one is split. Larger tables, of some 100 KB, made single stores take
/// milliseconds: the allocator sorts all of its free lists before it hands out a large block.
const NAMES_EACH: usize = 1_024;

impl Default for NameTable {
    fn default() -> NameTable {
        NameTable { partitions: Partitions { parts: vec![Table::default()] }, len: 0, buckets: 0 }
    }
}

impl NameTable {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn allocated(&self) -> usize {
        self.buckets * size_of::<Bucket>() + self.partitions.parts.capacity() * size_of::<Table>()
    }

    #[inline]
    fn table(&self, hash: NameHash) -> &Table {
        &self.partitions.parts[self.partitions.part_of(hash.0)]
    }

    /// Prefetches a hash's buckets into the processor's cache.
    #[inline]
    pub fn prefetch(&self, hash: NameHash) {
        let buckets = &self.table(hash).buckets;
        for at in homes(hash.0, buckets.len()) {
            prefetch::line(buckets.as_ptr().wrapping_add(at));
        }
    }

    /// The first address of this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: NameHash, is_it: impl Fn(SpanAddress) -> bool) -> Option<SpanAddress> {
        let table = self.table(hash);
        table.find(hash.0, is_it).map(|(at, slot)| SpanAddress(table.buckets[at].addresses[slot]))
    }

    /// Whether the table has an address of this hash.
    #[inline]
    pub fn contains(&self, hash: NameHash) -> bool {
        self.table(hash).find(hash.0, |_| true).is_some()
    }

    /// Adds an address to a hash; earlier ones stay. No more than two buckets of them have room: callers add a few
    /// addresses to one name, and different names hardly ever share a keyed hash.
    pub fn insert(&mut self, hash: NameHash, address: SpanAddress) {
        let part = self.make_room(hash);
        self.put(part, hash, address);
    }

    /// Adds an address to a hash, unless the hash has one already.
    #[inline]
    pub fn insert_new(&mut self, hash: NameHash, address: SpanAddress) -> bool {
        let part = self.make_room(hash);
        let is_new = self.partitions.parts[part].find(hash.0, |_| true).is_none();
        if is_new {
            self.put(part, hash, address);
        }
        is_new
    }

    /// The table of a hash, after a split where one is due.
    #[inline]
    fn make_room(&mut self, hash: NameHash) -> usize {
        if self.len >= self.partitions.parts.len() * NAMES_EACH {
            self.split();
        }
        self.partitions.part_of(hash.0)
    }

    #[inline]
    fn put(&mut self, part: usize, hash: NameHash, address: SpanAddress) {
        while !self.partitions.parts[part].insert(hash.0, address.0) {
            let buckets = self.partitions.parts[part].buckets.len();
            self.resize(part, (buckets + buckets / 2).max(buckets + 1));
        }
        self.len += 1;
    }

    /// Removes an address of a hash. Returns whether it was there.
    pub fn remove(&mut self, hash: NameHash, address: SpanAddress) -> bool {
        let part = self.partitions.part_of(hash.0);
        let table = &mut self.partitions.parts[part];
        let Some((at, slot)) = table.find(hash.0, |other| other == address) else { return false };
        table.buckets[at].clear(slot);
        table.len -= 1;
        self.len -= 1;
        if table.is_sparse() {
            let buckets = buckets_for(table.len);
            self.resize(part, buckets);
        }
        if self.partitions.parts.len() > 1 && self.len * 3 < self.partitions.parts.len() * NAMES_EACH {
            self.join();
        }
        true
    }

    #[inline(never)]
    fn resize(&mut self, part: usize, buckets: usize) {
        let table = &mut self.partitions.parts[part];
        self.buckets -= table.buckets.len();
        *table = Table::of(&[table], buckets);
        self.buckets += table.buckets.len();
    }

    /// Moves half of one table to a new one.
    #[inline(never)]
    fn split(&mut self) {
        let (part, bit) = self.partitions.next_split();
        let half = self.partitions.parts[part].split_off(bit);
        self.buckets += half.buckets.len();
        self.partitions.parts.push(half);
        if self.partitions.parts[part].is_sparse() {
            self.resize(part, buckets_for(self.partitions.parts[part].len));
        }
    }

    /// Joins the last table with the one it was split from.
    #[inline(never)]
    fn join(&mut self) {
        let origin = self.partitions.origin_of_last();
        let last = self.partitions.parts.pop().unwrap_or_default();
        let first = &self.partitions.parts[origin];
        let table = Table::of(&[first, &last], buckets_for(first.len + last.len));
        self.buckets = self.buckets - first.buckets.len() - last.buckets.len() + table.buckets.len();
        self.partitions.parts[origin] = table;
        if self.partitions.parts.len() * 4 < self.partitions.parts.capacity() {
            self.partitions.parts.shrink_to(self.partitions.parts.len() * 2);
        }
    }
}

const SLOTS_A_BUCKET: usize = 8;

/// A cache line of slots. Those in use come first; an address of zero is an empty slot.
#[derive(Clone, Default)]
#[repr(C, align(64))]
struct Bucket {
    hashes: [u32; SLOTS_A_BUCKET],
    addresses: [u32; SLOTS_A_BUCKET],
}

impl Bucket {
    /// Whether a slot may have this hash: a few vector instructions without a branch.
    #[inline]
    fn may_contain(&self, hash: u32) -> bool {
        self.hashes.iter().fold(false, |any, &other| any | (other == hash))
    }

    /// Slots in use, by binary search.
    #[inline]
    fn len(&self) -> usize {
        let is_used = |at: usize| usize::from(self.addresses[at % SLOTS_A_BUCKET] != 0);
        let len = 4 * is_used(3);
        let len = len + 2 * is_used(len + 1);
        let len = len + is_used(len);
        len + is_used(len)
    }

    #[inline]
    fn set(&mut self, slot: usize, hash: u32, address: u32) {
        (self.hashes[slot], self.addresses[slot]) = (hash, address);
    }

    /// Empties a slot. The last one in use takes its place.
    #[inline]
    fn clear(&mut self, slot: usize) {
        let last = self.len() - 1;
        self.set(slot, self.hashes[last], self.addresses[last]);
        self.set(last, 0, 0);
    }
}

/// A part of the slots.
#[derive(Default)]
struct Table {
    buckets: Box<[Bucket]>,
    len: usize,
}

/// Buckets for this many names, two thirds full.
fn buckets_for(names: usize) -> usize {
    (names * 3 / 2).div_ceil(SLOTS_A_BUCKET)
}

/// The two buckets of a hash, of so many. They may be the same one.
#[inline]
fn homes(hash: u32, buckets: usize) -> [usize; 2] {
    let home = |hash: u32| ((u64::from(hash) * buckets as u64) >> 32) as usize;
    [home(hash), home(hash.wrapping_mul(0x9e37_79b1))]
}

impl Table {
    /// A table of the slots of these tables, with at least so many buckets.
    fn of(tables: &[&Table], buckets: usize) -> Table {
        let mut filling = FillingTable::new(buckets);
        for bucket in tables.iter().flat_map(|table| &table.buckets) {
            for (&hash, &address) in bucket.hashes.iter().zip(&bucket.addresses).take(bucket.len()) {
                filling.put(hash, address);
            }
        }
        filling.table
    }

    /// Moves the slots whose hashes have this bit to another table.
    fn split_off(&mut self, bit: u32) -> Table {
        // Half full: it hardly grows before its own split.
        let mut filling = FillingTable::new(self.len.div_ceil(SLOTS_A_BUCKET));
        for bucket in &mut self.buckets {
            for slot in (0..bucket.len()).rev() {
                if bucket.hashes[slot] >> bit & 1 == 1 {
                    filling.put(bucket.hashes[slot], bucket.addresses[slot]);
                    bucket.clear(slot);
                }
            }
        }
        self.len -= filling.table.len;
        filling.table
    }

    /// The first slot of this hash that `is_it` accepts: its bucket, and its place there.
    #[inline]
    fn find(&self, hash: u32, is_it: impl Fn(SpanAddress) -> bool) -> Option<(usize, usize)> {
        for at in homes(hash, self.buckets.len()) {
            let bucket = self.buckets.get(at)?;
            if !bucket.may_contain(hash) {
                continue;
            }
            for (slot, (&other, &address)) in bucket.hashes.iter().zip(&bucket.addresses).enumerate() {
                if other == hash && address != 0 && is_it(SpanAddress(address)) {
                    return Some((at, slot));
                }
            }
        }
        None
    }

    /// Fills a slot of the emptier bucket. Returns false where there is no room.
    #[inline]
    fn insert(&mut self, hash: u32, address: u32) -> bool {
        if self.buckets.is_empty() {
            return false;
        }
        let [first, second] = homes(hash, self.buckets.len());
        let (in_first, in_second) = (self.buckets[first].len(), self.buckets[second].len());
        let (at, slot) = if in_first <= in_second { (first, in_first) } else { (second, in_second) };
        if slot < SLOTS_A_BUCKET {
            self.buckets[at].set(slot, hash, address);
        } else if !self.displace(first, hash, address) && !self.displace(second, hash, address) {
            return false;
        }
        self.len += 1;
        true
    }

    /// Takes the place of a slot that has room in its other bucket.
    #[inline(never)]
    fn displace(&mut self, at: usize, hash: u32, address: u32) -> bool {
        for slot in 0..SLOTS_A_BUCKET {
            let (moving, moved) = (self.buckets[at].hashes[slot], self.buckets[at].addresses[slot]);
            let [first, second] = homes(moving, self.buckets.len());
            let other = if first == at { second } else { first };
            let free = self.buckets[other].len();
            if free < SLOTS_A_BUCKET {
                self.buckets[other].set(free, moving, moved);
                self.buckets[at].set(slot, hash, address);
                return true;
            }
        }
        false
    }

    fn is_sparse(&self) -> bool {
        self.len == 0 || self.len * 8 < (self.buckets.len() - 1) * SLOTS_A_BUCKET * 3
    }
}

/// A table that is being filled, with the number of slots in use of each bucket.
struct FillingTable {
    table: Table,
    used: Vec<u8>,
}

impl FillingTable {
    fn new(buckets: usize) -> FillingTable {
        let table = Table { buckets: vec![Bucket::default(); buckets].into(), len: 0 };
        FillingTable { used: vec![0; buckets], table }
    }

    #[inline]
    fn put(&mut self, hash: u32, address: u32) {
        let [first, second] = homes(hash, self.used.len());
        let at = if self.used.get(first) <= self.used.get(second) { first } else { second };
        match self.used.get_mut(at) {
            Some(used) if usize::from(*used) < SLOTS_A_BUCKET => {
                self.table.buckets[at].set(usize::from(*used), hash, address);
                self.table.len += 1;
                *used += 1;
            }
            _ => self.put_slowly(hash, address),
        }
    }

    #[cold]
    fn put_slowly(&mut self, hash: u32, address: u32) {
        while !self.table.insert(hash, address) {
            self.table = Table::of(&[&self.table], self.table.buckets.len() + 1);
        }
        self.used = self.table.buckets.iter().map(|bucket| bucket.len() as u8).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use warmroute_types::mix;

    fn hash(name: u64) -> NameHash {
        NameHash::of(TableHash::new(1), name)
    }

    #[test]
    fn an_address_is_a_node_and_an_offset() {
        let address = SpanAddress::new((NODES_MAX - 1) as NodeId, 63);
        assert_eq!((address.node(), address.offset()), ((NODES_MAX - 1) as NodeId, 63));
    }

    /// Compares with a set through growth, splits, joins and shrinking, with names that share addresses.
    #[test]
    fn behaves_like_a_set_of_pairs_under_churn() {
        for names in [50, 3_000, 40_000] {
            let mut table = NameTable::default();
            let mut model = BTreeSet::new();
            let mut state = 1u64;
            for step in 0..400_000u64 {
                state = mix(state.wrapping_add(step));
                let name = state % names;
                // The address encodes the name, so that each address belongs to one name.
                let address = SpanAddress::new(1 + name as u32 * 4 + (state >> 40) as u32 % 4, 0);
                let grows = (step / 50_000) % 2 == 0;
                if state >> 60 < if grows { 13 } else { 4 } {
                    if model.insert((name, address.0)) {
                        table.insert(hash(name), address);
                    }
                } else {
                    let was_there = table.remove(hash(name), address);
                    assert_eq!(was_there, model.remove(&(name, address.0)));
                }
                assert_eq!(table.len(), model.len());
            }
            for name in 0..names {
                for node in 0..4 {
                    let address = SpanAddress::new(1 + name as u32 * 4 + node, 0);
                    let found = table.find(hash(name), |at| at == address);
                    assert_eq!(found.is_some(), model.contains(&(name, address.0)));
                }
            }
        }
    }

    #[test]
    fn a_table_becomes_nine_tenths_full() {
        let mut table = FillingTable::new(128).table;
        let added = (0..).take_while(|&name| table.insert(hash(name).0, name as u32 + 1)).count();
        assert!(added > 128 * SLOTS_A_BUCKET * 9 / 10, "{added}");
        let is_found = |name: u64| table.find(hash(name).0, |at| at.0 == name as u32 + 1).is_some();
        assert!((0..added as u64).all(is_found));
    }

    #[test]
    fn memory_follows_the_number_of_names() {
        let mut table = NameTable::default();
        for name in 0..100_000 {
            table.insert(hash(name), SpanAddress::new(1, 0));
        }
        assert!(table.allocated() <= 100_000 * 13, "{}", table.allocated());
        for name in 0..99_990 {
            assert!(table.remove(hash(name), SpanAddress::new(1, 0)));
        }
        assert!(table.allocated() < 2_000, "{}", table.allocated());
        assert_eq!((99_990..100_000).filter(|&name| table.contains(hash(name))).count(), 10);
    }
}
