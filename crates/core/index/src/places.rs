//! From a name to the place of its span: an open-addressing table of 8 bytes a slot.
//!
//! A slot is 32 bits of the name's hash and a 32-bit place; the full name lies beside the span in its node, where a
//! probable match is checked (or in the slot, for names that no node carries). Slots are kept in the order of their
//! hashes, so growing is one sequential pass over memory, any capacity will do, and removal shifts back instead of
//! leaving tombs: churn leaves no trace.

use crate::digest::mix;
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

#[derive(Clone, Copy)]
struct Slot<K> {
    hash: u32,
    /// Zero for an empty slot.
    place: u32,
    key: K,
}

/// Names to places. `K` is what is kept in each slot beside the place: nothing, or the whole name.
pub(crate) struct Places<K> {
    /// Sorted by hash, with gaps: a slot lies at its home or after it, and nothing empty lies in between.
    slots: Vec<Slot<K>>,
    /// Homes; some more slots follow for those that the last homes have no room for.
    homes: usize,
    len: usize,
}

const HOMES_MIN: usize = 16;
/// Tables of fewer homes than this double when they grow.
const SMALL: usize = 1 << 14;
/// Slots beyond the last home. A longer run than this makes the table grow.
const MARGIN: usize = 64;

impl<K> Default for Places<K> {
    fn default() -> Places<K> {
        Places { slots: Vec::new(), homes: 0, len: 0 }
    }
}

#[inline]
fn hash_of(name: u64) -> u32 {
    (mix(name) >> 32) as u32
}

impl<K: Copy + Default> Places<K> {
    const VACANT: fn() -> Slot<K> = || Slot { hash: 0, place: 0, key: K::default() };

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn allocated(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<K>>()
    }

    /// Brings a name's slot into the cache.
    #[inline]
    pub fn prefetch(&self, name: u64) {
        if let Some(slot) = self.slots.get(self.home(hash_of(name))) {
            prefetch::line(slot);
        }
    }

