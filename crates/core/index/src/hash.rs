//! Maps whose keys are numbers, and that never stop to rebuild themselves.
//!
//! One mix as the hash, where SipHash would cost more than the lookup it serves. A map is a row of small ones that
//! splits and joins one of them at a time (linear hashing), because a map of a million entries that doubles holds the
//! writer's lock for tens of milliseconds.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::digest::mix;

type Small<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Entries in a small map, on average, before one is split. A split moves half of one: some tens of microseconds.
const ENTRIES_EACH: usize = 1_000;

/// A map whose keys are numbers or small tuples of them.
pub(crate) struct NumberMap<K, V> {
    row: Row<Part<K, V>>,
    len: usize,
    /// Bytes of the parts, as they were last weighed.
    bytes: usize,
}

/// One of the small maps, and its bytes when they were last counted.
struct Part<K, V> {
    map: Small<K, V>,
    weighed: usize,
}

/// Parts of a table, numbered by bits of a hash, of which one at a time is split or joined.
pub(crate) struct Row<T> {
    pub parts: Vec<T>,
}

impl<T> Row<T> {
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

    /// The part that is split next, and the bit of a hash that says which half it goes to.
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

impl<K, V> Default for NumberMap<K, V> {
    fn default() -> NumberMap<K, V> {
        NumberMap { row: Row { parts: Vec::new() }, len: 0, bytes: 0 }
    }
}

/// The bits of a key's hash that choose the part; the small maps use the others.
#[inline]
fn hash_of<K: Hash>(key: &K) -> u32 {
    let mut hasher = NumberHasher::default();
    key.hash(&mut hasher);
    (hasher.finish() >> 24) as u32
}

impl<K: Copy + Eq + Hash, V> NumberMap<K, V> {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn part(&self, key: &K) -> Option<&Small<K, V>> {
        (self.len > 0).then(|| &self.row.parts[self.row.part_of(hash_of(key))].map)
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
        let part = self.row.part_of(hash_of(key));
        self.row.parts[part].map.get_mut(key)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value of a key, made where there is none.
    #[inline]
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.make_room();
        let at = self.row.part_of(hash_of(&key));
        self.weigh(at);
        let len = &mut self.len;
        self.row.parts[at].map.entry(key).or_insert_with(|| {
            *len += 1;
            V::default()
        })
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.make_room();
        let at = self.row.part_of(hash_of(&key));
        let before = self.row.parts[at].map.insert(key, value);
        self.weigh(at);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let at = self.row.part_of(hash_of(key));
        let map = &mut self.row.parts[at].map;
        let gone = map.remove(key)?;
        if map.capacity() > 16 && map.len() * 8 < map.capacity() {
            map.shrink_to(map.len() * 2);
        }
        self.weigh(at);
        self.len -= 1;
        self.give_back();
        Some(gone)
    }

    fn weigh(&mut self, at: usize) {
        let part = &mut self.row.parts[at];
        let before = std::mem::replace(&mut part.weighed, bytes_of(&part.map));
        self.bytes = self.bytes + part.weighed - before;
    }

    /// Some key, if there is one.
    pub fn any_key(&self) -> Option<K> {
        self.row.parts.iter().rev().find_map(|part| part.map.keys().next().copied())
    }

    /// The small maps that there are. Those with higher numbers are joined into lower ones.
    pub fn parts(&self) -> usize {
        self.row.parts.len()
    }

    /// The keys of one of them, in no order to rely on.
    pub fn keys_in(&self, part: usize) -> impl Iterator<Item = K> {
        self.row.parts.get(part).into_iter().flat_map(|part| part.map.keys().copied())
    }

    /// What the map has allocated, near enough.
    pub fn allocated(&self) -> usize {
        self.bytes + self.row.parts.capacity() * size_of::<Part<K, V>>()
    }

    fn make_room(&mut self) {
        if self.row.parts.is_empty() {
            self.row.parts.push(Part { map: Small::default(), weighed: 0 });
        } else if self.len >= self.row.parts.len() * ENTRIES_EACH {
            let (at, bit) = self.row.next_split();
            let map = self.row.parts[at].map.extract_if(|key, _| hash_of(key) >> bit & 1 == 1).collect();
            self.row.parts.push(Part { map, weighed: 0 });
            self.weigh(self.row.parts.len() - 1);
            self.weigh(at);
        }
    }

    /// Joins the last part with the one it was split from, once both are small; forgets an empty map's memory.
    fn give_back(&mut self) {
        if self.len == 0 {
            *self = NumberMap::default();
        } else if self.row.parts.len() > 1 && self.len * 3 < self.row.parts.len() * ENTRIES_EACH {
            let at = self.row.origin_of_last();
            if let Some(last) = self.row.parts.pop() {
                self.bytes -= last.weighed;
                self.row.parts[at].map.extend(last.map);
            }
            self.weigh(at);
        }
    }
}

/// What a small map has allocated, near enough: a power of two of buckets, at most seven eighths full, with a control
/// byte each.
fn bytes_of<K, V>(map: &Small<K, V>) -> usize {
    match map.capacity() {
        0 => 0,
        capacity => (capacity * 8).div_ceil(7).next_power_of_two() * (size_of::<(K, V)>() + 1) + 16,
    }
}

/// Mixes numbers into one.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0.wrapping_add(number).wrapping_add(0x9e37_79b9_7f4a_7c15));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn behaves_like_a_map_while_it_splits_and_joins() {
        let (mut map, mut model) = (NumberMap::<u64, u64>::default(), BTreeMap::new());
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
        let mut map = NumberMap::<u32, u64>::default();
        for key in 0..200_000 {
            *map.get_or_default(key) += 1;
        }
        let largest = map.row.parts.iter().map(|part| part.map.len()).max();
        assert!(largest < Some(3 * ENTRIES_EACH), "{largest:?}");
        assert!(map.allocated() < 200_000 * 48, "{}", map.allocated());
    }
}
