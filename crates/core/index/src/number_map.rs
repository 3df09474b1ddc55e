//! Hash maps with numeric keys that are never rebuilt as a whole.
//!
//! The hash is [`TableHash`], because SipHash would cost more than the lookup it serves. A map consists of small maps
//! that are split and joined one at a time (linear hashing): doubling a map of a million entries would hold the
//! writer's lock for tens of milliseconds.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use crate::table_hash::TableHash;

type Small<K, V> = HashMap<K, V, TableHash>;

/// Average entries in a small map before one is split. A split moves half of one: some tens of microseconds.
const ENTRIES_EACH: usize = 1_000;

/// A map whose keys are numbers or small tuples of them.
pub(crate) struct NumberMap<K, V> {
    hash: TableHash,
    partitions: Partitions<Part<K, V>>,
    len: usize,
    /// Bytes of the parts, as last counted.
    bytes: usize,
}

/// One small map, and its bytes as last counted.
struct Part<K, V> {
    map: Small<K, V>,
    counted_bytes: usize,
}

/// Parts of a table, selected by bits of a hash. One part at a time is split or joined.
pub(crate) struct Partitions<T> {
    pub parts: Vec<T>,
}

impl<T> Partitions<T> {
    /// Which part a hash belongs to.
    #[inline]
    pub fn part_of(&self, hash: u32) -> usize {
        let count = self.parts.len();
        if count == 1 {
            return 0;
        }
        let mask = count.next_power_of_two() - 1;
        let part = hash as usize & mask;
        if part < count { part } else { part & (mask >> 1) }
    }

    /// The part to split next, and the bit of a hash that chooses between its halves.
    pub fn next_split(&self) -> (usize, u32) {
        let count = self.parts.len();
        let level = usize::BITS - 1 - count.leading_zeros();
        (count - (1 << level), level)
    }

    /// The part that the last one was split from.
    pub fn origin_of_last(&self) -> usize {
        let last = self.parts.len() - 1;
        last & !(1 << (usize::BITS - 1 - last.leading_zeros()))
    }
}

impl<K: Copy + Eq + Hash, V> NumberMap<K, V> {
    pub fn new(hash: TableHash) -> NumberMap<K, V> {
        NumberMap { hash, partitions: Partitions { parts: Vec::new() }, len: 0, bytes: 0 }
    }

    /// The bits of a key's hash that choose the part; the small maps use the others.
    #[inline]
    fn hash_of(&self, key: &K) -> u32 {
        part_bits(self.hash, key)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn part(&self, key: &K) -> Option<&Small<K, V>> {
        (self.len > 0).then(|| &self.partitions.parts[self.partitions.part_of(self.hash_of(key))].map)
    }

    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.part(key)?.get(key)
    }

