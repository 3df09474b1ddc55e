//! The leases of responses that engines compute in the background, see [`crate::background`].

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use warmroute_admission::Lease;
use warmroute_types::Micros;

/// Responses that are kept at most. Further ones are settled at once, by what was reserved.
const KEPT_MAX: usize = 1 << 16;

/// Responses that may still be computed.
#[derive(Default)]
pub(crate) struct BackgroundResponses {
    kept: Mutex<Kept>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    leases: HashMap<u128, Held>,
    /// Responses of each tenant.
    counts: HashMap<u64, u32>,
    /// When their times are over.
    ends: BTreeSet<(Micros, u128)>,
}

struct Held {
    tenant: u64,
    lease: Lease,
    until: Micros,
}

impl Kept {
    fn remove(&mut self, id: u128) -> Option<Lease> {
        let Held { tenant, lease, until } = self.leases.remove(&id)?;
        self.ends.remove(&(until, id));
        if let Entry::Occupied(mut count) = self.counts.entry(tenant) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(lease)
    }
}

impl BackgroundResponses {
    /// Keeps the lease of a response. Returns a lease for which there is no room.
    pub(crate) fn keep(&self, id: u128, tenant: u64, lease: Lease, until: Micros) -> Option<Lease> {
        let mut kept = self.kept.lock();
        if kept.leases.len() >= KEPT_MAX {
            return Some(lease);
        }
        let before = kept.remove(id);
        kept.ends.insert((until, id));
        *kept.counts.entry(tenant).or_default() += 1;
        kept.leases.insert(id, Held { tenant, lease, until });
        self.count.store(kept.leases.len(), Relaxed);
        before
    }

    /// How many responses of this tenant may still be computed, if this is one of them; 0 otherwise.
    pub(crate) fn held_beside(&self, id: u128, tenant: u64) -> u32 {
        if self.count.load(Relaxed) == 0 {
            return 0;
        }
        let kept = self.kept.lock();
        match kept.leases.get(&id).is_some_and(|held| held.tenant == tenant) {
            true => kept.counts.get(&tenant).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// The lease of a response that has ended.
    pub(crate) fn take(&self, id: u128) -> Option<Lease> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let lease = kept.remove(id);
        self.count.store(kept.leases.len(), Relaxed);
        lease
    }

    /// A response whose time is over.
    pub(crate) fn next_expired(&self, now: Micros) -> Option<Lease> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let (_, id) = kept.ends.first().copied().filter(|(until, _)| *until <= now)?;
        let lease = kept.remove(id);
        self.count.store(kept.leases.len(), Relaxed);
        lease
    }
}
