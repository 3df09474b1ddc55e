//! From a name to the place of its span: open-addressing tables of 8 bytes a slot.
//!
//! A slot is 32 bits of the name's hash and a 32-bit place; the full name lies beside the span in its node or in its
//! worker's book, where a probable match is checked. Slots are kept in the order of their hashes, so growing is one
//! sequential pass over memory, any capacity will do, and removal shifts back instead of leaving tombs: churn leaves no
//! trace. A large table is a row of small ones, split and joined one at a time: none is ever rebuilt as a whole.

use crate::digest::mix;
use crate::hash::Row;
use crate::node::NodeId;
use crate::prefetch;

/// Where a span lies: 26 bits of node, 6 of offset. Node zero is nobody, so zero is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(u32);

/// The most nodes that places can address.
pub(crate) const NODES_MAX: usize = 1 << 26;

impl Place {
    pub fn new(node: NodeId, offset: usize) -> Place {
        debug_assert!(node > 0 && (node as usize) < NODES_MAX && offset < 64);
        Place(node << 6 | offset as u32)
    }

    pub fn node(self) -> NodeId {
        self.0 >> 6
    }

    pub fn offset(self) -> usize {
        (self.0 & 63) as usize
    }
}

/// A name's hash in the upper half and its place in the lower; zero for an empty slot. In this order, so that slots sort
/// by hash as plain numbers.
type Slot = u64;

const EMPTY: Slot = 0;

/// Its lowest bits choose a table, its highest the place in it.
#[inline]
fn hash_of(name: u64) -> u32 {
    (mix(name) >> 32) as u32
}

#[inline]
fn slot(hash: u32, place: Place) -> Slot {
    u64::from(hash) << 32 | u64::from(place.0)
}

#[inline]
fn hash_in(slot: Slot) -> u32 {
    (slot >> 32) as u32
}

/// Names to places.
pub(crate) struct Places {
    row: Row<Table>,
    len: usize,
    /// Slots that the tables have allocated.
    slots: usize,
}

/// Names in one table, on average, before one is split. Larger ones, of some 100 KB, made single stores take milliseconds:
/// not to move the names, but in the allocator, which sorts all it has before it gives out a large piece.
const NAMES_EACH: usize = 1_024;

impl Default for Places {
    fn default() -> Places {
        Places { row: Row { parts: vec![Table::default()] }, len: 0, slots: 0 }
    }
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn allocated(&self) -> usize {
        self.slots * size_of::<Slot>() + self.row.parts.capacity() * size_of::<Table>()
    }

    #[inline]
    fn table(&self, hash: u32) -> &Table {
        &self.row.parts[self.row.part_of(hash)]
    }

    /// Brings a name's slot into the cache.
    #[inline]
    pub fn prefetch(&self, name: u64) {
        let hash = hash_of(name);
        let table = self.table(hash);
        prefetch::line(table.slots.as_ptr().wrapping_add(table.home(hash)));
    }