    #[inline]
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.len == 0 {
            return None;
        }
        let part = self.partitions.part_of(self.hash_of(key));
        self.partitions.parts[part].map.get_mut(key)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value of a key, inserted where it is missing.
    #[inline]
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.make_room();
        let at = self.partitions.part_of(self.hash_of(&key));
        self.recount_bytes(at);
        let len = &mut self.len;
        self.partitions.parts[at].map.entry(key).or_insert_with(|| {
            *len += 1;
            V::default()
        })
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.make_room();
        let at = self.partitions.part_of(self.hash_of(&key));
        let before = self.partitions.parts[at].map.insert(key, value);
        self.recount_bytes(at);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let at = self.partitions.part_of(self.hash_of(key));
        let map = &mut self.partitions.parts[at].map;
        let gone = map.remove(key)?;
        if map.capacity() > 16 && map.len() * 8 < map.capacity() {
            map.shrink_to(map.len() * 2);
        }
        self.recount_bytes(at);
        self.len -= 1;
        self.give_back();
        Some(gone)
    }

    fn recount_bytes(&mut self, at: usize) {
        let part = &mut self.partitions.parts[at];
        let before = std::mem::replace(&mut part.counted_bytes, bytes_of(&part.map));
        self.bytes = self.bytes + part.counted_bytes - before;
    }

    /// Any key, if there is one.
    pub fn any_key(&self) -> Option<K> {
        self.partitions.parts.iter().rev().find_map(|part| part.map.keys().next().copied())
    }

    /// Number of small maps. A join merges the last one into a lower one.
    pub fn parts(&self) -> usize {
        self.partitions.parts.len()
    }

    /// The keys of one small map, in no particular order.
    pub fn keys_in(&self, part: usize) -> impl Iterator<Item = K> {
        self.partitions.parts.get(part).into_iter().flat_map(|part| part.map.keys().copied())
    }

    /// Bytes allocated by the map, approximately.
    pub fn allocated(&self) -> usize {
        self.bytes + self.partitions.parts.capacity() * size_of::<Part<K, V>>()
    }

    fn make_room(&mut self) {
        if self.partitions.parts.is_empty() {
            self.partitions.parts.push(Part { map: Small::with_hasher(self.hash), counted_bytes: 0 });
        } else if self.len >= self.partitions.parts.len() * ENTRIES_EACH {
            let (at, bit) = self.partitions.next_split();
            let hash = self.hash;
            let moving =
                self.partitions.parts[at].map.extract_if(|key, _| part_bits(hash, key) >> bit & 1 == 1);
            let mut map = Small::with_hasher(hash);
            map.extend(moving);
            self.partitions.parts.push(Part { map, counted_bytes: 0 });
            self.recount_bytes(self.partitions.parts.len() - 1);
            self.recount_bytes(at);
        }
    }

    /// Joins the last part with the one it was split from, once both are small, and frees an empty map's memory.
    fn give_back(&mut self) {
        if self.len == 0 {
            *self = NumberMap::new(self.hash);
        } else if self.partitions.parts.len() > 1 && self.len * 3 < self.partitions.parts.len() * ENTRIES_EACH
        {
            let at = self.partitions.origin_of_last();
            if let Some(last) = self.partitions.parts.pop() {
                self.bytes -= last.counted_bytes;
                self.partitions.parts[at].map.extend(last.map);
            }
            self.recount_bytes(at);
        }
    }
}

/// The bits of a key's hash that choose the part.
#[inline]
fn part_bits<K: Hash>(hash: TableHash, key: &K) -> u32 {
    (hash.hash_one(key) >> 24) as u32
}

/// Bytes allocated by a small map, approximately: a power of two of buckets, at most seven eighths full, with a
/// control byte each.
fn bytes_of<K, V>(map: &Small<K, V>) -> usize {
    match map.capacity() {
        0 => 0,
        capacity => (capacity * 8).div_ceil(7).next_power_of_two() * (size_of::<(K, V)>() + 1) + 16,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use warmroute_types::mix;

    #[test]
    fn behaves_like_a_map_while_it_splits_and_joins() {
        let (mut map, mut model) = (NumberMap::<u64, u64>::new(TableHash::new(1)), BTreeMap::new());
        let mut state = 1u64;
        for step in 0..400_000u64 {
            state = mix(state.wrapping_add(step));
            let key = state % 60_000;
            let grows = (step / 50_000) % 2 == 0;
            if state >> 60 < if grows { 13 } else { 3 } {
                assert_eq!(map.insert(key, step), model.insert(key, step));
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
            assert_eq!(map.len(), model.len());
        }
        for key in 0..60_000 {
            assert_eq!(map.get(&key), model.get(&key));
        }
        while let Some(key) = map.any_key() {
            assert_eq!(map.remove(&key), model.remove(&key));
        }
        assert!(model.is_empty() && map.allocated() == 0);
    }

    #[test]
    fn no_part_grows_with_the_map() {
        let mut map = NumberMap::<u32, u64>::new(TableHash::new(1));
        for key in 0..200_000 {
            *map.get_or_default(key) += 1;
        }
        let largest = map.partitions.parts.iter().map(|part| part.map.len()).max();
        assert!(largest < Some(3 * ENTRIES_EACH), "{largest:?}");
        assert!(map.allocated() < 200_000 * 48, "{}", map.allocated());
    }
}
