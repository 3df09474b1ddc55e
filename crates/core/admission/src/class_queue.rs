//! The waiting requests of one class, fair between tenants, by deadline where requests have one.
//!
//! A tenant owns *slots*: the starts at which its work would begin if all tenants were served at once at equal rates.
//! Fairness decides which tenants may go next: those whose first slot the shared work has reached. Deadlines decide
//! between these tenants, and between a tenant's own requests: the earliest goes first and takes the tenant's first
//! slot. Requests without a deadline follow in the order of slots. So a deadline brings no tenant more than its share,
//! and without deadlines the order is that of fair queueing.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::Micros;

use crate::position::{AdmissionPosition, Slot};

/// Most tenants without waiting requests whose lead is remembered.
pub(crate) const TENANTS_MAX: usize = 4_096;

/// The due time, or the end of time without one; then the order of arrival.
pub(crate) type Order = (Micros, u64);

pub(crate) const NO_DUE: Micros = Micros(u64::MAX);

/// Added to a slot's order of arrival to tell it from another one.
const AGAIN: u64 = 1 << 48;

#[derive(Debug)]
pub(crate) struct ClassQueue<T> {
    /// By order of arrival.
    waiting: BTreeMap<u64, Waiting<T>>,
    pub(crate) tenants: BTreeMap<u64, TenantQueue>,
    /// The first slot of each tenant with waiting requests.
    firsts: BTreeSet<(Slot, u64)>,
    /// Requests with a due time, with their tenants.
    dues: BTreeSet<(Order, u64)>,
    /// All waiting requests, and those of each route.
    all: Lineup,
    routes: BTreeMap<u64, Lineup>,
    /// Latest times to wait, and the arrivals.
    deadlines: BTreeSet<(Micros, u64)>,
    /// How far all tenants' work would have advanced if they were served at once.
    served: u64,
    /// How often in a row higher classes went first.
    pub(crate) passed: u32,
}

/// Waiting requests in two orders.
#[derive(Debug, Default)]
struct Lineup {
    /// By the slots in which they came.
    slots: BTreeSet<Slot>,
    /// Those with a due time.
    dues: BTreeSet<Order>,
}

impl Lineup {
    fn insert(&mut self, slot: Slot, order: Order) {
        self.slots.insert(slot);
        if order.0 != NO_DUE {
            self.dues.insert(order);
        }
    }

    fn remove(&mut self, slot: Slot, order: Order) {
        self.slots.remove(&slot);
        self.dues.remove(&order);
    }
}

#[derive(Debug)]
struct Waiting<T> {
    tenant: u64,
    cost: u32,
    route: u64,
    order: Order,
    deadline: Micros,
    slot: Slot,
    item: T,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TenantQueue {
    /// The end of the work that the tenant has requested so far.
    finish: u64,
    /// The start of its last request. A refund lets its next request start earlier, but not before this one.
    last_start: u64,
    /// As many as it has waiting requests.
    slots: BTreeSet<Slot>,
    /// The waiting requests, the next one first.
    orders: BTreeSet<Order>,
}

/// The next request of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    arrival: u64,
}

