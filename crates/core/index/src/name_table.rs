//! The table from a name to the address of its span: open addressing with 8 bytes a slot.
//!
//! A slot contains 32 bits of the name's hash and a 32-bit address. The full name is stored with the span in its node
//! or in its `WorkerNames`, where a probable match is checked. Slots are sorted by hash, so growing is one sequential
//! pass over memory and works for any capacity. A removal shifts later slots back and leaves no tombstone. A large
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

/// A name's hash in the upper half and its address in the lower half; zero for an empty slot. Slots in this form sort
/// by hash as plain numbers.
type Slot = u64;

const EMPTY: Slot = 0;

#[inline]
fn slot(hash: u32, address: SpanAddress) -> Slot {
    u64::from(hash) << 32 | u64::from(address.0)
}

#[inline]
fn hash_in(slot: Slot) -> u32 {
    (slot >> 32) as u32
}

/// A map from names to addresses. A name may have several.
pub(crate) struct NameTable {
    hash: TableHash,
    partitions: Partitions<Table>,
    len: usize,
    /// Slots that the tables have allocated.
    slots: usize,
}

/// Average names in one table before one is split. Larger tables, of some 100 KB, made single stores take
/// milliseconds: the allocator sorts all of its free lists before it hands out a large block.
const NAMES_EACH: usize = 1_024;

impl NameTable {
    pub fn new(hash: TableHash) -> NameTable {
        NameTable { hash, partitions: Partitions { parts: vec![Table::default()] }, len: 0, slots: 0 }
    }

    /// The lowest bits choose a table, the highest the slot in it.
    #[inline]
    fn hash_of(&self, name: u64) -> u32 {
        (self.hash.of(name) >> 32) as u32
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn allocated(&self) -> usize {
        self.slots * size_of::<Slot>() + self.partitions.parts.capacity() * size_of::<Table>()
    }

    #[inline]
    fn table(&self, hash: u32) -> &Table {
        &self.partitions.parts[self.partitions.part_of(hash)]
    }

    /// Prefetches a name's slot into the processor's cache.
    #[inline]
    pub fn prefetch(&self, name: u64) {
        let hash = self.hash_of(name);
        let table = self.table(hash);
        prefetch::line(table.slots.as_ptr().wrapping_add(table.home(hash)));
    }

    /// The first address of this name that `is_it` accepts.
    #[inline]
    pub fn find(&self, name: u64, is_it: impl Fn(SpanAddress) -> bool) -> Option<SpanAddress> {
        if self.is_empty() {
            return None;
        }
        let hash = self.hash_of(name);
        let table = self.table(hash);
        table.find(hash, is_it).map(|at| SpanAddress(table.slots[at] as u32))
    }

    /// Adds an address to a name; earlier ones stay.
    pub fn insert(&mut self, name: u64, address: SpanAddress) {
        let hash = self.hash_of(name);
        let part = self.make_room(hash);
        let at = self.partitions.parts[part].seek(hash);
        self.put(part, at, slot(hash, address));
    }

    /// Adds an address to a name, unless the table may contain that name already.
    #[inline]
    pub fn insert_new(&mut self, name: u64, address: SpanAddress) -> bool {
        let hash = self.hash_of(name);
        let part = self.make_room(hash);
        let at = self.partitions.parts[part].seek(hash);
        let other = self.partitions.parts[part].slots.get(at).copied().unwrap_or(EMPTY);
        let is_new = other == EMPTY || hash_in(other) != hash;
        if is_new {
            self.put(part, at, slot(hash, address));
        }
        is_new
    }

    #[inline]
    fn put(&mut self, part: usize, at: usize, slot: Slot) {
        self.slots += self.partitions.parts[part].put(at, slot);
        self.len += 1;
    }

    /// Removes an address of a name. Returns whether it was there.
    pub fn remove(&mut self, name: u64, is_it: impl Fn(SpanAddress) -> bool) -> bool {
        let hash = self.hash_of(name);
        let part = self.partitions.part_of(hash);
        let Some(at) = self.partitions.parts[part].find(hash, is_it) else { return false };
        self.partitions.parts[part].remove(at);
        self.len -= 1;
        if self.partitions.parts[part].is_sparse() {
            self.resize(part, self.partitions.parts[part].len * 3 / 2);
        }
        if self.partitions.parts.len() > 1 && self.len * 3 < self.partitions.parts.len() * NAMES_EACH {
            self.join();
        }
        true
    }

    /// The table of a hash, with room for one more slot. A table that is four fifths full grows by a third: 10 to 13
    /// bytes a name.
    #[inline]
    fn make_room(&mut self, hash: u32) -> usize {
        if self.len >= self.partitions.parts.len() * NAMES_EACH {
            self.split();
        }
        let part = self.partitions.part_of(hash);
        let table = &self.partitions.parts[part];
        if (table.len + 1) * 5 > table.homes * 4 {
            self.resize(part, table.homes + table.homes / 3);
        }
        part
    }

    fn resize(&mut self, part: usize, homes: usize) {
        let before = self.partitions.parts[part].slots.capacity();
        self.partitions.parts[part].resize(homes);
        self.slots = self.slots + self.partitions.parts[part].slots.capacity() - before;
    }

    /// Splits one table in two.
    #[inline(never)]
    fn split(&mut self) {
        let (part, bit) = self.partitions.next_split();
        let old = std::mem::take(&mut self.partitions.parts[part]);
        let halves = old.split(bit);
        self.slots -= old.slots.capacity();
        self.slots += halves.iter().map(|half| half.slots.capacity()).sum::<usize>();
        let [low, high] = halves;
        self.partitions.parts[part] = low;
        self.partitions.parts.push(high);
    }

    /// Joins the last table with the one it was split from.
    #[inline(never)]
    fn join(&mut self) {
        let origin = self.partitions.origin_of_last();
        let last = self.partitions.parts.pop().unwrap_or_default();
        let before = last.slots.capacity() + self.partitions.parts[origin].slots.capacity();
        let both = self.partitions.parts[origin].slots.iter().chain(&last.slots);
        let mut slots: Vec<Slot> = both.filter(|&&slot| slot != EMPTY).copied().collect();
        slots.sort_unstable();
        let table = Table::of(slots.len() * 3 / 2, &slots);
        self.slots = self.slots + table.slots.capacity() - before;
        self.partitions.parts[origin] = table;
        if self.partitions.parts.len() * 4 < self.partitions.parts.capacity() {
            self.partitions.parts.shrink_to(self.partitions.parts.len() * 2);
        }
    }
}

/// A part of the slots, sorted by hash. A slot lies at its home or after it, with no empty slot in between.
#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Number of homes. A few more slots follow, for entries that overflow the last homes.
    homes: usize,
    len: usize,
}

