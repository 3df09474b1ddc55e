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

/// How often in a row a waiting class may be passed over for higher ones.
pub const PASSED_MAX: u32 = 8;

/// Most tenants without waiting requests whose lead is remembered.
const TENANTS_MAX: usize = 4_096;

/// A request for admission.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest {
    /// Its priority.
    pub class: Class,
    /// Its tenant, as a hash.
    pub tenant: u64,
    /// Its cost in tokens; at least 1 is charged.
    pub cost: u32,
}

/// A request's position in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionPosition {
    class: Class,
    tenant: u64,
    cost: u32,
    key: Key,
}

/// The start, then the order of arrival.
type Key = (u64, u64);

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

#[derive(Debug)]
struct ClassQueue<T> {
    waiting: BTreeMap<Key, Waiting<T>>,
    tenants: BTreeMap<u64, Tenant>,
    /// Number of tenants with waiting requests.
    backlogged: u64,
    /// How far all tenants' work would have advanced if they were served at once.
    served: u64,
    passed: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    tenant: u64,
    cost: u32,
    deadline: Micros,
    item: T,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    /// The end of the work that the tenant has requested so far.
    finish: u64,
    /// The start of its last request. A refund lets its next request start earlier, but not before this one.
    last_start: u64,
    waiting: u32,
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
        self.lines[class as usize].waiting.len()
    }

    /// Charges a request that need not wait.
    pub fn pass(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let position = self.position(request);
        let line = &mut self.lines[request.class as usize];
        line.serve(position.key.0, u64::from(position.cost));
        line.forget_if_many();
        position
    }

    /// Queues a request until its deadline.
    pub fn push(
        &mut self,
        request: AdmissionRequest,
        deadline: Micros,
        item: T,
    ) -> Result<AdmissionPosition, QueueFull<T>> {
        if self.len >= self.len_max {
            return Err(QueueFull(item));
        }
        let position = self.position(request);
        self.wait_at(position, deadline, item);
        Ok(position)
    }

    /// Queues a request again at its former position, even beyond the limit: it had been admitted.
    pub fn wait_at(&mut self, position: AdmissionPosition, deadline: Micros, item: T) {
        let AdmissionPosition { class, tenant, cost, key } = position;
        let line = &mut self.lines[class as usize];
        let waiting = &mut line.tenants.entry(tenant).or_default().waiting;
        line.backlogged += u64::from(*waiting == 0);
        *waiting += 1;
        line.waiting.insert(key, Waiting { tenant, cost, deadline, item });
        self.len += 1;
    }

    /// Removes a request that stopped waiting, and refunds its cost to the tenant.
    pub fn remove(&mut self, position: AdmissionPosition) -> Option<T> {
        let line = &mut self.lines[position.class as usize];
        let waiting = line.take(position.key)?;
        self.len -= 1;
        line.charge(position.tenant, -i64::from(position.cost));
        line.forget_if_many();
        Some(waiting.item)
    }

    /// Removes and returns the next request for which there is room. Drops expired requests on the way.
    pub fn pop(&mut self, now: Micros, mut has_room: impl FnMut(&T) -> bool) -> Option<T> {
        let heads = Class::ALL.map(|class| {
            let line = &mut self.lines[class as usize];
            self.len -= line.drop_late(now);
            line.head(&mut has_room)
        });
        let chosen = self.choose(&heads)?;
        for class in Class::ALL.into_iter().filter(|&class| class > chosen && heads[class as usize].is_some())
        {
            self.lines[class as usize].passed += 1;
        }
        let line = &mut self.lines[chosen as usize];
        line.passed = 0;
        let waiting = line.take(heads[chosen as usize]?)?;
        self.len -= 1;
        line.serve(heads[chosen as usize]?.0, u64::from(waiting.cost));
        line.forget_if_many();
        Some(waiting.item)
    }

    /// Corrects the charge of a request once its cost is known.
    pub fn correct(&mut self, position: AdmissionPosition, cost: u32) {
        let difference = i64::from(cost) - i64::from(position.cost);
        self.lines[position.class as usize].charge(position.tenant, difference);
    }

    /// The highest class with a request to admit, except that a class passed over too often goes first.
    fn choose(&self, heads: &[Option<Key>; 3]) -> Option<Class> {
        let can = |class: &Class| heads[*class as usize].is_some();
        let is_due = |class: &Class| can(class) && self.lines[*class as usize].passed >= PASSED_MAX;
        Class::ALL.into_iter().rev().find(is_due).or(Class::ALL.into_iter().find(can))
    }

    fn position(&mut self, request: AdmissionRequest) -> AdmissionPosition {
        let AdmissionRequest { class, tenant, cost } = request;
        let line = &mut self.lines[class as usize];
        let cost = cost.max(1);
        let work = line.tenants.entry(tenant).or_default();
        let start = work.finish.max(line.served);
        work.finish = start.saturating_add(cost.into());
        let start = if work.waiting > 0 { start.max(work.last_start) } else { start };
        work.last_start = start;
        self.arrivals += 1;
        AdmissionPosition { class, tenant, cost, key: (start, self.arrivals) }
    }
}

