//! The admission queue: by class, and within a class fair between tenants by the cost of their requests.
//!
//! Within a class this is weighted fair queueing with equal weights. Each request has a *start*: the time at which
//! its tenant's work would begin if all tenants were served at once at equal rates. The smallest start goes first. So
//! a tenant with a thousand requests waits behind its own requests, and a tenant with few requests hardly waits.
//!
//! Between classes the higher one goes first, but a class that was passed over [`PASSED_MAX`] times goes next: no
//! class starves.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::Class;
use crate::class_work::ClassWork;

/// How often in a row a waiting class may be passed over for higher ones.
pub const PASSED_MAX: u32 = 8;

/// A request for admission.
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
}

/// A request's position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionPosition {
    class: Class,
    tenant: u64,
    cost: u32,
    route: u64,
    key: Key,
}

impl AdmissionPosition {
    /// The same position for a request that can now use other workers.
    pub fn on_route(self, route: u64) -> AdmissionPosition {
        AdmissionPosition { route, ..self }
    }
}

/// The start, then the order of arrival.
type Key = (u64, u64);

/// The queue is full. Contains the rejected item.
#[derive(Debug)]
pub struct QueueFull<T>(pub T);

/// The queue. `T` is what the driver needs to wake a waiting request.
///
/// Requests wait in one line per route and class, in the order of their keys. Admitting one looks at the first of each
/// line, and asks for room once per route. Expired requests are found by their deadlines.
#[derive(Debug)]
pub struct AdmissionQueue<T> {
    routes: BTreeMap<u64, [Line<T>; 3]>,
    classes: [ClassWork; 3],
    /// Positions by deadline, then by arrival.
    deadlines: BTreeMap<(Micros, u64), AdmissionPosition>,
    len_max: usize,
    arrivals: u64,
}

/// Waiting requests of one route and class.
type Line<T> = BTreeMap<Key, Waiting<T>>;

#[derive(Debug)]
struct Waiting<T> {
    deadline: Micros,
    item: T,
}

/// The first request of a class for which there is room.
type Head = Option<(Key, u64)>;

impl<T> AdmissionQueue<T> {
    /// An empty queue for this many requests.
    pub fn new(len_max: usize) -> AdmissionQueue<T> {
        AdmissionQueue {
            routes: BTreeMap::new(),
            classes: Default::default(),
            deadlines: BTreeMap::new(),
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
        self.deadlines.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Number of waiting requests of a class.
    pub fn len_of(&self, class: Class) -> usize {
        self.classes[class as usize].waiting()
    }

    /// Charges a request that need not wait.
    pub fn pass(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let position = self.position(request);
        self.classes[request.class as usize].serve(position.key.0, position.cost);
        position
    }

    /// Queues a request until its deadline.
    pub fn push(
        &mut self,
        request: AdmissionRequest,
        deadline: Micros,
        item: T,
    ) -> Result<AdmissionPosition, QueueFull<T>> {
        if self.len() >= self.len_max {
            return Err(QueueFull(item));
        }
        let position = self.position(request);
        self.wait_at(position, deadline, item);
        Ok(position)
    }

    /// Queues a request again at its former position, even beyond the limit: it had been admitted.
    pub fn wait_at(&mut self, position: AdmissionPosition, deadline: Micros, item: T) {
        let AdmissionPosition { class, tenant, route, key, .. } = position;
        self.classes[class as usize].begin_wait(tenant);
        let lines = self.routes.entry(route).or_insert_with(|| std::array::from_fn(|_| Line::new()));
        lines[class as usize].insert(key, Waiting { deadline, item });
        self.deadlines.insert((deadline, key.1), position);
    }

    /// Removes a request that stopped waiting, and refunds its cost to the tenant.
    pub fn remove(&mut self, position: AdmissionPosition) -> Option<T> {
        let item = self.take(position.class, position.route, position.key)?.1;
        self.classes[position.class as usize].refund(position.tenant, position.cost);
        Some(item)
    }

    /// Removes and returns the next request for which there is room. Drops expired requests on the way.
    pub fn pop(&mut self, now: Micros, has_room: impl FnMut(&T) -> bool) -> Option<T> {
        self.drop_late(now);
        let heads = self.heads(has_room);
        let chosen = self.choose(&heads)?;
        for class in Class::ALL.into_iter().filter(|&class| class > chosen && heads[class as usize].is_some())
        {
            self.classes[class as usize].passed += 1;
        }
        self.classes[chosen as usize].passed = 0;
        let (key, route) = heads[chosen as usize]?;
        let (position, item) = self.take(chosen, route, key)?;
        self.classes[chosen as usize].serve(key.0, position.cost);
        Some(item)
    }

    /// Corrects the charge of a request once its cost is known.
    pub fn correct(&mut self, position: AdmissionPosition, cost: u32) {
        let difference = i64::from(cost) - i64::from(position.cost);
        self.classes[position.class as usize].charge(position.tenant, difference);
    }

    /// The first request of each class for which there is room.
    fn heads(&self, mut has_room: impl FnMut(&T) -> bool) -> [Head; 3] {
        let mut heads = [None; 3];
        for (&route, lines) in &self.routes {
            let firsts = lines.each_ref().map(Line::first_key_value);
            let Some((_, any)) = firsts.iter().flatten().next() else { continue };
            if !has_room(&any.item) {
                continue;
            }
            for (head, first) in heads.iter_mut().zip(firsts) {
                let first = first.map(|(&key, _)| (key, route));
                *head = [*head, first].into_iter().flatten().min();
            }
        }
        heads
    }

    /// The highest class with a request to admit, except that a class passed over too often goes first.
    fn choose(&self, heads: &[Head; 3]) -> Option<Class> {
        let can = |class: &Class| heads[*class as usize].is_some();
        let is_due = |class: &Class| can(class) && self.classes[*class as usize].passed >= PASSED_MAX;
        Class::ALL.into_iter().rev().find(is_due).or(Class::ALL.into_iter().find(can))
    }

    /// Drops expired requests.
    fn drop_late(&mut self, now: Micros) {
        while let Some((_, &late)) =
            self.deadlines.first_key_value().filter(|((deadline, _), _)| *deadline <= now)
        {
            drop(self.remove(late));
        }
    }

    fn take(&mut self, class: Class, route: u64, key: Key) -> Option<(AdmissionPosition, T)> {
        let lines = self.routes.get_mut(&route)?;
        let Waiting { deadline, item } = lines[class as usize].remove(&key)?;
        if lines.iter().all(Line::is_empty) {
            self.routes.remove(&route);
        }
        let position = self.deadlines.remove(&(deadline, key.1))?;
        self.classes[class as usize].end_wait(position.tenant);
        Some((position, item))
    }

    fn position(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let AdmissionRequest { class, tenant, cost, route } = request;
        let cost = cost.max(1);
        let start = self.classes[class as usize].start(tenant, cost);
        self.arrivals += 1;
        AdmissionPosition { class, tenant, cost, route, key: (start, self.arrivals) }
    }
}

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
