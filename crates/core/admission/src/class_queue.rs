//! The waiting requests of one class, fair between tenants, by deadline where requests have one.
//!
//! A tenant owns *slots*: the starts at which its work would begin if all tenants were served at once at equal rates.
//! Fairness decides which tenants may go next: those whose first slot the shared work has reached. Deadlines decide
//! between these tenants, and between a tenant's own requests: the earliest goes first and takes the tenant's first
//! slot. Requests without a deadline follow in the order of slots. So a deadline brings no tenant more than its share,
//! and without deadlines the order is that of fair queueing.
//!
//! There may be room on some routes only. So each route keeps its tenants in order, and nothing is searched: an admission
//! takes time for the routes of its tenant, not for the requests that wait.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::Micros;

use crate::lineup::Lineup;
use crate::position::{AdmissionPosition, NO_DUE, Order, Slot};
use crate::route_queue::RouteQueue;
use crate::tenant_queue::{TenantQueue, TurnOrder};

/// Most tenants without waiting requests whose lead is remembered.
pub(crate) const TENANTS_MAX: usize = 4_096;

#[derive(Debug)]
pub(crate) struct ClassQueue<T> {
    /// By order of arrival.
    waiting: BTreeMap<u64, Waiting<T>>,
    pub(crate) tenants: BTreeMap<u64, TenantQueue>,
    /// The last slot of each tenant with waiting requests.
    lasts: BTreeSet<(Slot, u64)>,
    /// The first slots that the work has not reached.
    unreached: BTreeSet<(Slot, u64)>,
    /// All waiting requests, and those of each route.
    all: Lineup,
    routes: BTreeMap<u64, RouteQueue>,
    /// Latest times to wait, and the arrivals.
    deadlines: BTreeSet<(Micros, u64)>,
    /// How far all tenants' work would have advanced if they were served at once.
    served: u64,
    /// How often in a row higher classes went first.
    pub(crate) passed: u32,
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

impl<T> ClassQueue<T> {
    pub(crate) fn new() -> ClassQueue<T> {
        ClassQueue {
            waiting: BTreeMap::new(),
            tenants: BTreeMap::new(),
            lasts: BTreeSet::new(),
            unreached: BTreeSet::new(),
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
        self.tenants.get(&tenant).map_or(0, TenantQueue::len)
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, arrival: u64) -> bool {
        self.waiting.contains_key(&arrival)
    }

    /// The slot of a new request, for which its tenant is charged.
    pub(crate) fn slot(&mut self, tenant: u64, cost: u32, arrival: u64) -> Slot {
        (self.tenants.entry(tenant).or_default().start(cost, self.served), arrival)
    }

    /// Serves a request that need not wait.
    pub(crate) fn pass(&mut self, position: &AdmissionPosition) {
        self.serve(position.slot.0, position.cost.into());
        self.forget_if_many();
    }

    pub(crate) fn insert(&mut self, position: &AdmissionPosition, deadline: Micros, item: T) {
        let AdmissionPosition { tenant, cost, route, slot, due, .. } = *position;
        let arrival = slot.1;
        let order = (due.unwrap_or(NO_DUE), arrival);
        self.deadlines.insert((deadline, arrival));
        self.all.insert(slot, order);
        self.routes.entry(route).or_default().lineup.insert(slot, order);
        let slot = self.change_tenant(tenant, route, |work| work.insert(slot, order, route));
        self.waiting.insert(arrival, Waiting { tenant, cost, route, order, deadline, slot, item });
    }

    /// Removes a request that stopped waiting, and refunds its cost to the tenant.
    pub(crate) fn remove(&mut self, arrival: u64) -> Option<T> {
        let waiting = self.take(arrival)?;
        let Waiting { tenant, route, order, slot, .. } = waiting;
        self.change_tenant(tenant, route, |work| work.remove(slot, order, route));
        self.drop_empty(route);
        self.charge(tenant, -i64::from(waiting.cost));
        self.forget_if_many();
        Some(waiting.item)
    }

    /// Removes the next request on routes with room and serves it in its tenant's first slot. Returns it with its route.
    pub(crate) fn admit(&mut self, rooms: &BTreeMap<u64, bool>) -> Option<(T, u64)> {
        let waiting = self.take(self.next(rooms)?)?;
        let Waiting { tenant, route, order, .. } = waiting;
        let start = self.tenants.get(&tenant).and_then(TenantQueue::first_slot).map_or(0, |slot| slot.0);
        self.change_tenant(tenant, route, |work| work.admit(order, route));
        self.drop_empty(route);
        self.serve(start, waiting.cost.into());
        self.forget_if_many();
        Some((waiting.item, route))
    }

    /// Asks once for each route whether there is room.
    pub(crate) fn ask_for_room(
        &self,
        has_room: &mut impl FnMut(&T) -> bool,
        rooms: &mut BTreeMap<u64, bool>,
    ) {
        for (route, queue) in &self.routes {
            let any = queue.lineup.first().and_then(|(_, arrival)| self.waiting.get(&arrival));
            if let Some(any) = any {
                rooms.entry(*route).or_insert_with(|| has_room(&any.item));
            }
        }
    }

    /// Whether there is room for a request of this class.
    pub(crate) fn fits(&self, rooms: &BTreeMap<u64, bool>) -> bool {
        self.with_room(rooms).next().is_some()
    }

    fn with_room(&self, rooms: &BTreeMap<u64, bool>) -> impl Iterator<Item = (u64, &RouteQueue)> {
        let has_room = |route: &u64| rooms.get(route) == Some(&true);
        self.routes.iter().filter(move |(route, _)| has_room(route)).map(|(route, queue)| (*route, queue))
    }

    /// The arrival of the next request on routes with room.
    fn next(&self, rooms: &BTreeMap<u64, bool>) -> Option<u64> {
        let ((start, _), tenant) = self.with_room(rooms).filter_map(|(_, queue)| queue.first()).min()?;
        let urgent = match start <= self.served {
            true => self.with_room(rooms).filter_map(|(_, queue)| queue.most_urgent()).min(),
            false => self.most_urgent_at(start, rooms),
        };
        let work = self.tenants.get(&tenant)?;
        let first = || self.with_room(rooms).filter_map(|(route, _)| work.next_on(route)).min();
        urgent.or_else(first).map(|(_, arrival)| arrival)
    }

    /// The earliest due request of the tenants whose first slot has this start. It is searched, but once only: with the
    /// next admission the work has reached these slots.
    fn most_urgent_at(&self, start: u64, rooms: &BTreeMap<u64, bool>) -> Option<Order> {
        let next = self.with_room(rooms).flat_map(|(route, queue)| {
            let next_on = move |tenant: u64| self.tenants.get(&tenant)?.next_on(route);
            queue.starting_at(start).filter_map(next_on)
        });
        next.filter(|(due, _)| *due != NO_DUE).min()
    }

    /// Drops expired requests, at most `max`, and returns how many.
    pub(crate) fn drop_late(&mut self, now: Micros, max: usize) -> usize {
        let before = self.waiting.len();
        while before - self.waiting.len() < max
            && let Some(&(_, arrival)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)
        {
            self.remove(arrival);
        }
        before - self.waiting.len()
    }

    /// Waiting requests, of one route or of all.
    pub(crate) fn len_on(&self, route: Option<u64>) -> usize {
        self.lineup(route).map_or(0, Lineup::len)
    }

    /// Requests that go before one of this tenant in this order, of one route or of all; at most `max`.
    ///
    /// They are those in earlier slots. If the tenant has not had more than its share, its request has its turn, and
    /// no more go before it than are due earlier.
    pub(crate) fn ahead_of(&self, tenant: u64, order: Order, route: Option<u64>, max: usize) -> usize {
        let Some(lineup) = self.lineup(route) else { return 0 };
        let work = self.tenants.get(&tenant);
        let slot = work.map_or((self.served, u64::MAX), |work| work.slot_for(order, self.served, max));
        let in_earlier_slots = lineup.before_slot(slot).min(max);
        match order.0 != NO_DUE && slot.0 <= self.served {
            true => lineup.due_before(order).min(in_earlier_slots),
            false => in_earlier_slots,
        }
    }

    /// The request with a due time in the last slot: tenant and order.
    pub(crate) fn last_due(&self, route: Option<u64>) -> Option<(u64, Order)> {
        let (_, arrival) = self.lineup(route)?.last_due()?;
        self.waiting.get(&arrival).map(|waiting| (waiting.tenant, waiting.order))
    }

    fn lineup(&self, route: Option<u64>) -> Option<&Lineup> {
        route.map_or(Some(&self.all), |route| self.routes.get(&route).map(|queue| &queue.lineup))
    }

    /// The last request of the tenant that is furthest beyond its share.
    pub(crate) fn least_deserving(&self) -> Option<u64> {
        let (_, tenant) = self.lasts.last()?;
        self.tenants.get(tenant)?.last_order().map(|(_, arrival)| arrival)
    }

    pub(crate) fn charge(&mut self, tenant: u64, cost: i64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.charge(cost);
        }
    }

