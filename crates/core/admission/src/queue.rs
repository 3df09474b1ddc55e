//! Requests that wait: by class, and within a class fair between tenants by what their requests cost.
//!
//! Within a class this is weighted fair queueing with equal weights. Each request has a *start*: where its tenant's work would
//! begin if all tenants were served at once, at equal rates. The least start goes first. So a tenant who sends a thousand
//! requests waits behind his own, and one who sends one now and then hardly waits.
//!
//! Between classes the higher goes first, but a class that was passed over [`PASSED_MAX`] times goes next: nobody starves.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::Class;

/// How often in a row a class that waits may be passed over for higher ones.
pub const PASSED_MAX: u32 = 8;

/// Tenants of whom it is remembered how far they are ahead, beyond those who wait.
const TENANTS_MAX: usize = 4_096;

/// Whose request it is, and what it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// How urgent.
    pub class: Class,
    /// Whose: a hash.
    pub tenant: u64,
    /// What it costs, in tokens; at least 1 is charged.
    pub cost: u32,
}

/// Where a request stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    class: Class,
    tenant: u64,
    cost: u32,
    key: Key,
}

/// The start, then the order of arrival.
type Key = (u64, u64);

/// There is no room to wait; here is who wanted to.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// The queue. `T` is what the driver needs to wake the one who waits.
#[derive(Debug)]
pub struct Queue<T> {
    lines: [Line<T>; 3],
    len: usize,
    len_max: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<Key, Waiting<T>>,
    tenants: BTreeMap<u64, Tenant>,
    /// Tenants with anybody waiting.
    backlogged: u64,
    /// How far all tenants' work would be if they were served at once.
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
    /// Where the work that it has asked for so far ends.
    finish: u64,
    /// Where the last of its requests stands. What is given back to it lets it begin earlier, but not before its own.
    last_start: u64,
    waiting: u32,
}

impl<T> Queue<T> {
    /// An empty queue for so many.
    pub fn new(len_max: usize) -> Queue<T> {
        Queue { lines: [Line::new(), Line::new(), Line::new()], len: 0, len_max, arrivals: 0 }
    }

    /// So many may wait from now on. Those who wait already stay, even if they are more.
    pub fn set_len_max(&mut self, len_max: usize) {
        self.len_max = len_max;
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of a class wait.
    pub fn len_of(&self, class: Class) -> usize {
        self.lines[class as usize].waiting.len()
    }

    /// Charges a request that need not wait.
    pub fn pass(&mut self, ask: Ask) -> Place {
        let place = self.place(ask);
        let line = &mut self.lines[ask.class as usize];
        line.serve(place.key.0, u64::from(place.cost));
        line.forget_if_many();
        place
    }

    /// Lets a request wait, until the deadline at most.
    pub fn push(&mut self, ask: Ask, deadline: Micros, item: T) -> Result<Place, Full<T>> {
        if self.len >= self.len_max {
            return Err(Full(item));
        }
        let place = self.place(ask);
        self.wait_at(place, deadline, item);
        Ok(place)
    }

    /// Lets a request wait again where it stood, which may be more than there is room for: it had been let in.
    pub fn wait_at(&mut self, place: Place, deadline: Micros, item: T) {
        let Place { class, tenant, cost, key } = place;
        let line = &mut self.lines[class as usize];
        let waiting = &mut line.tenants.entry(tenant).or_default().waiting;
        line.backlogged += u64::from(*waiting == 0);
        *waiting += 1;
        line.waiting.insert(key, Waiting { tenant, cost, deadline, item });
        self.len += 1;
    }

    /// Takes out one who waits no more. What it would have cost is given back to its tenant.
    pub fn remove(&mut self, place: Place) -> Option<T> {
        let line = &mut self.lines[place.class as usize];
        let waiting = line.take(place.key)?;
        self.len -= 1;
        line.charge(place.tenant, -i64::from(place.cost));
        line.forget_if_many();
        Some(waiting.item)
    }

    /// Takes the next for whom there is room. Those whose time is over are dropped on the way.
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

    /// Corrects what a request was charged, once it is known what it cost.
    pub fn correct(&mut self, place: Place, cost: u32) {
        let difference = i64::from(cost) - i64::from(place.cost);
        self.lines[place.class as usize].charge(place.tenant, difference);
    }

    /// The highest class with anybody to let in, but for one that has been passed over too often.
    fn choose(&self, heads: &[Option<Key>; 3]) -> Option<Class> {
        let can = |class: &Class| heads[*class as usize].is_some();
        let is_due = |class: &Class| can(class) && self.lines[*class as usize].passed >= PASSED_MAX;
        Class::ALL.into_iter().rev().find(is_due).or(Class::ALL.into_iter().find(can))
    }

    fn place(&mut self, ask: Ask) -> Place {
        let Ask { class, tenant, cost } = ask;
        let line = &mut self.lines[class as usize];
        let cost = cost.max(1);
        let work = line.tenants.entry(tenant).or_default();
        let start = work.finish.max(line.served);
        work.finish = start.saturating_add(cost.into());
        let start = if work.waiting > 0 { start.max(work.last_start) } else { start };
        work.last_start = start;
        self.arrivals += 1;
        Place { class, tenant, cost, key: (start, self.arrivals) }
    }
}

impl<T> Line<T> {
    fn new() -> Line<T> {
        Line { waiting: BTreeMap::new(), tenants: BTreeMap::new(), backlogged: 0, served: 0, passed: 0 }
    }

