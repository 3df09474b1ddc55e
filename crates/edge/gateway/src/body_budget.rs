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
//!
//! Bodies that arrive slowly hold memory for long, and a client with many keys has many of them. So when the budget is used
//! up, bodies that have been arriving for a second give way: those first that have held most bytes for longest.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Config;
use crate::gateway_error::GatewayError;
use crate::keys::Tenant;
use crate::shares::Shares;

/// A body that takes longer to arrive gives way when memory is short.
const SLOW_BODY: Duration = Duration::from_secs(1);

/// The bytes of all bodies, and of each owner's.
#[derive(Clone, Default)]
pub(crate) struct BodyMemory {
    all: Gauge,
    held: Arc<Mutex<HeldMemory>>,
}

#[derive(Default)]
struct HeldMemory {
    owners: HashMap<u64, OwnerShare>,
    /// Bodies that arrive, in the order in which they began.
    arriving: BTreeMap<u64, Arriving>,
    next_id: u64,
}

#[derive(Clone, Copy, Default)]
struct OwnerShare {
    bodies: usize,
    bytes: usize,
}

/// A body that arrives.
struct Arriving {
    owner: Option<u64>,
    since: Instant,
    bytes: usize,
    leave: Arc<Leave>,
}

/// Tells a body that it has to give way.
#[derive(Default)]
pub(crate) struct Leave {
    is_leaving: AtomicBool,
    told: Notify,
}

impl Leave {
    /// Returns when the body has to give way.
    pub(crate) async fn wait(&self) {
        self.told.notified().await;
    }
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
    /// The body's number while it arrives and may have to give way.
    arriving: Option<(u64, Arc<Leave>)>,
}

impl HeldMemory {
    /// Adds to what an owner holds. Returns the sum.
    fn add(&mut self, owner: u64, bodies: usize, bytes: usize) -> OwnerShare {
        let share = self.owners.entry(owner).or_default();
        share.bodies += bodies;
        share.bytes += bytes;
        *share
    }

    fn subtract(&mut self, owner: Option<u64>, bytes: usize) {
        let Some(id) = owner else { return };
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.bodies -= 1;
            owner.bytes -= bytes;
            if owner.bodies == 0 {
                self.owners.remove(&id);
            }
        }
    }

    /// Takes the memory of slow bodies other than this one until as much is free. Returns how much was taken.
    fn evict(&mut self, wanted: usize, but: Option<u64>) -> usize {
        let now = Instant::now();
        let mut freed = 0;
        while freed < wanted {
            let slow = self.arriving.iter().filter(|(id, body)| {
                body.bytes > 0 && Some(**id) != but && now.duration_since(body.since) >= SLOW_BODY
            });
            let weight = |body: &Arriving| body.bytes as u128 * now.duration_since(body.since).as_millis();
            let Some(id) = slow.max_by_key(|(_, body)| weight(body)).map(|(id, _)| *id) else { break };
            let Some(body) = self.arriving.remove(&id) else { break };
            body.leave.is_leaving.store(true, Relaxed);
            body.leave.told.notify_one();
            self.subtract(body.owner, body.bytes);
            freed += body.bytes;
        }
        freed
    }
}

impl BodyMemory {
    /// Counts all bytes in this gauge.
    pub(crate) fn new(all: Gauge) -> BodyMemory {
        BodyMemory { all, held: Arc::default() }
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
        BodyBudget {
            memory: self.clone(),
            all_bytes_max,
            owner_bytes_max,
            owner,
            bytes: None,
            arriving: None,
        }
    }
}

impl BodyBudget {
    /// Notes that the body begins to arrive. Until it has, it may have to give way: then the result says so.
    pub(crate) fn begin_arrival(&mut self) -> Arc<Leave> {
        let leave = Arc::new(Leave::default());
        let mut held = self.memory.held.lock();
        let id = held.next_id;
        held.next_id += 1;
        let arriving =
            Arriving { owner: self.owner, since: Instant::now(), bytes: 0, leave: Arc::clone(&leave) };
        held.arriving.insert(id, arriving);
        self.arriving = Some((id, Arc::clone(&leave)));
        leave
    }