    /// Takes a request out of everything but its tenant's queue.
    fn take(&mut self, arrival: u64) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&arrival)?;
        let slot = (waiting.slot.0, arrival);
        self.all.remove(slot, waiting.order);
        if let Some(queue) = self.routes.get_mut(&waiting.route) {
            queue.lineup.remove(slot, waiting.order);
        }
        self.deadlines.remove(&(waiting.deadline, arrival));
        Some(waiting)
    }

    fn drop_empty(&mut self, route: u64) {
        if self.routes.get(&route).is_some_and(|queue| queue.lineup.is_empty()) {
            self.routes.remove(&route);
        }
    }

    /// Changes a tenant's requests on a route, and what is known of the tenant elsewhere.
    fn change_tenant<R>(&mut self, tenant: u64, route: u64, change: impl FnOnce(&mut TenantQueue) -> R) -> R {
        let (work, served) = (self.tenants.entry(tenant).or_default(), self.served);
        let (turn_order, first, last) = (work.turn_order(route, served), work.first_slot(), work.last_slot());
        let changed = change(work);
        if let Some(queue) = self.routes.get_mut(&route) {
            queue.replace(tenant, turn_order, work.turn_order(route, served));
        }
        let (first_after, last_after) = (work.first_slot(), work.last_slot());
        if first != first_after {
            first.iter().for_each(|slot| _ = self.unreached.remove(&(*slot, tenant)));
            let unreached = first_after.filter(|slot| slot.0 > served);
            unreached.iter().for_each(|slot| _ = self.unreached.insert((*slot, tenant)));
            for (other, next) in work.next_on_routes().filter(|(other, _)| *other != route) {
                let Some(queue) = self.routes.get_mut(&other) else { continue };
                let turn_order = |first| TurnOrder::of(first, Some(next), served);
                queue.replace(tenant, turn_order(first), turn_order(first_after));
            }
        }
        if last != last_after {
            last.iter().for_each(|slot| _ = self.lasts.remove(&(*slot, tenant)));
            last_after.iter().for_each(|slot| _ = self.lasts.insert((*slot, tenant)));
        }
        changed
    }

    /// Accounts for work given to a request with this start. All tenants with requests share the time that it takes,
    /// and no later request starts before it.
    fn serve(&mut self, start: u64, cost: u64) {
        let (before, backlogged) = (self.served, self.lasts.len() as u64);
        self.served = before.max(start).saturating_add(cost / (backlogged + 1));
        while let Some(&(first, tenant)) = self.unreached.first().filter(|(slot, _)| slot.0 <= self.served) {
            self.unreached.pop_first();
            let Some(work) = self.tenants.get(&tenant) else { continue };
            for (route, next) in work.next_on_routes() {
                let Some(queue) = self.routes.get_mut(&route) else { continue };
                let turn_order = |served| TurnOrder::of(Some(first), Some(next), served);
                queue.replace(tenant, turn_order(before), turn_order(self.served));
            }
        }
    }

    /// Drops tenants that have no lead; when too many are left, forgives their leads. Each look at all tenants drops many,
    /// so that few requests pay for it.
    fn forget_if_many(&mut self) {
        let (max, served) = (TENANTS_MAX + self.waiting.len(), self.served);
        if self.tenants.len() <= max {
            return;
        }
        self.tenants.retain(|_, work| !work.is_empty() || work.has_lead(served));
        if self.tenants.len() > max - TENANTS_MAX / 4 {
            self.tenants.retain(|_, work| !work.is_empty());
        }
    }
}
