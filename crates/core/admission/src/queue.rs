//! The admission queue: by class, and within a class fair between tenants by the cost of their requests, then by
//! deadline.
//!
//! Within a class this is weighted fair queueing with equal weights, see `class_queue`. So a tenant with a thousand
//! requests waits behind its own requests, and a tenant with few requests hardly waits.
//!
//! Between classes the higher one goes first, but a class that was passed over [`PASSED_MAX`] times goes next: no
//! class starves. A full queue drops a request of a lower class for one of a higher class.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::Class;
use crate::class_queue::ClassQueue;
use crate::position::{AdmissionPosition, NO_DUE};

/// How often in a row a waiting class may be passed over for higher ones.
pub const PASSED_MAX: u32 = 8;

/// How many requests are dropped under one hold of the lock. Requests that enter or end wait for the lock meanwhile.
pub(crate) const DROPPED_AT_ONCE_MAX: usize = 256;

/// What the queue needs to know of a request to order it.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest {
    /// Its priority.
    pub class: Class,
    /// Its tenant, as a hash.
    pub tenant: u64,
    /// Its cost in tokens; at least 1 is charged.
    pub cost: u32,
    /// The workers that can take it, as a hash: there is room for all waiting requests of one route, or for none.
    pub route: u64,
    /// When it must have been admitted to be in time; `None` without a time budget.
    pub due: Option<Micros>,
}

/// The queue is full. Contains the rejected item.
#[derive(Debug)]
pub struct QueueFull<T>(pub T);

/// The queue. `T` is what the driver needs to wake a waiting request.
#[derive(Debug)]
pub struct AdmissionQueue<T> {
    lines: [ClassQueue<T>; 3],
    len: usize,
    len_max: usize,
    arrivals: u64,
}

impl<T> AdmissionQueue<T> {
    /// An empty queue for this many requests.
    pub fn new(len_max: usize) -> AdmissionQueue<T> {
        AdmissionQueue {
            lines: [ClassQueue::new(), ClassQueue::new(), ClassQueue::new()],
            len: 0,
            len_max,
            arrivals: 0,
        }
    }

