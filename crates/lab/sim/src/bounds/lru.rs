//! One LRU cache as large as all engines' together. Of one request's blocks, the last are evicted first.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::access::Access;
use crate::directory::AlreadyHashed;

/// Prompt blocks that each request finds.
pub fn hits(accesses: &[Access], capacity: usize) -> Vec<u32> {
    let mut cache = Lru::new();
    accesses
        .iter()
        .map(|access| {
            let prompt = access.chain[..access.usable as usize].iter();
            let found = prompt.take_while(|name| cache.places.contains_key(&name.0)).count();
            access.chain.iter().rev().for_each(|name| cache.touch(name.0));
            cache.shrink(capacity);
            found as u32
        })
        .collect()
}

/// A ring of names, oldest first, with a sentinel at index 0.
struct Lru {
    places: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>,
    ring: Vec<Link>,
    vacant: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Link {
    name: u64,
    before: u32,
    after: u32,
}

impl Lru {
    fn new() -> Lru {
        let post = Link { name: 0, before: 0, after: 0 };
        Lru { places: HashMap::default(), ring: vec![post], vacant: Vec::new() }
    }

    fn touch(&mut self, name: u64) {
        let place = match self.places.get(&name) {
            Some(&place) => {
                self.unlink(place);
                place
            }
            None => self.add(name),
        };
        let newest = self.ring[0].before;
        self.ring[place as usize] = Link { name, before: newest, after: 0 };
        self.ring[newest as usize].after = place;
        self.ring[0].before = place;
    }

    fn add(&mut self, name: u64) -> u32 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.ring.push(Link { name, before: 0, after: 0 });
            (self.ring.len() - 1) as u32
        });
        self.places.insert(name, place);
        place
    }

    fn unlink(&mut self, place: u32) {
        let Link { before, after, .. } = self.ring[place as usize];
        self.ring[before as usize].after = after;
        self.ring[after as usize].before = before;
    }

    fn shrink(&mut self, capacity: usize) {
        while self.places.len() > capacity {
            let oldest = self.ring[0].after;
            self.unlink(oldest);
            self.places.remove(&self.ring[oldest as usize].name);
            self.vacant.push(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::belady::tests::access;
    use super::*;

    #[test]
    fn the_oldest_block_is_evicted_and_of_one_request_the_last() {
        let accesses = [access(&[1, 2]), access(&[3]), access(&[1, 2]), access(&[3])];
        assert_eq!(hits(&accesses, 3), [0, 0, 2, 1]);
        assert_eq!(hits(&accesses, 2), [0, 0, 1, 0], "3 pushed 2 out, then 1 and 2 pushed 3 out");
        assert_eq!(hits(&accesses, 1), [0, 0, 0, 0]);
    }
}
