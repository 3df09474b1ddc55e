//! The leases of responses that engines compute in the background, see [`crate::background`].

use std::collections::{HashMap, VecDeque};
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
    leases: HashMap<u128, Lease>,
    /// When their times are over, in the order in which they were kept.
    ends: VecDeque<(Micros, u128)>,
}

impl BackgroundResponses {
    /// Keeps the lease of a response. Returns a lease for which there is no room.
    pub(crate) fn keep(&self, id: u128, lease: Lease, until: Micros) -> Option<Lease> {
        let mut kept = self.kept.lock();
        if kept.leases.len() >= KEPT_MAX {
            return Some(lease);
        }
        kept.ends.push_back((until, id));
        let before = kept.leases.insert(id, lease);
        self.count.store(kept.leases.len(), Relaxed);
        before
    }

    /// Whether a response may still be computed. Requests for it need no place of their own: its tenant may have no other.
    pub(crate) fn has(&self, id: u128) -> bool {
        self.count.load(Relaxed) > 0 && self.kept.lock().leases.contains_key(&id)
    }

    /// The lease of a response that has ended.
    pub(crate) fn take(&self, id: u128) -> Option<Lease> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let lease = kept.leases.remove(&id)?;
        kept.ends.retain(|(_, other)| *other != id);
        self.count.store(kept.leases.len(), Relaxed);
        Some(lease)
    }

    /// A response whose time is over.
    pub(crate) fn next_expired(&self, now: Micros) -> Option<Lease> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let (_, id) = kept.ends.pop_front_if(|(until, _)| *until <= now)?;
        let lease = kept.leases.remove(&id);
        self.count.store(kept.leases.len(), Relaxed);
        lease
    }
}
