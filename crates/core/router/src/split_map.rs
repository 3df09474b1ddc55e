//! A hash map in many small tables. A table that grows is rehashed at once, and decisions wait meanwhile where the map is
//! locked: one table of millions of entries would take tens of milliseconds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash};

use warmroute_index::TableHash;

/// Number of tables. With four million entries, each has 16,384.
const TABLES: usize = 256;

/// The map. Its tables exist from the first entry on.
pub(crate) struct SplitMap<K, V> {
    tables: Vec<HashMap<K, V, TableHash>>,
    len: usize,
    hash: TableHash,
}

impl<K: Eq + Hash, V> SplitMap<K, V> {
    pub fn new(hash: TableHash) -> SplitMap<K, V> {
        SplitMap { tables: Vec::new(), len: 0, hash }
    }

    pub fn hash(&self) -> TableHash {
        self.hash
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the tables, about: the standard library's keep an eighth of their places free, and a byte beside each place.
    pub fn bytes(&self) -> usize {
        let places: usize = self.tables.iter().map(|table| table.capacity().div_ceil(7) * 8).sum();
        places * (size_of::<(K, V)>() + 1) + self.tables.capacity() * size_of::<HashMap<K, V, TableHash>>()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.tables.get(self.place(key))?.get(key)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place(key);
        self.tables.get_mut(place)?.get_mut(key)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value of a key, which is made if there is none.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let place = self.place(&key);
        self.open();
        match self.tables[place].entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.len += 1;
                new.insert(V::default())
            }
        }
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let place = self.place(&key);
        self.open();
        let former = self.tables[place].insert(key, value);
        self.len += usize::from(former.is_none());
        former
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place(key);
        let former = self.tables.get_mut(place)?.remove(key);
        self.len -= usize::from(former.is_some());
        former
    }

    /// The table of a key. Tables take other bits of the hash for their own places.
    fn place(&self, key: &K) -> usize {
        (self.hash.hash_one(key) >> 32) as usize % TABLES
    }

    fn open(&mut self) {
        if self.tables.is_empty() {
            self.tables.resize_with(TABLES, || HashMap::with_hasher(self.hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use warmroute_index::{Config, Index};

    proptest! {
        #[test]
        fn it_is_one_map(steps in prop::collection::vec((0..4_u8, 0..300_u64, any::<u32>()), 0..2_000)) {
            let mut split = SplitMap::new(Index::new(&Config::default()).table_hash());
            let mut one: HashMap<u64, u32> = HashMap::new();
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(split.insert(key, value), one.insert(key, value)),
                    1 => prop_assert_eq!(split.remove(&key), one.remove(&key)),
                    2 => prop_assert_eq!(split.or_default(key), one.entry(key).or_default()),
                    _ => prop_assert_eq!(split.get_mut(&key), one.get_mut(&key)),
                }
                prop_assert_eq!(split.get(&key), one.get(&key));
                prop_assert_eq!((split.len(), split.is_empty()), (one.len(), one.is_empty()));
                prop_assert_eq!(split.contains_key(&key), one.contains_key(&key));
            }
        }

        /// No table is much larger than the others, so none takes long to grow.
        #[test]
        fn entries_spread_over_the_tables(first in any::<u64>(), step in 1..1_000_u64) {
            let mut split = SplitMap::new(Index::new(&Config::default()).table_hash());
            (0..25_600_u64).for_each(|at| _ = split.insert(first.wrapping_add(at * step), ()));
            let largest = split.tables.iter().map(HashMap::len).max();
            prop_assert!(largest < Some(200), "{largest:?}");
        }
    }
}