    /// Where a hash belongs. It grows with the hash, so the order of slots is the order of hashes.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.homes as u64) >> 32) as usize
    }

    /// The first slot from a hash's home on that is empty or has this hash or a greater one.
    #[inline]
    fn seek(&self, hash: u32) -> usize {
        let from = self.home(hash);
        let run = self.slots[from..].iter().take_while(|slot| slot.place != 0 && slot.hash < hash);
        from + run.count()
    }

    /// The first place of this name that `is_it` agrees to.
    #[inline]
    pub fn find(&self, name: u64, is_it: impl Fn(Place, K) -> bool) -> Option<Place> {
        self.slot(name, is_it).map(|at| Place(self.slots[at].place))
    }

    #[inline]
    fn slot(&self, name: u64, is_it: impl Fn(Place, K) -> bool) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let hash = hash_of(name);
        let mut at = self.seek(hash);
        while let Some(slot) = self.slots.get(at)
            && slot.place != 0
            && slot.hash == hash
        {
            if is_it(Place(slot.place), slot.key) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// Adds a place for a name; one that is already there stays.
    pub fn insert(&mut self, name: u64, place: Place, key: K) {
        self.make_room(1);
        let hash = hash_of(name);
        self.put(self.seek(hash), Slot { hash, place: place.0, key });
    }

    /// Adds a place for a name, unless the table may know that name already. There is room: see
    /// [`Places::make_room`].
    #[inline]
    pub fn insert_new(&mut self, name: u64, place: Place, key: K) -> bool {
        let hash = hash_of(name);
        let at = self.seek(hash);
        let is_new = self.slots.get(at).is_none_or(|slot| slot.place == 0 || slot.hash != hash);
        if is_new {
            self.put(at, Slot { hash, place: place.0, key });
        }
        is_new
    }

    /// Puts a slot at `at`, moving those that follow by one.
    #[inline]
    fn put(&mut self, mut at: usize, mut slot: Slot<K>) {
        while let Some(here) = self.slots.get_mut(at) {
            std::mem::swap(here, &mut slot);
            if slot.place == 0 {
                self.len += 1;
                return;
            }
            at += 1;
        }
        // The run at the very end is too long: spread it over more homes. What was moved is in order, but for `slot`.
        self.resize(self.homes + self.homes / 4 + 1);
        self.put(self.seek(slot.hash), slot);
    }

    /// Removes the place of a name. True when it was there.
    pub fn remove(&mut self, name: u64, is_it: impl Fn(Place, K) -> bool) -> bool {
        let Some(mut at) = self.slot(name, is_it) else { return false };
        while let Some(&next) = self.slots.get(at + 1)
            && next.place != 0
            && self.home(next.hash) <= at
        {
            self.slots[at] = next;
            at += 1;
        }
        self.slots[at] = Self::VACANT();
        self.len -= 1;
        if self.homes > HOMES_MIN && self.len * 3 < self.homes {
            self.resize((self.len + self.len / 2).max(HOMES_MIN));
        }
        true
    }

    /// Keeps the places that `keep` agrees to.
    pub fn retain(&mut self, mut keep: impl FnMut(Place, K) -> bool) {
        for slot in &mut self.slots {
            if slot.place != 0 && !keep(Place(slot.place), slot.key) {
                slot.place = 0;
                self.len -= 1;
            }
        }
        self.resize((self.len + self.len / 2).max(HOMES_MIN));
    }

    /// Makes room for some more names. Grows beyond five sixths full: by two fifths, which makes 10 to 13 bytes per
    /// name where no key is kept, and twofold while that is little memory anyway.
    #[inline]
    pub fn make_room(&mut self, more: usize) {
        if (self.len + more) * 6 > self.homes * 5 {
            let enough = (self.len + more) * 6 / 5 + 1;
            let more = if self.homes < SMALL { self.homes } else { self.homes * 2 / 5 };
            self.resize((self.homes + more).max(enough).max(HOMES_MIN));
        }
    }

    /// One pass: the slots come in order and go in order.
    fn resize(&mut self, homes: usize) {
        self.homes = homes;
        let slots = std::mem::replace(&mut self.slots, vec![Self::VACANT(); homes + MARGIN]);
        let mut free = 0;
        for slot in slots.into_iter().filter(|slot| slot.place != 0) {
            let at = self.home(slot.hash).max(free);
            if at >= self.slots.len() {
                self.slots.resize(at + MARGIN, Self::VACANT());
            }
            self.slots[at] = slot;
            free = at + 1;
        }
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

    /// A keyed table against a set, through growth and shrinking, with names that share places.
    #[test]
    fn behaves_like_a_set_of_pairs_under_churn() {
        let mut table = Places::<u64>::default();
        let mut model = BTreeSet::new();
        let mut state = 1u64;
        for step in 0..200_000u64 {
            state = mix(state.wrapping_add(step));
            let name = state % 3_000;
            let place = Place::new(1 + (state >> 40) as u32 % 4, 0);
            let grows = (step / 20_000) % 2 == 0;
            if state >> 60 < if grows { 11 } else { 5 } {
                if model.insert((name, place.0)) {
                    table.insert(name, place, name);
                }
            } else {
                let was_there = table.remove(name, |at, key| key == name && at == place);
                assert_eq!(was_there, model.remove(&(name, place.0)));
            }
            assert_eq!(table.len(), model.len());
        }
        for name in 0..3_000 {
            for node in 1..5 {
                let place = Place::new(node, 0);
                let found = table.find(name, |at, key| key == name && at == place);
                assert_eq!(found.is_some(), model.contains(&(name, place.0)));
            }
        }
    }

    #[test]
    fn memory_follows_the_number_of_names() {
        let mut table = Places::<()>::default();
        for name in 0..100_000 {
            table.insert(name, Place::new(1, 0), ());
        }
        assert!(table.allocated() <= 100_000 * 13, "{}", table.allocated());
        for name in 0..99_990 {
            assert!(table.remove(name, |_, ()| true));
        }
        assert!(table.allocated() < 2_000, "{}", table.allocated());
        assert_eq!((99_990..100_000).filter(|&name| table.find(name, |_, ()| true).is_some()).count(), 10);
    }
}