    /// The first place of this name that `is_it` agrees to.
    #[inline]
    pub fn find(&self, name: u64, is_it: impl Fn(Place) -> bool) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        let hash = hash_of(name);
        let table = self.table(hash);
        table.find(hash, is_it).map(|at| Place(table.slots[at] as u32))
    }

    /// Adds a place for a name; one that is already there stays.
    pub fn insert(&mut self, name: u64, place: Place) {
        let hash = hash_of(name);
        let part = self.make_room(hash);
        let at = self.row.parts[part].seek(hash);
        self.put(part, at, slot(hash, place));
    }

    /// Adds a place for a name, unless the table may know that name already.
    #[inline]
    pub fn insert_new(&mut self, name: u64, place: Place) -> bool {
        let hash = hash_of(name);
        let part = self.make_room(hash);
        let at = self.row.parts[part].seek(hash);
        let other = self.row.parts[part].slots.get(at).copied().unwrap_or(EMPTY);
        let is_new = other == EMPTY || hash_in(other) != hash;
        if is_new {
            self.put(part, at, slot(hash, place));
        }
        is_new
    }

    #[inline]
    fn put(&mut self, part: usize, at: usize, slot: Slot) {
        self.slots += self.row.parts[part].put(at, slot);
        self.len += 1;
    }

    /// Removes the place of a name. True when it was there.
    pub fn remove(&mut self, name: u64, is_it: impl Fn(Place) -> bool) -> bool {
        let hash = hash_of(name);
        let part = self.row.part_of(hash);
        let Some(at) = self.row.parts[part].find(hash, is_it) else { return false };
        self.row.parts[part].remove(at);
        self.len -= 1;
        if self.row.parts[part].is_sparse() {
            self.resize(part, self.row.parts[part].len * 3 / 2);
        }
        if self.row.parts.len() > 1 && self.len * 3 < self.row.parts.len() * NAMES_EACH {
            self.join();
        }
        true
    }

    /// The table of a hash, with room for one more. Tables grow beyond four fifths full, by a third: 10 to 13 bytes a
    /// name.
    #[inline]
    fn make_room(&mut self, hash: u32) -> usize {
        if self.len >= self.row.parts.len() * NAMES_EACH {
            self.split();
        }
        let part = self.row.part_of(hash);
        let table = &self.row.parts[part];
        if (table.len + 1) * 5 > table.homes * 4 {
            self.resize(part, table.homes + table.homes / 3);
        }
        part
    }

    fn resize(&mut self, part: usize, homes: usize) {
        let before = self.row.parts[part].slots.capacity();
        self.row.parts[part].resize(homes);
        self.slots = self.slots + self.row.parts[part].slots.capacity() - before;
    }

    /// Splits one table in two.
    #[inline(never)]
    fn split(&mut self) {
        let (part, bit) = self.row.next_split();
        let old = std::mem::take(&mut self.row.parts[part]);
        let halves = old.split(bit);
        self.slots -= old.slots.capacity();
        self.slots += halves.iter().map(|half| half.slots.capacity()).sum::<usize>();
        let [low, high] = halves;
        self.row.parts[part] = low;
        self.row.parts.push(high);
    }

    /// Joins the last table with the one it was split from.
    #[inline(never)]
    fn join(&mut self) {
        let origin = self.row.origin_of_last();
        let last = self.row.parts.pop().unwrap_or_default();
        let before = last.slots.capacity() + self.row.parts[origin].slots.capacity();
        let both = self.row.parts[origin].slots.iter().chain(&last.slots);
        let mut slots: Vec<Slot> = both.filter(|&&slot| slot != EMPTY).copied().collect();
        slots.sort_unstable();
        let table = Table::of(slots.len() * 3 / 2, &slots);
        self.slots = self.slots + table.slots.capacity() - before;
        self.row.parts[origin] = table;
        if self.row.parts.len() * 4 < self.row.parts.capacity() {
            self.row.parts.shrink_to(self.row.parts.len() * 2);
        }
    }
}

/// Some of the slots, sorted by hash, with gaps: a slot lies at its home or after it, and nothing empty lies in between.
#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    /// Homes; some more slots follow for those that the last homes have no room for.
    homes: usize,
    len: usize,
}

const HOMES_MIN: usize = 16;

/// Slots beyond the last home. A longer run than this makes the table grow.
fn margin(homes: usize) -> usize {
    (homes / 16).clamp(4, 32)
}

impl Table {
    fn with_homes(homes: usize) -> Table {
        let homes = homes.max(HOMES_MIN);
        Table { slots: vec![EMPTY; homes + margin(homes)], homes, len: 0 }
    }

    /// A table of these slots, which come in order.
    fn of(homes: usize, slots: &[Slot]) -> Table {
        let mut table = Table::with_homes(homes);
        let mut free = 0;
        slots.iter().for_each(|&slot| free = table.append(slot, free));
        table
    }