    /// Changes how many may wait. Requests that wait already stay, even if they are more.
    pub fn set_len_max(&mut self, len_max: usize) {
        self.len_max = len_max;
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of waiting requests of a class.
    pub fn len_of(&self, class: Class) -> usize {
        self.lines[class as usize].len()
    }

    /// Number of waiting requests of a tenant.
    pub fn len_of_tenant(&self, tenant: u64) -> usize {
        self.lines.iter().map(|line| line.len_of(tenant)).sum()
    }

    /// Charges a request that need not wait.
    pub fn pass(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let position = self.position(request);
        self.lines[request.class as usize].pass(&position);
        position
    }

    /// Queues a request until its deadline. If the queue is full, the request takes the place of one of the lowest
    /// class below its own, which is dropped.
    pub fn push(
        &mut self,
        request: AdmissionRequest,
        deadline: Micros,
        item: T,
    ) -> Result<AdmissionPosition, QueueFull<T>> {
        if self.len >= self.len_max && (self.len_max == 0 || !self.shed_below(request.class)) {
            return Err(QueueFull(item));
        }
        let position = self.position(request);
        self.wait_at(position, deadline, item);
        Ok(position)
    }

    /// Queues a request again at its former position, even beyond the limit: it had been admitted.
    pub fn wait_at(&mut self, position: AdmissionPosition, deadline: Micros, item: T) {
        self.lines[position.class as usize].insert(&position, deadline, item);
        self.len += 1;
    }

    /// Removes a request that stopped waiting, and refunds its cost to the tenant.
    pub fn remove(&mut self, position: AdmissionPosition) -> Option<T> {
        let item = self.lines[position.class as usize].remove(position.slot.1)?;
        self.len -= 1;
        Some(item)
    }

    /// Removes and returns the next request for which there is room. Drops expired requests on the way.
    pub fn pop(&mut self, now: Micros, has_room: impl FnMut(&T) -> bool) -> Option<T> {
        self.pop_with_route(now, has_room).map(|(item, _)| item)
    }

    /// The same, with the request's route.
    pub fn pop_with_route(&mut self, now: Micros, mut has_room: impl FnMut(&T) -> bool) -> Option<(T, u64)> {
        self.drop_late(now, usize::MAX);
        let mut rooms = BTreeMap::new();
        self.lines.iter().for_each(|line| line.ask_for_room(&mut has_room, &mut rooms));
        let fits = Class::ALL.map(|class| self.lines[class as usize].fits(&rooms));
        let chosen = self.choose(fits)?;
        for class in Class::ALL.into_iter().filter(|&class| class > chosen && fits[class as usize]) {
            self.lines[class as usize].passed += 1;
        }
        let line = &mut self.lines[chosen as usize];
        line.passed = 0;
        let admitted = line.admit(&rooms)?;
        self.len -= 1;
        Some(admitted)
    }

    /// Drops expired requests, at most `max`. Returns whether that was all.
    pub fn drop_late(&mut self, now: Micros, max: usize) -> bool {
        let mut left = max;
        for line in &mut self.lines {
            let dropped = line.drop_late(now, left);
            (self.len, left) = (self.len - dropped, left - dropped);
        }
        left > 0
    }

    /// Corrects the charge of a request once its cost is known.
    pub fn correct(&mut self, position: AdmissionPosition, cost: u32) {
        let difference = i64::from(cost) - i64::from(position.cost);
        self.lines[position.class as usize].charge(position.tenant, difference);
    }

    /// Number of waiting requests of a route.
    pub fn len_on(&self, route: u64) -> usize {
        self.lines.iter().map(|line| line.len_on(Some(route))).sum()
    }

    /// Waiting requests that go before this one, of one route or of all: those of higher classes, and those of its own
    /// class that fairness and due times put before it. At most about `max`.
    pub fn ahead_of(&self, request: &AdmissionRequest, route: Option<u64>, max: usize) -> usize {
        let own = &self.lines[request.class as usize];
        let order = (request.due.unwrap_or(NO_DUE), u64::MAX);
        self.len_above(request.class, route) + own.ahead_of(request.tenant, order, route, max)
    }

    /// Drops requests of a route, or of all, that cannot be admitted when they are due if one is admitted in each
    /// `interval`: of each class those in the last slots, the lowest class first. Returns how many. One call
    /// drops at most a few hundred; later calls drop the rest.
    pub fn shed_hopeless(&mut self, route: Option<u64>, interval: Micros, now: Micros) -> usize {
        let before = self.len;
        for class in Class::ALL.into_iter().rev() {
            let above = self.len_above(class, route);
            let hopeless = |line: &ClassQueue<T>| {
                let (tenant, order) = line.last_due(route)?;
                let turns = turns_before(order.0, interval, now);
                let ahead = above + line.ahead_of(tenant, order, route, turns);
                (ahead >= turns).then_some(order.1)
            };
            while before - self.len < DROPPED_AT_ONCE_MAX
                && let Some(arrival) = hopeless(&self.lines[class as usize])
            {
                self.len -= usize::from(self.lines[class as usize].remove(arrival).is_some());
            }
        }
        before - self.len
    }

    /// Drops a request of the lowest class below this one: of the tenant that is furthest beyond its share the last.
    fn shed_below(&mut self, class: Class) -> bool {
        let lower = Class::ALL.into_iter().rev().take_while(|&lower| lower > class);
        let mut victims = lower.filter_map(|lower| {
            let line = &self.lines[lower as usize];
            line.least_deserving().map(|arrival| (lower, arrival))
        });
        let Some((lower, arrival)) = victims.next() else { return false };
        self.len -= usize::from(self.lines[lower as usize].remove(arrival).is_some());
        true
    }

    /// Whether a request still waits.
    #[cfg(test)]
    pub(crate) fn contains(&self, position: AdmissionPosition) -> bool {
        self.lines[position.class as usize].contains(position.slot.1)
    }

    fn len_above(&self, class: Class, route: Option<u64>) -> usize {
        self.lines[..class as usize].iter().map(|line| line.len_on(route)).sum()
    }

    /// The highest class with a request that fits, except that a class passed over too often goes first.
    fn choose(&self, fits: [bool; 3]) -> Option<Class> {
        let can = |class: &Class| fits[*class as usize];
        let is_due = |class: &Class| can(class) && self.lines[*class as usize].passed >= PASSED_MAX;
        Class::ALL.into_iter().rev().find(is_due).or(Class::ALL.into_iter().find(can))
    }

    fn position(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let AdmissionRequest { class, tenant, cost, route, due } = request;
        let cost = cost.max(1);
        self.arrivals += 1;
        let slot = self.lines[class as usize].slot(tenant, cost, self.arrivals);
        AdmissionPosition { class, tenant, cost, route, slot, due }
    }
}

/// How many requests are admitted until `due` if one is admitted in each `interval`.
pub(crate) fn turns_before(due: Micros, interval: Micros, now: Micros) -> usize {
    usize::try_from(due.since(now).0 / interval.0.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