    /// Notes that the body has arrived.
    pub(crate) fn end_arrival(&mut self) -> Result<(), GatewayError> {
        let Some((id, leave)) = &self.arriving else { return Ok(()) };
        self.memory.held.lock().arriving.remove(id);
        if leave.is_leaving.load(Relaxed) {
            return Err(GatewayError::SlowBody);
        }
        self.arriving = None;
        Ok(())
    }

    /// Adds bytes to the share; fails if the budget or the owner's part of it is exceeded.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), GatewayError> {
        let mut held = self.memory.held.lock();
        let id = self.arriving.as_ref().map(|(id, _)| *id);
        if let Some((id, leave)) = &self.arriving {
            if leave.is_leaving.load(Relaxed) {
                return Err(GatewayError::SlowBody);
            }
            held.arriving.get_mut(id).into_iter().for_each(|body| body.bytes += bytes);
        }
        let owned = self.owner.map(|owner| held.add(owner, usize::from(self.bytes.is_none()), bytes));
        self.bytes = Some(self.bytes.unwrap_or(0) + bytes);
        let mut all = self.memory.all.inc_by(bytes as i64) as usize + bytes;
        if all > self.all_bytes_max {
            let freed = held.evict(all - self.all_bytes_max, id);
            self.memory.all.dec_by(freed as i64);
            all -= freed;
        }
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
        let mut held = self.memory.held.lock();
        let arriving = self.arriving.take();
        arriving.iter().for_each(|(id, _)| _ = held.arriving.remove(id));
        let Some(bytes) = self.bytes.take() else { return };
        // Of a body that had to give way, the bytes were taken.
        if arriving.is_some_and(|(_, leave)| leave.is_leaving.load(Relaxed)) {
            return;
        }
        self.memory.all.dec_by(bytes as i64);
        held.subtract(self.owner, bytes);
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
        assert!(memory.all.get() == 0 && memory.held.lock().owners.is_empty());
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

    #[test]
    fn slow_bodies_of_many_owners_give_way_when_the_memory_is_full() {
        let memory = BodyMemory::default();
        let mut slow: Vec<BodyBudget> = (0..10).map(|owner| memory.share_of(100, 100, Some(owner))).collect();
        let leaves: Vec<Arc<Leave>> = slow.iter_mut().map(BodyBudget::begin_arrival).collect();
        for (body, bytes) in slow.iter_mut().zip([20, 9, 9, 9, 9, 9, 9, 9, 9, 8]) {
            body.reserve(bytes).unwrap();
        }
        let mut honest = memory.share_of(100, 100, Some(99));
        _ = honest.begin_arrival();
        assert!(matches!(honest.reserve(30), Err(GatewayError::MemoryFull)), "none is slow yet");
        drop(honest);
        memory.held.lock().arriving.values_mut().for_each(|body| body.since -= SLOW_BODY);
        slow[1].end_arrival().unwrap();
        let mut honest = memory.share_of(100, 100, Some(99));
        _ = honest.begin_arrival();
        honest.reserve(30).unwrap();
        // 100 bytes were held; the largest body and two of nine bytes have gone.
        assert_eq!(memory.all.get(), 100 - 38 + 30);
        assert!(leaves[0].is_leaving.load(Relaxed) && !leaves[1].is_leaving.load(Relaxed));
        assert!(matches!(slow[0].reserve(1), Err(GatewayError::SlowBody)));
        assert!(slow[1].reserve(0).is_ok(), "what has arrived stays");
        drop((slow, honest));
        let held = memory.held.lock();
        assert!(memory.all.get() == 0 && held.owners.is_empty() && held.arriving.is_empty());
    }
}