impl<T> ClassQueue<T> {
    pub(crate) fn new() -> ClassQueue<T> {
        ClassQueue {
            waiting: BTreeMap::new(),
            tenants: BTreeMap::new(),
            firsts: BTreeSet::new(),
            dues: BTreeSet::new(),
            all: Lineup::default(),
            routes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            served: 0,
            passed: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Waiting requests of a tenant.
    pub(crate) fn len_of(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |work| work.orders.len())
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, arrival: u64) -> bool {
        self.waiting.contains_key(&arrival)
    }

    /// The slot of a new request, for which its tenant is charged.
    pub(crate) fn slot(&mut self, tenant: u64, cost: u32, arrival: u64) -> Slot {
        let work = self.tenants.entry(tenant).or_default();
        let start = work.finish.max(self.served);
        work.finish = start.saturating_add(cost.into());
        let start = if work.slots.is_empty() { start } else { start.max(work.last_start) };
        work.last_start = start;
        (start, arrival)
    }

    /// Serves a request that need not wait.
    pub(crate) fn pass(&mut self, position: &AdmissionPosition) {
        self.serve(position.slot.0, position.cost.into());
        self.forget_if_many();
    }

    pub(crate) fn insert(&mut self, position: &AdmissionPosition, deadline: Micros, item: T) {
        let AdmissionPosition { tenant, cost, route, mut slot, due, .. } = *position;
        let arrival = slot.1;
        let order = (due.unwrap_or(NO_DUE), arrival);
        self.change_tenant(tenant, |work| {
            // A request that waits again may have been admitted in another slot of its tenant, and its own is still
            // there. The tenant has as many slots as requests, so it gets another one with the same start.
            while !work.slots.insert(slot) {
                slot.1 += AGAIN;
            }
            work.orders.insert(order);
        });
        if due.is_some() {
            self.dues.insert((order, tenant));
        }
        self.deadlines.insert((deadline, arrival));
        self.all.insert((slot.0, arrival), order);
        self.routes.entry(route).or_default().insert((slot.0, arrival), order);
        self.waiting.insert(arrival, Waiting { tenant, cost, route, order, deadline, slot, item });
    }

    /// Removes a request that stopped waiting, and refunds its cost to the tenant.
    pub(crate) fn remove(&mut self, arrival: u64) -> Option<T> {
        let slot = self.waiting.get(&arrival)?.slot;
        let waiting = self.take(arrival, |slots| {
            // Another request of the tenant may have gone first, in this slot.
            if slots.contains(&slot) { Some(slot) } else { slots.last().copied() }
        })?;
        self.charge(waiting.tenant, -i64::from(waiting.cost));
        self.forget_if_many();
        Some(waiting.item)
    }

    /// Removes the next request and serves it in its tenant's first slot. Returns it with its route.
    pub(crate) fn admit(&mut self, head: Head) -> Option<(T, u64)> {
        let tenant = self.waiting.get(&head.arrival)?.tenant;
        let start = self.tenants.get(&tenant).and_then(|work| work.slots.first()).map_or(0, |slot| slot.0);
        let waiting = self.take(head.arrival, |slots| slots.first().copied())?;
        self.serve(start, waiting.cost.into());
        self.forget_if_many();
        Some((waiting.item, waiting.route))
    }

    /// Asks once for each route whether there is room.
    pub(crate) fn ask_for_room(
        &self,
        has_room: &mut impl FnMut(&T) -> bool,
        rooms: &mut BTreeMap<u64, bool>,
    ) {
        for (route, lineup) in &self.routes {
            let any = lineup.slots.first().and_then(|(_, arrival)| self.waiting.get(arrival));
            if let Some(any) = any {
                rooms.entry(*route).or_insert_with(|| has_room(&any.item));
            }
        }
    }

    /// The next request for which there is room.
    pub(crate) fn head(&self, rooms: &BTreeMap<u64, bool>) -> Option<Head> {
        let fits = |arrival: &u64| {
            let route = self.waiting.get(arrival).map(|waiting| waiting.route);
            route.and_then(|route| rooms.get(&route)).is_some_and(|has_room| *has_room)
        };
        if !self.routes.keys().any(|route| rooms.get(route) == Some(&true)) {
            return None;
        }
        let (start, arrival) = self.firsts.iter().find_map(|((start, _), tenant)| {
            let next = self.tenants.get(tenant)?.orders.iter().find(|(_, arrival)| fits(arrival))?;
            Some((*start, next.1))
        })?;
        let reached = self.served.max(start);
        let has_turn = |tenant: &u64| {
            let first = self.tenants.get(tenant).and_then(|work| work.slots.first());
            first.is_some_and(|(start, _)| *start <= reached)
        };
        let urgent = self.dues.iter().find(|((_, arrival), tenant)| has_turn(tenant) && fits(arrival));
        Some(Head { arrival: urgent.map_or(arrival, |((_, arrival), _)| *arrival) })
    }

    /// Drops expired requests and returns how many.
    pub(crate) fn drop_late(&mut self, now: Micros) -> usize {
        let before = self.waiting.len();
        while let Some(&(_, arrival)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            self.remove(arrival);
        }
        before - self.waiting.len()
    }

    /// Waiting requests, of one route or of all.
    pub(crate) fn len_on(&self, route: Option<u64>) -> usize {
        self.lineup(route).map_or(0, |lineup| lineup.slots.len())
    }

    /// Requests that go before one of this tenant in this order, of one route or of all; at most `max`.
    ///
    /// They are those in earlier slots. If the tenant has not had more than its share, its request has its turn, and
    /// no more go before it than are due earlier.
    pub(crate) fn ahead_of(&self, tenant: u64, order: Order, route: Option<u64>, max: usize) -> usize {
        let Some(lineup) = self.lineup(route) else { return 0 };
        let slot = self.slot_for(tenant, order, max);
        let in_earlier_slots = lineup.slots.range(..slot).take(max).count();
        match order.0 != NO_DUE && slot.0 <= self.served {
            true => lineup.dues.range(..order).take(in_earlier_slots).count(),
            false => in_earlier_slots,
        }
    }

    /// The slot in which a request of this tenant would be admitted: its requests that go first take the first ones. If
    /// these are `max` or more, the end of time.
    fn slot_for(&self, tenant: u64, order: Order, max: usize) -> Slot {
        let Some(work) = self.tenants.get(&tenant) else { return (self.served, u64::MAX) };
        let earlier = work.orders.range(..order).take(max).count();
        if earlier == max {
            return (u64::MAX, u64::MAX);
        }
        let new = || {
            let start = work.finish.max(self.served);
            (if work.slots.is_empty() { start } else { start.max(work.last_start) }, u64::MAX)
        };
        work.slots.iter().nth(earlier).copied().unwrap_or_else(new)
    }

    /// The requests with a due time, from the last slot on: tenant and order.
    pub(crate) fn latest_dues(&self, route: Option<u64>) -> impl Iterator<Item = (u64, Order)> {
        let slots = self.lineup(route).map(|lineup| lineup.slots.iter().rev());
        slots.into_iter().flatten().filter_map(|(_, arrival)| {
            let waiting = self.waiting.get(arrival)?;
            (waiting.order.0 != NO_DUE).then_some((waiting.tenant, waiting.order))
        })
    }

    fn lineup(&self, route: Option<u64>) -> Option<&Lineup> {
        route.map_or(Some(&self.all), |route| self.routes.get(&route))
    }

    /// The last request of the tenant that is furthest beyond its share.
    pub(crate) fn least_deserving(&self) -> Option<u64> {
        let last_slot = |work: &TenantQueue| work.slots.last().copied();
        let most =
            self.tenants.values().filter(|work| !work.slots.is_empty()).max_by_key(|work| last_slot(work));
        most.and_then(|work| work.orders.last()).map(|(_, arrival)| *arrival)
    }

    pub(crate) fn charge(&mut self, tenant: u64, cost: i64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.finish = tenant.finish.saturating_add_signed(cost);
        }
    }