    /// Where a hash belongs. It grows with the hash, so the order of slots is the order of hashes.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.homes as u64) >> 32) as usize
    }

    /// The first slot from a hash's home on that is empty or has this hash or a greater one.
    #[inline]
    fn seek(&self, hash: u32) -> usize {
        let (from, least) = (self.home(hash), u64::from(hash) << 32);
        let run = self.slots[from..].iter().take_while(|&&slot| slot != EMPTY && slot < least);
        from + run.count()
    }

    /// The first slot of this hash that `is_it` agrees to.
    #[inline]
    fn find(&self, hash: u32, is_it: impl Fn(Place) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let from = self.seek(hash);
        let mut run = self.slots[from..].iter().take_while(|&&slot| slot != EMPTY && hash_in(slot) == hash);
        run.position(|&slot| is_it(Place(slot as u32))).map(|step| from + step)
    }

    /// Puts a slot at `at`, moving those that follow by one. Returns how many slots that added to the allocation.
    #[inline]
    fn put(&mut self, at: usize, mut slot: Slot) -> usize {
        self.len += 1;
        for here in &mut self.slots[at..] {
            std::mem::swap(here, &mut slot);
            if slot == EMPTY {
                return 0;
            }
        }
        // The run at the very end is too long for the margin.
        let before = self.slots.capacity();
        self.slots.push(slot);
        self.slots.capacity() - before
    }

    /// Takes a slot out, moving those back that are not at home.
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

    /// Moves everything to another number of homes, in one pass: the slots come in order and go in order.
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

    /// Two tables: by one bit of the hash.
    fn split(&self, bit: u32) -> [Table; 2] {
        let mut halves = [Table::with_homes(self.len * 3 / 4), Table::with_homes(self.len * 3 / 4)];
        let mut free = [0; 2];
        for &slot in &self.slots {
            let half = (hash_in(slot) >> bit & 1) as usize;
            free[half] = halves[half].append(slot, free[half]);
        }
        halves
    }

    /// Adds a slot that comes after all others, the first place that is free being `free`. An empty one is written too,
    /// over nothing, and changes nothing else: which slots are empty can not be foretold, and a branch that is guessed
    /// wrong costs more than the writing.
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

    #[test]
    fn a_place_is_a_node_and_an_offset() {
        let place = Place::new((NODES_MAX - 1) as NodeId, 63);
        assert_eq!((place.node(), place.offset()), ((NODES_MAX - 1) as NodeId, 63));
    }

    /// Against a set, through growth, splits, joins and shrinking, with names that share places.
    #[test]
    fn behaves_like_a_set_of_pairs_under_churn() {
        for names in [50, 3_000, 40_000] {
            let mut table = Places::default();
            let mut model = BTreeSet::new();
            let mut state = 1u64;
            for step in 0..400_000u64 {
                state = mix(state.wrapping_add(step));
                let name = state % names;
                // The place says the name, so that a place found is the name's own.
                let place = Place::new(1 + name as u32 * 4 + (state >> 40) as u32 % 4, 0);
                let grows = (step / 50_000) % 2 == 0;
                if state >> 60 < if grows { 13 } else { 4 } {
                    if model.insert((name, place.0)) {
                        table.insert(name, place);
                    }
                } else {
                    let was_there = table.remove(name, |at| at == place);
                    assert_eq!(was_there, model.remove(&(name, place.0)));
                }
                assert_eq!(table.len(), model.len());
            }
            for name in 0..names {
                for node in 0..4 {
                    let place = Place::new(1 + name as u32 * 4 + node, 0);
                    let found = table.find(name, |at| at == place);
                    assert_eq!(found.is_some(), model.contains(&(name, place.0)));
                }
            }
        }
    }

    #[test]
    fn memory_follows_the_number_of_names() {
        let mut table = Places::default();
        for name in 0..100_000 {
            table.insert(name, Place::new(1, 0));
        }
        assert!(table.allocated() <= 100_000 * 14, "{}", table.allocated());
        for name in 0..99_990 {
            assert!(table.remove(name, |_| true));
        }
        assert!(table.allocated() < 2_000, "{}", table.allocated());
        assert_eq!((99_990..100_000).filter(|&name| table.find(name, |_| true).is_some()).count(), 10);
    }
}