    /// The first for whom there is room.
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

    /// Drops those whose time is over; how many.
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

    /// Work was given to a request that starts here. All who want any share in the time that it takes; and nobody who comes
    /// later starts before it.
    fn serve(&mut self, start: u64, cost: u64) {
        self.served = self.served.max(start).saturating_add(cost / (self.backlogged + 1));
    }

    fn charge(&mut self, tenant: u64, cost: i64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.finish = tenant.finish.saturating_add_signed(cost);
        }
    }

    /// Tenants who are not ahead of anybody need not be remembered; the others are forgiven when there are too many.
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

    fn ask(tenant: u64, cost: u32) -> Ask {
        Ask { class: Class::Normal, tenant, cost }
    }

    fn all<T>(queue: &mut Queue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop(Micros::ZERO, |_| true)).collect()
    }

    #[test]
    fn one_who_sends_much_waits_behind_his_own() {
        let mut queue = Queue::new(100);
        (0..4).for_each(|_| _ = queue.push(ask(1, 100), NEVER, "much").unwrap());
        queue.push(ask(2, 100), NEVER, "little").unwrap();
        assert_eq!(all(&mut queue), ["much", "little", "much", "much", "much"]);
    }

    #[test]
    fn cost_counts_and_not_the_number_of_requests() {
        let mut queue = Queue::new(100);
        for _ in 0..2 {
            queue.push(ask(1, 400), NEVER, 'L').unwrap();
        }
        (0..8).for_each(|_| _ = queue.push(ask(2, 100), NEVER, 's').unwrap());
        let order: String = all(&mut queue).into_iter().collect();
        assert_eq!(order, "LssssLssss");
    }

    #[test]
    fn higher_classes_go_first_and_lower_ones_are_not_forgotten() {
        let mut queue = Queue::new(100);
        queue.push(Ask { class: Class::Low, ..ask(1, 1) }, NEVER, Class::Low).unwrap();
        (0..20).for_each(|_| {
            _ = queue.push(Ask { class: Class::High, ..ask(1, 1) }, NEVER, Class::High).unwrap()
        });
        let order = all(&mut queue);
        assert_eq!(order.iter().position(|class| *class == Class::Low), Some(PASSED_MAX as usize));
    }

    #[test]
    fn one_without_room_blocks_nobody_else() {
        let mut queue = Queue::new(100);
        queue.push(ask(1, 1), NEVER, "full model").unwrap();
        queue.push(ask(1, 1), NEVER, "free model").unwrap();
        assert_eq!(queue.pop(Micros::ZERO, |item| *item == "free model"), Some("free model"));
        assert_eq!(queue.pop(Micros::ZERO, |item| *item == "free model"), None);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn one_that_is_let_wait_again_stands_where_it_stood() {
        let mut queue = Queue::new(100);
        let place = queue.push(ask(1, 10), NEVER, "first").unwrap();
        queue.push(ask(2, 10), NEVER, "second").unwrap();
        let first = queue.pop(Micros::ZERO, |_| true).unwrap();
        queue.wait_at(place, NEVER, first);
        assert_eq!(all(&mut queue), ["first", "second"]);
    }

    #[test]
    fn what_a_request_cost_more_than_was_thought_its_tenant_pays() {
        let mut queue = Queue::new(100);
        let place = queue.pass(ask(1, 10));
        queue.correct(place, 1_000);
        queue.push(ask(1, 10), NEVER, "has had more").unwrap();
        queue.push(ask(2, 10), NEVER, "has had nothing").unwrap();
        assert_eq!(all(&mut queue), ["has had nothing", "has had more"]);
    }

    /// A flood of tenants with one request each, which all start where the work stands.
    #[test]
    fn newcomers_without_end_starve_nobody() {
        let mut queue = Queue::new(100);
        (0..2).for_each(|_| _ = queue.push(ask(0, 1_000), NEVER, 0).unwrap());
        let mut served = Vec::new();
        for newcomer in 1..2_000 {
            queue.push(ask(newcomer, 10), NEVER, newcomer).unwrap();
            served.extend(queue.pop(Micros::ZERO, |_| true));
        }
        assert_eq!(served.iter().filter(|tenant| **tenant == 0).count(), 2);
    }

    #[test]
    fn tenants_are_not_remembered_for_ever() {
        let mut queue: Queue<()> = Queue::new(1);
        (0..50_000).for_each(|tenant| _ = queue.pass(ask(tenant, 100)));
        assert!(queue.lines[Class::Normal as usize].tenants.len() <= TENANTS_MAX + 1);
    }

    /// Nobody is let in meanwhile: an outage must not fill the memory with everybody who came and left.
    #[test]
    fn tenants_who_leave_are_not_remembered_for_ever_either() {
        let mut queue: Queue<()> = Queue::new(10);
        for tenant in 0..50_000 {
            let place = queue.push(ask(tenant, 100), Micros::from_secs(tenant), ()).unwrap();
            if tenant % 2 == 0 {
                queue.remove(place).unwrap();
            } else {
                assert!(queue.pop(NEVER, |_| false).is_none(), "it is late, and dropped");
            }
        }
        assert!(queue.lines[Class::Normal as usize].tenants.len() <= TENANTS_MAX + 1);
    }

    #[test]
    fn what_is_given_back_lets_nobody_before_his_own_earlier_requests() {
        let mut queue = Queue::new(100);
        let large = queue.push(ask(1, 1_000), NEVER, 'L').unwrap();
        "ab".chars().for_each(|item| _ = queue.push(ask(1, 10), NEVER, item).unwrap());
        queue.remove(large).unwrap();
        queue.push(ask(1, 10), NEVER, 'c').unwrap();
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
        /// Whatever happens: it is bounded, nobody is let in late or twice, and nobody is lost.
        #[test]
        fn everybody_is_let_in_once_and_in_time_or_not_at_all(steps in prop::collection::vec(step(), 1..300)) {
            const MAX: usize = 20;
            let (mut queue, mut now, mut next) = (Queue::new(MAX), Micros::ZERO, 0_usize);
            let mut inside: BTreeMap<usize, (Place, Micros)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Push { class, tenant, cost, deadline_s } => {
                        let deadline = now + Micros::from_secs(deadline_s);
                        let is_full = queue.len() == MAX;
                        match queue.push(Ask { class, tenant, cost }, deadline, next) {
                            Ok(place) => _ = inside.insert(next, (place, deadline)),
                            Err(Full(item)) => prop_assert!(is_full && item == next),
                        }
                        next += 1;
                    }
                    Step::Pop => {
                        let popped = queue.pop(now, |_| true);
                        inside.retain(|_, (_, deadline)| *deadline > now);
                        match popped {
                            Some(item) => prop_assert!(inside.remove(&item).is_some(), "late, or twice"),
                            None => prop_assert!(inside.is_empty(), "somebody was left waiting"),
                        }
                    }
                    Step::Remove(n) => {
                        if let Some(item) = inside.keys().nth(n).copied() {
                            let (place, _) = inside.remove(&item).unwrap();
                            prop_assert_eq!(queue.remove(place), Some(item));
                        }
                    }
                    Step::Wait(s) => now = now + Micros::from_secs(s),
                }
                prop_assert!(queue.len() <= MAX);
                prop_assert_eq!(queue.len(), Class::ALL.iter().map(|class| queue.len_of(*class)).sum::<usize>());
            }
        }

        /// While several tenants always have something waiting, what any two of them are given never differs by more than two
        /// of the largest requests, whatever their requests cost.
        #[test]
        fn tenants_who_always_wait_are_given_equal_work(costs in prop::collection::vec((1..1_000_u32, 1..100_u32, 1..10_u32), 200)) {
            let mut queue = Queue::new(10_000);
            for (a, b, c) in &costs {
                for (tenant, cost) in [(0, *a), (1, *b), (2, *c)] {
                    queue.push(ask(tenant, cost), NEVER, (tenant, cost)).unwrap();
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

        /// Whatever was given back to a tenant or charged after the fact: in one class its requests are let in as they came.
        #[test]
        fn a_tenant_is_served_in_the_order_in_which_it_came(steps in prop::collection::vec((step(), 0..2_000_u32), 1..300)) {
            let mut queue = Queue::new(1_000);
            let (mut next, mut places) = (0_usize, Vec::<(Place, usize)>::new());
            let mut last = BTreeMap::new();
            for (step, cost_after) in steps {
                match step {
                    Step::Push { class, tenant, cost, .. } => {
                        let place = queue.push(Ask { class, tenant, cost }, NEVER, (class, tenant, next)).unwrap();
                        places.push((place, next));
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

        /// However many come after it, one that waits is let in within a bounded number of turns.
        #[test]
        fn nobody_starves(class in 0..3_usize, others in prop::collection::vec((0..3_usize, 0..4_u64, 1..100_u32), 600)) {
            let mut queue = Queue::new(100);
            queue.push(Ask { class: Class::ALL[class], tenant: 9, cost: 100 }, NEVER, true).unwrap();
            let was_let_in = others.into_iter().any(|(class, tenant, cost)| {
                queue.push(Ask { class: Class::ALL[class], tenant, cost }, NEVER, false).unwrap();
                queue.pop(Micros::ZERO, |_| true).unwrap()
            });
            prop_assert!(was_let_in);
        }
    }
}
