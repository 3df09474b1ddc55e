//! Which worker stores which response or conversation, and for whom.
//!
//! Engines keep what clients store in the memory of one process. A request that names a stored object must reach that
//! process, and only with the key that made the object. Identifiers are hashes here. Above the limit the oldest entries
//! are dropped: a conversation that goes on gets new identifiers with each response, so the order of creation is the
//! order of use.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use warmroute_peers::StoredResponse;
use warmroute_types::Packed;

/// Entries that are kept. With the order of creation one takes about 150 bytes.
pub(crate) const STORED_MAX: usize = 262_144;

/// Encoded bytes of an entry.
const ENTRY_BYTES: usize = 32;

/// Places of stored objects by the hash of their identifier.
#[derive(Default)]
pub(crate) struct StoredResponses(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    places: BTreeMap<u128, (u64, StoredResponse)>,
    /// Identifiers in the order of their creation.
    order: BTreeMap<u64, u128>,
    next: u64,
}

impl StoredResponses {
    /// Notes where an object is stored. An identifier stays with its first owner: engines draw them at random, so an
    /// equal one was chosen by a client. Returns whether anything is new.
    pub fn learn(&self, id: u128, stored: StoredResponse) -> bool {
        let mut entries = self.0.lock();
        if entries.places.contains_key(&id) {
            return false;
        }
        let number = entries.next;
        entries.next += 1;
        entries.places.insert(id, (number, stored));
        entries.order.insert(number, id);
        if entries.places.len() > STORED_MAX
            && let Some((_, oldest)) = entries.order.pop_first()
        {
            entries.places.remove(&oldest);
        }
        true
    }

    /// Where an object is stored.
    pub fn find(&self, id: u128) -> Option<StoredResponse> {
        self.0.lock().places.get(&id).map(|(_, stored)| *stored)
    }

    /// Number of known objects.
    pub fn len(&self) -> usize {
        self.0.lock().places.len()
    }

    /// All entries, oldest first.
    pub fn all(&self) -> Vec<(u128, StoredResponse)> {
        let entries = self.0.lock();
        entries.order.values().map(|id| (*id, entries.places[id].1)).collect()
    }
}

/// Encodes entries for the saved state.
pub(crate) fn encode(entries: &[(u128, StoredResponse)], out: &mut Vec<u8>) {
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for (id, StoredResponse { owner, worker }) in entries {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&owner.to_le_bytes());
        out.extend_from_slice(&worker.to_le_bytes());
    }
}

/// Decodes the output of [`encode`].
pub(crate) fn decode(packed: &mut Packed<'_>) -> Option<Vec<(u128, StoredResponse)>> {
    let count = packed.count(ENTRY_BYTES).filter(|&count| count <= STORED_MAX)?;
    let mut one = || {
        let (low, high) = (packed.u64()?, packed.u64()?);
        let id = u128::from(high) << 64 | u128::from(low);
        Some((id, StoredResponse { owner: packed.u64()?, worker: packed.u64()? }))
    };
    (0..count).map(|_| one()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(owner: u64) -> StoredResponse {
        StoredResponse { owner, worker: 7 }
    }

    #[test]
    fn an_identifier_stays_with_its_first_owner() {
        let known = StoredResponses::default();
        assert!(known.learn(1, stored(1)) && !known.learn(1, stored(2)));
        assert_eq!((known.find(1), known.find(2)), (Some(stored(1)), None));
    }

    #[test]
    fn the_oldest_are_dropped_above_the_limit() {
        let known = StoredResponses::default();
        let extra = 10;
        (0..(STORED_MAX + extra) as u128).for_each(|id| _ = known.learn(id, stored(1)));
        assert_eq!(known.len(), STORED_MAX);
        assert_eq!((known.find(extra as u128 - 1), known.find(extra as u128)), (None, Some(stored(1))));
    }

    #[test]
    fn entries_survive_encoding_in_their_order() {
        let known = StoredResponses::default();
        [u128::MAX, 3, 5].into_iter().for_each(|id| _ = known.learn(id, stored(id as u64)));
        let mut bytes = Vec::new();
        encode(&known.all(), &mut bytes);
        assert_eq!(decode(&mut Packed(&bytes)), Some(known.all()));
        assert_eq!(known.all()[0].0, u128::MAX);
        assert_eq!(decode(&mut Packed(&bytes[..bytes.len() - 1])), None);
    }
}
