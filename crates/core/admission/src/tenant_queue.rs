//! One tenant's waiting requests of a class, and the work that it has requested.

use std::collections::{BTreeMap, BTreeSet};

use crate::position::{NO_DUE, Order, Slot};
use crate::ranked_set::RankedSet;

/// Added to a slot's order of arrival to tell it from another one.
pub(crate) const AGAIN: u64 = 1 << 48;

#[derive(Clone, Debug, Default)]
pub(crate) struct TenantQueue {
    /// The end of the work that the tenant has requested so far.
    finish: u64,
    /// The start of its last request. A refund lets its next request start earlier, but not before this one.
    last_start: u64,
    /// As many as it has waiting requests.
    slots: RankedSet<Slot>,
    /// The waiting requests, the next one first.
    orders: RankedSet<Order>,
    /// The same of each route.
    routes: BTreeMap<u64, BTreeSet<Order>>,
}

/// What a route's queue orders its tenants by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnOrder {
    /// The tenant's first slot.
    pub first: Slot,
    /// Its next request on the route, if that has a due time and the tenant its turn.
    pub urgent: Option<Order>,
}

impl TenantQueue {
    pub(crate) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.orders.is_empty()
    }

    /// Whether the tenant has requested more than its share.
    pub(crate) fn has_lead(&self, served: u64) -> bool {
        self.finish > served
    }

    /// The start of a new request, for which the tenant is charged.
    pub(crate) fn start(&mut self, cost: u32, served: u64) -> u64 {
        let start = self.next_start(served);
        self.finish = self.finish.max(served).saturating_add(cost.into());
        self.last_start = start;
        start
    }

    /// Where a new request would start.
    fn next_start(&self, served: u64) -> u64 {
        let start = self.finish.max(served);
        if self.slots.is_empty() { start } else { start.max(self.last_start) }
    }

    pub(crate) fn charge(&mut self, cost: i64) {
        self.finish = self.finish.saturating_add_signed(cost);
    }

    /// Adds a request. Returns its slot.
    pub(crate) fn insert(&mut self, mut slot: Slot, order: Order, route: u64) -> Slot {
        // A request that waits again may have been admitted in another slot of its tenant, and its own is still there.
        // The tenant has as many slots as requests, so it gets another one with the same start.
        while !self.slots.insert(slot) {
            slot.1 += AGAIN;
        }
        self.orders.insert(order);
        self.routes.entry(route).or_default().insert(order);
        slot
    }

    /// Removes a request that stopped waiting, and its slot.
    pub(crate) fn remove(&mut self, slot: Slot, order: Order, route: u64) {
        // Another request of the tenant may have gone first, in this slot.
        let spent = if self.slots.contains(&slot) { Some(slot) } else { self.slots.last() };
        self.take(spent, order, route);
    }

    /// Removes a request that is admitted, and the first slot.
    pub(crate) fn admit(&mut self, order: Order, route: u64) {
        self.take(self.slots.first(), order, route);
    }

    fn take(&mut self, spent: Option<Slot>, order: Order, route: u64) {
        spent.iter().for_each(|slot| _ = self.slots.remove(slot));
        self.orders.remove(&order);
        if let Some(orders) = self.routes.get_mut(&route) {
            orders.remove(&order);
            if orders.is_empty() {
                self.routes.remove(&route);
            }
        }
    }

    pub(crate) fn first_slot(&self) -> Option<Slot> {
        self.slots.first()
    }

    pub(crate) fn last_slot(&self) -> Option<Slot> {
        self.slots.last()
    }

    /// The request that goes last.
    pub(crate) fn last_order(&self) -> Option<Order> {
        self.orders.last()
    }

    /// The next request on a route.
    pub(crate) fn next_on(&self, route: u64) -> Option<Order> {
        self.routes.get(&route)?.first().copied()
    }

    /// The routes with requests, and the next request on each.
    pub(crate) fn next_on_routes(&self) -> impl Iterator<Item = (u64, Order)> {
        self.routes.iter().filter_map(|(route, orders)| Some((*route, *orders.first()?)))
    }

    /// The tenant's place among those that wait for the route; `None` without a request for it.
    pub(crate) fn turn_order(&self, route: u64, served: u64) -> Option<TurnOrder> {
        TurnOrder::of(self.first_slot(), self.next_on(route), served)
    }

    /// The slot in which a request in this order would be admitted: the requests that go before it take the first ones.
    /// If these are `max` or more, the end of time.
    pub(crate) fn slot_for(&self, order: Order, served: u64, max: usize) -> Slot {
        let earlier = self.orders.rank(&order);
        if earlier >= max {
            return (u64::MAX, u64::MAX);
        }
        let slot = self.slots.nth(earlier);
        if self.orders.contains(&order) {
            return slot.unwrap_or((u64::MAX, u64::MAX));
        }
        // A new request brings a slot of its own. It is not always the last one: a request that waits again may have a later start.
        let own = (self.next_start(served), u64::MAX);
        let before = earlier.checked_sub(1).and_then(|at| self.slots.nth(at));
        let first_free = slot.map_or(own, |slot| slot.min(own));
        before.map_or(first_free, |before| before.max(first_free))
    }
}

impl TurnOrder {
    /// The turn of a tenant with this first slot and this next request on the route.
    pub(crate) fn of(first: Option<Slot>, next: Option<Order>, served: u64) -> Option<TurnOrder> {
        let (first, next) = (first?, next?);
        Some(TurnOrder { first, urgent: (first.0 <= served && next.0 != NO_DUE).then_some(next) })
    }
}

#[cfg(test)]
mod tests {
    use warmroute_types::Micros;

    use super::*;

    #[test]
    fn a_new_request_has_a_slot_before_that_of_one_that_waits_again_and_is_admitted_in_the_later_one() {
        let mut work = TenantQueue::default();
        // Its refunded predecessor let the tenant start earlier again.
        work.insert((500, 2), (NO_DUE, 2), 0);
        let slot_for = |due, served| work.slot_for((due, u64::MAX), served, 5);
        assert_eq!(slot_for(NO_DUE, 10), (500, 2), "the waiting request goes first, in the new slot");
        assert_eq!(slot_for(Micros(1), 10), (10, u64::MAX), "an urgent one goes first itself");
        assert_eq!(slot_for(NO_DUE, 900), (900, u64::MAX), "usually the new slot is the last");
        assert_eq!(
            work.slot_for((NO_DUE, 2), 10, 5),
            (500, 2),
            "a request that waits brings no further slot"
        );
        assert_eq!(work.slot_for((NO_DUE, u64::MAX), 10, 1), (u64::MAX, u64::MAX), "too many go before it");
    }
}