    fn take(
        &mut self,
        arrival: u64,
        spent: impl FnOnce(&BTreeSet<Slot>) -> Option<Slot>,
    ) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&arrival)?;
        self.change_tenant(waiting.tenant, |work| {
            work.orders.remove(&waiting.order);
            spent(&work.slots).iter().for_each(|slot| _ = work.slots.remove(slot));
        });
        self.dues.remove(&(waiting.order, waiting.tenant));
        let slot = (waiting.slot.0, arrival);
        self.all.remove(slot, waiting.order);
        if let Some(lineup) = self.routes.get_mut(&waiting.route) {
            lineup.remove(slot, waiting.order);
            if lineup.slots.is_empty() {
                self.routes.remove(&waiting.route);
            }
        }
        self.deadlines.remove(&(waiting.deadline, arrival));
        Some(waiting)
    }

    /// Changes a tenant's slots and keeps the order of first slots.
    fn change_tenant(&mut self, tenant: u64, change: impl FnOnce(&mut TenantQueue)) {
        let work = self.tenants.entry(tenant).or_default();
        let before = work.slots.first().copied();
        change(work);
        let after = work.slots.first().copied();
        if before != after {
            before.iter().for_each(|slot| _ = self.firsts.remove(&(*slot, tenant)));
            after.iter().for_each(|slot| _ = self.firsts.insert((*slot, tenant)));
        }
    }

    /// Accounts for work given to a request with this start. All tenants with requests share the time that it takes,
    /// and no later request starts before it.
    fn serve(&mut self, start: u64, cost: u64) {
        let backlogged = self.firsts.len() as u64;
        self.served = self.served.max(start).saturating_add(cost / (backlogged + 1));
    }

    /// Drops tenants that have no lead; when too many are left, forgives their leads.
    fn forget_if_many(&mut self) {
        if self.tenants.len() > TENANTS_MAX + self.waiting.len() {
            let served = self.served;
            self.tenants.retain(|_, work| !work.slots.is_empty() || work.finish > served);
        }
        if self.tenants.len() > TENANTS_MAX + self.waiting.len() {
            self.tenants.retain(|_, work| !work.slots.is_empty());
        }
    }
}
