//! A hasher for keys that are numbers: one mix, where SipHash would cost more than the lookup it serves.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::digest::mix;

/// A map whose keys are numbers or small tuples of them.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

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

/// What a map has allocated, near enough: a power of two of buckets at most seven eighths full, one control byte each.
pub(crate) fn allocated<K, V>(map: &NumberMap<K, V>) -> usize {
    match map.capacity() {
        0 => 0,
        capacity => {
            let buckets = (capacity * 8).div_ceil(7).next_power_of_two();
            buckets * (size_of::<(K, V)>() + 1) + 16
        }
    }
}

/// Gives memory back when a map has become much too large for what it holds.
pub(crate) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut NumberMap<K, V>) {
    if map.capacity() > 64 && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
