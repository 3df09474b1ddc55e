//! The memory budget for request bodies, over all requests.
//!
//! Bodies are read before admission, so neither request limits nor rate limits bound them. The budget counts bytes as
//! they arrive, not declared lengths, because a client could reserve memory by declaring a length. A request never
//! waits for memory: waiting requests would keep what they have read.
//!
//! No tenant may fill the budget alone. While it has several bodies, all of them together may not exceed what is still
//! free. One tenant thus gets half of the budget, two get a third each,
//! and however many there are, a further one finds room. A single body may always take what is free, unless the tenant's
//! share is limited ([`Shares`]).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::Config;
use crate::gateway_error::GatewayError;
use crate::keys::Tenant;
use crate::shares::Shares;

/// The bytes of all bodies, and of each owner's.
#[derive(Clone, Default)]
pub(crate) struct BodyMemory {
    all: Gauge,
    owners: Arc<Mutex<HashMap<u64, OwnerShare>>>,
}

#[derive(Clone, Copy, Default)]
struct OwnerShare {
    bodies: usize,
    bytes: usize,
}

/// The share of one body. Dropping it gives the bytes back.
pub(crate) struct BodyBudget {
    memory: BodyMemory,
    all_bytes_max: usize,
    /// Most bytes of the owner's bodies.
    owner_bytes_max: usize,
    /// The tenant; `None` where no keys tell tenants apart.
    owner: Option<u64>,
    /// `None` before the first byte and after the release.
    bytes: Option<usize>,
}

impl BodyMemory {
    /// Counts all bytes in this gauge.
    pub(crate) fn new(all: Gauge) -> BodyMemory {
        BodyMemory { all, owners: Arc::default() }
    }

    /// An empty share for a body of this tenant.
    pub(crate) fn share(&self, config: &Config, tenant: Option<&Tenant>) -> BodyBudget {
        let shares = tenant.map_or(Shares::default(), |tenant| tenant.shares.over(config.admission.shares));
        let owner_bytes_max = shares.of_memory(config.bodies_bytes_max);
        self.share_of(config.bodies_bytes_max, owner_bytes_max, tenant.map(|tenant| tenant.owner))
    }

    /// An empty share with these limits.
    pub(crate) fn share_of(
        &self,
        all_bytes_max: usize,
        owner_bytes_max: usize,
        owner: Option<u64>,
    ) -> BodyBudget {
        BodyBudget { memory: self.clone(), all_bytes_max, owner_bytes_max, owner, bytes: None }
    }

    /// Adds to what an owner holds. Returns the sum.
    fn add(&self, owner: u64, bodies: usize, bytes: usize) -> OwnerShare {
        let mut owners = self.owners.lock();
        let share = owners.entry(owner).or_default();
        share.bodies += bodies;
        share.bytes += bytes;
        *share
    }
}

impl BodyBudget {
    /// Adds bytes to the share; fails if the budget or the owner's part of it is exceeded.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), GatewayError> {
        let owned = self.owner.map(|owner| self.memory.add(owner, usize::from(self.bytes.is_none()), bytes));
        self.bytes = Some(self.bytes.unwrap_or(0) + bytes);
        let all = self.memory.all.inc_by(bytes as i64) as usize + bytes;
        if all > self.all_bytes_max {
            return Err(GatewayError::MemoryFull);
        }
        match owned {
            Some(owned) if owned.bytes > self.owner_bytes_max => Err(GatewayError::MemoryShareFull),
            Some(owned) if owned.bodies > 1 && owned.bytes > self.all_bytes_max - all => {
                Err(GatewayError::MemoryShareFull)
            }
            _ => Ok(()),
        }
    }

    /// Gives the reserved bytes back.
    pub(crate) fn release(&mut self) {
        let Some(bytes) = self.bytes.take() else { return };
        self.memory.all.dec_by(bytes as i64);
        let Some(id) = self.owner else { return };
        let mut owners = self.memory.owners.lock();
        if let Some(owner) = owners.get_mut(&id) {
            owner.bodies -= 1;
            owner.bytes -= bytes;
            if owner.bodies == 0 {
                owners.remove(&id);
            }
        }
    }
}

impl Drop for BodyBudget {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_given_back_even_after_the_budget_was_exceeded() {
        let memory = BodyMemory::default();
        let [mut first, mut second] = [1, 2].map(|owner| memory.share_of(10, 10, Some(owner)));
        assert!(first.reserve(4).is_ok() && second.reserve(6).is_ok());
        assert!(matches!(first.reserve(1), Err(GatewayError::MemoryFull)));
        drop(first);
        assert!(second.reserve(4).is_ok());
        drop(second);
        assert!(memory.all.get() == 0 && memory.owners.lock().is_empty());
    }

    #[test]
    fn an_owner_with_several_bodies_leaves_room_for_others() {
        let memory = BodyMemory::default();
        let mut greedy: Vec<BodyBudget> = (0..10).map(|_| memory.share_of(100, 100, Some(1))).collect();
        let fitting = greedy.iter_mut().map_while(|body| body.reserve(10).ok()).count();
        assert_eq!(fitting, 5, "half of the budget");
        greedy.truncate(fitting);
        let mut other = memory.share_of(100, 100, Some(2));
        assert!(other.reserve(50).is_ok(), "one body of another owner takes all that is free");
        assert!(matches!(memory.share_of(100, 100, Some(1)).reserve(1), Err(GatewayError::MemoryFull)));
        drop(other);
        let mut next = [2, 2].map(|owner| memory.share_of(100, 100, Some(owner)));
        assert!(next[0].reserve(10).is_ok() && next[1].reserve(10).is_ok());
        assert!(matches!(next[1].reserve(10), Err(GatewayError::MemoryShareFull)));
    }

    #[test]
    fn an_owner_with_a_limited_share_never_exceeds_it() {
        let memory = BodyMemory::default();
        let mut bodies = [1, 1, 2].map(|owner| memory.share_of(100, 20, Some(owner)));
        assert!(bodies[0].reserve(15).is_ok() && bodies[1].reserve(5).is_ok());
        assert!(matches!(bodies[1].reserve(1), Err(GatewayError::MemoryShareFull)));
        assert!(matches!(bodies[2].reserve(21), Err(GatewayError::MemoryShareFull)), "a single body neither");
    }
}
