//! The index's table of names beside hashbrown's: `cargo run --release --bin tables`.
//!
//! Figures are CPU nanoseconds per name, as the median of five rounds in which the tables take turns, with the least and the
//! greatest; and live bytes per name. A found name is compared where its span would be, as in the index.

#![allow(dead_code, reason = "the index's own files have more than is measured here")]

#[path = "../clock.rs"]
mod clock;
#[path = "../heap.rs"]
mod heap;
#[path = "../../../../crates/core/index/src/name_table.rs"]
mod name_table;
#[path = "../../../../crates/core/index/src/number_map.rs"]
mod number_map;
#[path = "../../../../crates/core/index/src/prefetch.rs"]
mod prefetch;
#[path = "../spread.rs"]
mod spread;

/// What the index's files import from its other modules.
mod digest {
    pub fn mix(word: u64) -> u64 {
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
mod node {
    pub type NodeId = u32;
}

use clock::timed;
use digest::mix;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use name_table::{NameTable, SpanAddress};
use number_map::Partitions;
use spread::Spread;

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const ROUNDS: usize = 5;
/// The first address: node 1.
const FIRST: u32 = 64;
/// How many names ahead the index prefetches.
const AHEAD: usize = 8;

trait Table {
    const LABEL: &str;
    fn prefetch(&self, _name: u64) {}
    fn insert(&mut self, name: u64, address: u32, names: &[u64]);
    fn find(&self, name: u64, names: &[u64]) -> bool;
    fn remove(&mut self, name: u64, address: u32, names: &[u64]);
}

fn span(address: u32) -> SpanAddress {
    SpanAddress::new(address / 64, (address % 64) as usize)
}

fn number(address: SpanAddress) -> usize {
    address.node() as usize * 64 + address.offset()
}

impl Table for NameTable {
    const LABEL: &str = "the index's";

    fn prefetch(&self, name: u64) {
        NameTable::prefetch(self, name);
    }

    fn insert(&mut self, name: u64, address: u32, _: &[u64]) {
        self.insert_new(name, span(address));
    }

    fn find(&self, name: u64, names: &[u64]) -> bool {
        NameTable::find(self, name, |address| names[number(address)] == name).is_some()
    }

    fn remove(&mut self, name: u64, address: u32, _: &[u64]) {
        NameTable::remove(self, name, |other| other == span(address));
    }
}

/// Entries as in the index's table, 32 bits of hash and an address, in small tables that are split one at a time.
struct Split {
    partitions: Partitions<HashTable<u64>>,
    len: usize,
}

const NAMES_EACH: usize = 672;

fn hash_of(name: u64) -> u32 {
    (mix(name) >> 32) as u32
}

fn rehash(entry: &u64) -> u64 {
    let word = (entry >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 32)
}

impl Split {
    fn split(&mut self) {
        let (part, bit) = self.partitions.next_split();
        let old = std::mem::take(&mut self.partitions.parts[part]);
        let mut halves = [(); 2].map(|()| HashTable::with_capacity(old.len() / 2));
        for entry in old {
            halves[(entry >> 32 >> bit & 1) as usize].insert_unique(rehash(&entry), entry, rehash);
        }
        let [low, high] = halves;
        self.partitions.parts[part] = low;
        self.partitions.parts.push(high);
    }
}

impl Table for Split {
    const LABEL: &str = "HashTable<u64>, split one at a time";

    fn insert(&mut self, name: u64, address: u32, _: &[u64]) {
        if self.len >= self.partitions.parts.len() * NAMES_EACH {
            self.split();
        }
        let entry = u64::from(hash_of(name)) << 32 | u64::from(address);
        let part = self.partitions.part_of(hash_of(name));
        let is_same = |other: &u64| other >> 32 == entry >> 32;
        if let Entry::Vacant(free) = self.partitions.parts[part].entry(rehash(&entry), is_same, rehash) {
            free.insert(entry);
            self.len += 1;
        }
    }

    fn find(&self, name: u64, names: &[u64]) -> bool {
        let hash = u64::from(hash_of(name));
        let is_it = |entry: &u64| entry >> 32 == hash && names[*entry as u32 as usize] == name;
        let table = &self.partitions.parts[self.partitions.part_of(hash as u32)];
        table.find(rehash(&(hash << 32)), is_it).is_some()
    }

    fn remove(&mut self, name: u64, address: u32, _: &[u64]) {
        let entry = u64::from(hash_of(name)) << 32 | u64::from(address);
        let part = self.partitions.part_of(hash_of(name));
        let table = &mut self.partitions.parts[part];
        if let Ok(found) = table.find_entry(rehash(&entry), |other| *other == entry) {
            found.remove();
            self.len -= 1;
            if table.len() * 4 < table.num_buckets() {
                table.shrink_to(table.len() * 3 / 2, rehash);
            }
        }
    }
}

/// Addresses alone in 1,024 tables. A table that grows reads each of its names where the span is.
struct Sharded(Vec<HashTable<u32>>);

impl Sharded {
    fn shard(hash: u64) -> usize {
        (hash >> 32) as usize & 1_023
    }
}

impl Table for Sharded {
    const LABEL: &str = "HashTable<u32>, 1,024 shards";

    fn insert(&mut self, name: u64, address: u32, names: &[u64]) {
        let (hash, named) = (mix(name), |address: &u32| names[*address as usize]);
        let table = &mut self.0[Sharded::shard(hash)];
        if let Entry::Vacant(free) = table.entry(hash, |other| named(other) == name, |other| mix(named(other))) {
            free.insert(address);
        }
    }

    fn find(&self, name: u64, names: &[u64]) -> bool {
        let hash = mix(name);
        self.0[Sharded::shard(hash)].find(hash, |address| names[*address as usize] == name).is_some()
    }

    fn remove(&mut self, name: u64, address: u32, names: &[u64]) {
        let hash = mix(name);
        let table = &mut self.0[Sharded::shard(hash)];
        if let Ok(found) = table.find_entry(hash, |other| *other == address) {
            found.remove();
            if table.len() * 4 < table.num_buckets() {
                table.shrink_to(table.len() * 3 / 2, |other| mix(names[*other as usize]));
            }
        }
    }
}

/// Nanoseconds per insertion, search and removal, and bytes, all per name.
fn measure<T: Table>(mut table: T, names: &[u64], order: &[u32], before: isize) -> [f64; 4] {
    let count = order.len() as f64;
    let ((), inserted) = timed(|| {
        for address in FIRST..names.len() as u32 {
            names.get(address as usize + AHEAD).into_iter().for_each(|soon| table.prefetch(*soon));
            table.insert(names[address as usize], address, names);
        }
    });
    let bytes = heap::live_bytes() - before;
    let (found, searched) = timed(|| {
        let search = |(at, address): (usize, &u32)| {
            order.get(at + AHEAD).into_iter().for_each(|soon| table.prefetch(names[*soon as usize]));
            table.find(names[*address as usize], names)
        };
        order.iter().enumerate().map(search).filter(|is_found| *is_found).count()
    });
    // A few names in ten million share 32 bits of their hashes, and the first one stays alone.
    assert!(found as f64 >= count * 0.99, "{found}");
    let ((), removed) = timed(|| {
        for (at, address) in order.iter().enumerate() {
            order.get(at + AHEAD).into_iter().for_each(|soon| table.prefetch(names[*soon as usize]));
            table.remove(names[*address as usize], *address, names);
        }
    });
    [inserted as f64 / count, searched as f64 / count, removed as f64 / count, bytes as f64 / count]
}

fn print(label: &str, rounds: &[[f64; 4]]) {
    let column = |at: usize| Spread::of(rounds.iter().map(|figures| figures[at]));
    println!("| {label} | {} | {} | {} | {:.1} |", column(0), column(1), column(2), column(3).median);
}

fn main() {
    for count in [1_000_000, 10_000_000] {
        let names: Vec<u64> = (0..count + u64::from(FIRST)).map(|at| mix(at * 2 + 1)).collect();
        let mut order: Vec<u32> = (FIRST..names.len() as u32).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, (mix(at as u64) % (at as u64 + 1)) as usize));
        let mut rounds = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            let before = heap::live_bytes();
            rounds[0].push(measure(NameTable::default(), &names, &order, before));
            let split = Split { partitions: Partitions { parts: vec![HashTable::new()] }, len: 0 };
            rounds[1].push(measure(split, &names, &order, before));
            let sharded = Sharded((0..1_024).map(|_| HashTable::new()).collect());
            rounds[2].push(measure(sharded, &names, &order, before));
        }
        println!("{count} names\n\n| table | insert ns | find ns | remove ns | bytes a name |\n|---|---|---|---|---|");
        let labels = [NameTable::LABEL, Split::LABEL, Sharded::LABEL];
        labels.iter().zip(&rounds).for_each(|(label, rounds)| print(label, rounds));
        println!();
    }
}
