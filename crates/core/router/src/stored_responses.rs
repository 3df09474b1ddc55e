//! Which worker stores which response or conversation, and for whom.
//!
//! Engines keep what clients store in the memory of one process. A request that names a stored object must reach that
//! process, and only with the key that made the object. Identifiers are hashes here. Above the limit the owner with the
//! most entries loses the one that was used least recently: one tenant's responses do not push out another's.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use warmroute_peers::StoredResponse;
use warmroute_types::Packed;

/// Entries that are kept. With the order of use one takes about 150 bytes.
pub(crate) const STORED_MAX: usize = 262_144;

/// Encoded bytes of an entry.
const ENTRY_BYTES: usize = 32;

/// Places of stored objects by the hash of their identifier.
#[derive(Default)]
pub(crate) struct StoredResponses(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// With the number of their last use.
    places: BTreeMap<u128, (u64, StoredResponse)>,
    /// Identifiers of each owner by their last use.
    owners: BTreeMap<u64, BTreeMap<u64, u128>>,
    /// Owners by the number of their entries.
    sizes: BTreeSet<(usize, u64)>,
    next: u64,
}

impl Entries {
    fn insert(&mut self, id: u128, stored: StoredResponse) {
        let number = self.next;
        self.next += 1;
        self.places.insert(id, (number, stored));
        self.change_owner(stored.owner, |uses| _ = uses.insert(number, id));
    }

    fn remove(&mut self, id: u128) -> Option<StoredResponse> {
        let (number, stored) = self.places.remove(&id)?;
        self.change_owner(stored.owner, |uses| _ = uses.remove(&number));
        Some(stored)
    }

    /// The entry to drop for a new one.
    fn least_deserving(&self) -> Option<u128> {
        let (_, owner) = self.sizes.last()?;
        self.owners.get(owner)?.values().next().copied()
    }

    fn change_owner(&mut self, owner: u64, change: impl FnOnce(&mut BTreeMap<u64, u128>)) {
        let uses = self.owners.entry(owner).or_default();
        self.sizes.remove(&(uses.len(), owner));
        change(uses);
        match uses.len() {
            0 => _ = self.owners.remove(&owner),
            len => _ = self.sizes.insert((len, owner)),
        }
    }
}

impl StoredResponses {
    /// Notes where an object is stored. An identifier stays with its first owner: engines draw them at random, so an
    /// equal one was chosen by a client. Returns whether anything is new.
    pub fn learn(&self, id: u128, stored: StoredResponse) -> bool {
        let mut entries = self.0.lock();
        if entries.places.contains_key(&id) {
            return false;
        }
        entries.insert(id, stored);
        if entries.places.len() > STORED_MAX
            && let Some(id) = entries.least_deserving()
        {
            entries.remove(id);
        }
        true
    }

    /// Where an object is stored. It is in use, and is kept longer than others.
    pub fn find(&self, id: u128) -> Option<StoredResponse> {
        let mut entries = self.0.lock();
        let stored = entries.remove(id)?;
        entries.insert(id, stored);
        Some(stored)
    }

    /// Number of known objects.
    pub fn len(&self) -> usize {
        self.0.lock().places.len()
    }

    /// All entries, the least recently used first.
    pub fn all(&self) -> Vec<(u128, StoredResponse)> {
        let entries = self.0.lock();
        let mut all: Vec<_> =
            entries.places.iter().map(|(id, (number, stored))| (*number, *id, *stored)).collect();
        drop(entries);
        all.sort_unstable_by_key(|(number, ..)| *number);
        all.into_iter().map(|(_, id, stored)| (id, stored)).collect()
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
    fn what_is_used_is_kept_and_one_tenant_drops_nothing_of_another() {
        let known = StoredResponses::default();
        known.learn(1, stored(1));
        known.learn(2, stored(2));
        for id in 10..(STORED_MAX as u128 + 1_000) {
            known.learn(id, stored(2));
            known.find(2);
        }
        assert_eq!(known.len(), STORED_MAX);
        assert_eq!((known.find(1), known.find(2)), (Some(stored(1)), Some(stored(2))));
        assert_eq!(known.find(10), None, "the greedy tenant's own");
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