impl<T> ClassQueue<T> {
    fn new() -> ClassQueue<T> {
        ClassQueue { waiting: BTreeMap::new(), tenants: BTreeMap::new(), backlogged: 0, served: 0, passed: 0 }
    }

    /// The first request for which there is room.
    fn head(&self, has_room: &mut impl FnMut(&T) -> bool) -> Option<Key> {
        self.waiting.iter().find(|(_, waiting)| has_room(&waiting.item)).map(|(key, _)| *key)
    }

    fn take(&mut self, key: Key) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&key)?;
        if let Some(tenant) = self.tenants.get_mut(&waiting.tenant) {
            tenant.waiting -= 1;
            self.backlogged -= u64::from(tenant.waiting == 0);
        }
        Some(waiting)
    }

    /// Drops expired requests and returns how many.
    fn drop_late(&mut self, now: Micros) -> usize {
        let late = self.waiting.iter().filter(|(_, waiting)| waiting.deadline <= now);
        let late: Vec<Key> = late.map(|(key, _)| *key).collect();
        late.iter().for_each(|key| {
            let late = self.take(*key);
            late.iter().for_each(|late| self.charge(late.tenant, -i64::from(late.cost)));
        });
        self.forget_if_many();
        late.len()
    }

    /// Accounts for work given to a request with this start. All tenants with requests share the time that it takes,
    /// and no later request starts before it.
    fn serve(&mut self, start: u64, cost: u64) {
        self.served = self.served.max(start).saturating_add(cost / (self.backlogged + 1));
    }

    fn charge(&mut self, tenant: u64, cost: i64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.finish = tenant.finish.saturating_add_signed(cost);
        }
    }

    /// Drops tenants that have no lead; when too many are left, forgives their leads.
    fn forget_if_many(&mut self) {
        if self.tenants.len() > TENANTS_MAX + self.waiting.len() {
            let served = self.served;
            self.tenants.retain(|_, tenant| tenant.waiting > 0 || tenant.finish > served);
        }
        if self.tenants.len() > TENANTS_MAX + self.waiting.len() {
            self.tenants.retain(|_, tenant| tenant.waiting > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEVER: Micros = Micros(u64::MAX);

    fn request(tenant: u64, cost: u32) -> AdmissionRequest {
        AdmissionRequest { class: Class::Normal, tenant, cost }
    }

    fn all<T>(queue: &mut AdmissionQueue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop(Micros::ZERO, |_| true)).collect()
    }

    #[test]
    fn a_busy_tenant_waits_behind_its_own_requests() {
        let mut queue = AdmissionQueue::new(100);
        (0..4).for_each(|_| _ = queue.push(request(1, 100), NEVER, "much").unwrap());
        queue.push(request(2, 100), NEVER, "little").unwrap();
        assert_eq!(all(&mut queue), ["much", "little", "much", "much", "much"]);
    }

    #[test]
    fn tenants_share_by_cost_and_not_by_number_of_requests() {
        let mut queue = AdmissionQueue::new(100);
        for _ in 0..2 {
            queue.push(request(1, 400), NEVER, 'L').unwrap();
        }
        (0..8).for_each(|_| _ = queue.push(request(2, 100), NEVER, 's').unwrap());
        let order: String = all(&mut queue).into_iter().collect();
        assert_eq!(order, "LssssLssss");
    }

    #[test]
    fn higher_classes_go_first_and_lower_ones_do_not_starve() {
        let mut queue = AdmissionQueue::new(100);
        queue.push(AdmissionRequest { class: Class::Low, ..request(1, 1) }, NEVER, Class::Low).unwrap();
        (0..20).for_each(|_| {
            _ = queue
                .push(AdmissionRequest { class: Class::High, ..request(1, 1) }, NEVER, Class::High)
                .unwrap()
        });
        let order = all(&mut queue);
        assert_eq!(order.iter().position(|class| *class == Class::Low), Some(PASSED_MAX as usize));
    }

    #[test]
    fn a_request_without_room_blocks_no_other() {
        let mut queue = AdmissionQueue::new(100);
        queue.push(request(1, 1), NEVER, "full model").unwrap();
        queue.push(request(1, 1), NEVER, "free model").unwrap();
        assert_eq!(queue.pop(Micros::ZERO, |item| *item == "free model"), Some("free model"));
        assert_eq!(queue.pop(Micros::ZERO, |item| *item == "free model"), None);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn a_request_that_waits_again_keeps_its_position() {
        let mut queue = AdmissionQueue::new(100);
        let position = queue.push(request(1, 10), NEVER, "first").unwrap();
        queue.push(request(2, 10), NEVER, "second").unwrap();
        let first = queue.pop(Micros::ZERO, |_| true).unwrap();
        queue.wait_at(position, NEVER, first);
        assert_eq!(all(&mut queue), ["first", "second"]);
    }

    #[test]
    fn a_tenant_pays_for_the_excess_cost_of_its_requests() {
        let mut queue = AdmissionQueue::new(100);
        let position = queue.pass(request(1, 10));
        queue.correct(position, 1_000);
        queue.push(request(1, 10), NEVER, "has had more").unwrap();
        queue.push(request(2, 10), NEVER, "has had nothing").unwrap();
        assert_eq!(all(&mut queue), ["has had nothing", "has had more"]);
    }

    /// Many tenants with one request each, which all start where the work stands.
    #[test]
    fn a_flood_of_new_tenants_starves_no_request() {
        let mut queue = AdmissionQueue::new(100);
        (0..2).for_each(|_| _ = queue.push(request(0, 1_000), NEVER, 0).unwrap());
        let mut served = Vec::new();
        for newcomer in 1..2_000 {
            queue.push(request(newcomer, 10), NEVER, newcomer).unwrap();
            served.extend(queue.pop(Micros::ZERO, |_| true));
        }
        assert_eq!(served.iter().filter(|tenant| **tenant == 0).count(), 2);
    }

    #[test]
    fn idle_tenants_are_dropped() {
        let mut queue: AdmissionQueue<()> = AdmissionQueue::new(1);
        (0..50_000).for_each(|tenant| _ = queue.pass(request(tenant, 100)));
        assert!(queue.lines[Class::Normal as usize].tenants.len() <= TENANTS_MAX + 1);
    }

    /// No request is admitted meanwhile: an outage must not fill the memory with tenants that came and left.
    #[test]
    fn tenants_that_stopped_waiting_are_dropped() {
        let mut queue: AdmissionQueue<()> = AdmissionQueue::new(10);
        for tenant in 0..50_000 {
            let position = queue.push(request(tenant, 100), Micros::from_secs(tenant), ()).unwrap();
            if tenant % 2 == 0 {
                queue.remove(position).unwrap();
            } else {
                assert!(queue.pop(NEVER, |_| false).is_none(), "it is late, and dropped");
            }
        }
        assert!(queue.lines[Class::Normal as usize].tenants.len() <= TENANTS_MAX + 1);
    }

    #[test]
    fn a_refund_does_not_reorder_a_tenants_requests() {
        let mut queue = AdmissionQueue::new(100);
        let large = queue.push(request(1, 1_000), NEVER, 'L').unwrap();
        "ab".chars().for_each(|item| _ = queue.push(request(1, 10), NEVER, item).unwrap());
        queue.remove(large).unwrap();
        queue.push(request(1, 10), NEVER, 'c').unwrap();
        assert_eq!(all(&mut queue), ['a', 'b', 'c']);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { class: Class, tenant: u64, cost: u32, deadline_s: u64 },
        Pop,
        Remove(usize),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
        prop_oneof![
            4 => (class, 0..5_u64, 0..500_u32, 1..50_u64)
                .prop_map(|(class, tenant, cost, deadline_s)| Step::Push { class, tenant, cost, deadline_s }),
            3 => Just(Step::Pop),
            1 => (0..50_usize).prop_map(Step::Remove),
            1 => (0..10_u64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// In every sequence the queue is bounded, no request is admitted late or twice, and none is lost.
        #[test]
        fn every_request_is_admitted_at_most_once_and_in_time(steps in prop::collection::vec(step(), 1..300)) {
            const MAX: usize = 20;
            let (mut queue, mut now, mut next) = (AdmissionQueue::new(MAX), Micros::ZERO, 0_usize);
            let mut inside: BTreeMap<usize, (AdmissionPosition, Micros)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Push { class, tenant, cost, deadline_s } => {
                        let deadline = now + Micros::from_secs(deadline_s);
                        let is_full = queue.len() == MAX;
                        match queue.push(AdmissionRequest { class, tenant, cost }, deadline, next) {
                            Ok(position) => _ = inside.insert(next, (position, deadline)),
                            Err(QueueFull(item)) => prop_assert!(is_full && item == next),
                        }
                        next += 1;
                    }
                    Step::Pop => {
                        let popped = queue.pop(now, |_| true);
                        inside.retain(|_, (_, deadline)| *deadline > now);
                        match popped {
                            Some(item) => prop_assert!(inside.remove(&item).is_some(), "late, or twice"),
                            None => prop_assert!(inside.is_empty(), "a request was left waiting"),
                        }
                    }
                    Step::Remove(n) => {
                        if let Some(item) = inside.keys().nth(n).copied() {
                            let (position, _) = inside.remove(&item).unwrap();
                            prop_assert_eq!(queue.remove(position), Some(item));
                        }
                    }
                    Step::Wait(s) => now = now + Micros::from_secs(s),
                }
                prop_assert!(queue.len() <= MAX);
                prop_assert_eq!(queue.len(), Class::ALL.iter().map(|class| queue.len_of(*class)).sum::<usize>());
            }
        }

        /// While several tenants always have requests waiting, the work given to any two of them differs by at most
        /// two of the largest requests.
        #[test]
        fn backlogged_tenants_get_equal_work(costs in prop::collection::vec((1..1_000_u32, 1..100_u32, 1..10_u32), 200)) {
            let mut queue = AdmissionQueue::new(10_000);
            for (a, b, c) in &costs {
                for (tenant, cost) in [(0, *a), (1, *b), (2, *c)] {
                    queue.push(request(tenant, cost), NEVER, (tenant, cost)).unwrap();
                }
            }
            let mut given = [0_i64; 3];
            let least: u32 = costs.iter().map(|(.., c)| c).sum();
            while given[2] + 10 < i64::from(least) {
                let (tenant, cost) = queue.pop(Micros::ZERO, |_| true).unwrap();
                given[tenant as usize] += i64::from(cost);
                let spread = given.iter().max().unwrap() - given.iter().min().unwrap();
                prop_assert!(spread <= 2 * 1_000, "{given:?}");
            }
        }

        /// After refunds and late charges, a tenant's requests in one class are still admitted in the order of
        /// arrival.
        #[test]
        fn a_tenants_requests_are_served_in_order(steps in prop::collection::vec((step(), 0..2_000_u32), 1..300)) {
            let mut queue = AdmissionQueue::new(1_000);
            let (mut next, mut places) = (0_usize, Vec::<(AdmissionPosition, usize)>::new());
            let mut last = BTreeMap::new();
            for (step, cost_after) in steps {
                match step {
                    Step::Push { class, tenant, cost, .. } => {
                        let position = queue.push(AdmissionRequest { class, tenant, cost }, NEVER, (class, tenant, next)).unwrap();
                        places.push((position, next));
                        next += 1;
                    }
                    Step::Pop => {
                        let Some((class, tenant, item)) = queue.pop(Micros::ZERO, |_| true) else { continue };
                        let before = last.insert((class, tenant), item);
                        prop_assert!(before < Some(item), "{item} was let in after {before:?}");
                        let at = places.iter().position(|(_, other)| *other == item).unwrap();
                        queue.correct(places.swap_remove(at).0, cost_after);
                    }
                    Step::Remove(n) if n < places.len() => _ = queue.remove(places.swap_remove(n).0).unwrap(),
                    _ => {}
                }
            }
        }

        /// A waiting request is admitted within a bounded number of turns, however many arrive after it.
        #[test]
        fn no_class_starves(class in 0..3_usize, others in prop::collection::vec((0..3_usize, 0..4_u64, 1..100_u32), 600)) {
            let mut queue = AdmissionQueue::new(100);
            queue.push(AdmissionRequest { class: Class::ALL[class], tenant: 9, cost: 100 }, NEVER, true).unwrap();
            let was_let_in = others.into_iter().any(|(class, tenant, cost)| {
                queue.push(AdmissionRequest { class: Class::ALL[class], tenant, cost }, NEVER, false).unwrap();
                queue.pop(Micros::ZERO, |_| true).unwrap()
            });
            prop_assert!(was_let_in);
        }
    }
}