const HOMES_MIN: usize = 16;

/// Slots beyond the last home. A longer run makes the table grow.
fn margin(homes: usize) -> usize {
    (homes / 16).clamp(4, 32)
}

impl Table {
    fn with_homes(homes: usize) -> Table {
        let homes = homes.max(HOMES_MIN);
        Table { slots: vec![EMPTY; homes + margin(homes)], homes, len: 0 }
    }

    /// A table of these slots, which are sorted.
    fn of(homes: usize, slots: &[Slot]) -> Table {
        let mut table = Table::with_homes(homes);
        let mut free = 0;
        slots.iter().for_each(|&slot| free = table.append(slot, free));
        table
    }

    /// The home of a hash. Homes grow with hashes, so the order of slots is the order of hashes.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.homes as u64) >> 32) as usize
    }

    /// The first slot at or after a hash's home that is empty or whose hash is not smaller.
    #[inline]
    fn seek(&self, hash: u32) -> usize {
        let (from, least) = (self.home(hash), u64::from(hash) << 32);
        let run = self.slots[from..].iter().take_while(|&&slot| slot != EMPTY && slot < least);
        from + run.count()
    }

    /// The first slot of this hash that `is_it` accepts.
    #[inline]
    fn find(&self, hash: u32, is_it: impl Fn(SpanAddress) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let from = self.seek(hash);
        let mut run = self.slots[from..].iter().take_while(|&&slot| slot != EMPTY && hash_in(slot) == hash);
        run.position(|&slot| is_it(SpanAddress(slot as u32))).map(|step| from + step)
    }

    /// Puts a slot at `at` and moves those that follow by one. Returns how many slots that added to the allocation.
    #[inline]
    fn put(&mut self, at: usize, mut slot: Slot) -> usize {
        self.len += 1;
        for here in &mut self.slots[at..] {
            std::mem::swap(here, &mut slot);
            if slot == EMPTY {
                return 0;
            }
        }
        // The run at the end is too long for the margin.
        let before = self.slots.capacity();
        self.slots.push(slot);
        self.slots.capacity() - before
    }

    /// Removes a slot, and moves back those behind it that are not at home.
    #[inline]
    fn remove(&mut self, mut at: usize) {
        while let Some(&next) = self.slots.get(at + 1)
            && next != EMPTY
            && self.home(hash_in(next)) <= at
        {
            self.slots[at] = next;
            at += 1;
        }
        self.slots[at] = EMPTY;
        self.len -= 1;
    }

    fn is_sparse(&self) -> bool {
        self.len == 0 || (self.homes > HOMES_MIN && self.len * 2 < self.homes)
    }

    /// Moves all slots to a table with another number of homes, in one sequential pass.
    #[inline(never)]
    fn resize(&mut self, homes: usize) {
        let mut table = if homes == 0 && self.len == 0 && self.homes > 0 {
            Table::default()
        } else {
            Table::with_homes(homes)
        };
        let mut free = 0;
        self.slots.iter().filter(|_| self.len > 0).for_each(|&slot| free = table.append(slot, free));
        *self = table;
    }

    /// Splits the slots into two tables by one bit of the hash.
    fn split(&self, bit: u32) -> [Table; 2] {
        let mut halves = [Table::with_homes(self.len * 3 / 4), Table::with_homes(self.len * 3 / 4)];
        let mut free = [0; 2];
        for &slot in &self.slots {
            let half = (hash_in(slot) >> bit & 1) as usize;
            free[half] = halves[half].append(slot, free[half]);
        }
        halves
    }

    /// Appends a slot behind all others; `free` is the first free position. An empty slot is written too, without
    /// effect: a mispredicted branch costs more than the write.
    #[inline]
    fn append(&mut self, slot: Slot, free: usize) -> usize {
        let is_there = usize::from(slot != EMPTY);
        let at = self.home(hash_in(slot)).max(free);
        if at >= self.slots.len() {
            self.slots.resize(at + margin(self.homes), EMPTY);
        }
        self.slots[at] = slot;
        self.len += is_there;
        free.max((at + 1) * is_there)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use warmroute_types::mix;

    #[test]
    fn an_address_is_a_node_and_an_offset() {
        let address = SpanAddress::new((NODES_MAX - 1) as NodeId, 63);
        assert_eq!((address.node(), address.offset()), ((NODES_MAX - 1) as NodeId, 63));
    }

    /// Compares with a set through growth, splits, joins and shrinking, with names that share addresses.
    #[test]
    fn behaves_like_a_set_of_pairs_under_churn() {
        for names in [50, 3_000, 40_000] {
            let mut table = NameTable::new(TableHash::new(1));
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
                        table.insert(name, address);
                    }
                } else {
                    let was_there = table.remove(name, |at| at == address);
                    assert_eq!(was_there, model.remove(&(name, address.0)));
                }
                assert_eq!(table.len(), model.len());
            }
            for name in 0..names {
                for node in 0..4 {
                    let address = SpanAddress::new(1 + name as u32 * 4 + node, 0);
                    let found = table.find(name, |at| at == address);
                    assert_eq!(found.is_some(), model.contains(&(name, address.0)));
                }
            }
        }
    }

    #[test]
    fn memory_follows_the_number_of_names() {
        let mut table = NameTable::new(TableHash::new(1));
        for name in 0..100_000 {
            table.insert(name, SpanAddress::new(1, 0));
        }
        assert!(table.allocated() <= 100_000 * 14, "{}", table.allocated());
        for name in 0..99_990 {
            assert!(table.remove(name, |_| true));
        }
        assert!(table.allocated() < 2_000, "{}", table.allocated());
        assert_eq!((99_990..100_000).filter(|&name| table.find(name, |_| true).is_some()).count(), 10);
    }
}
