//! The queue against a naive model: lists that are searched from end to end.

use proptest::prelude::*;

use super::*;
use crate::tenant_queue::AGAIN;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: usize,
    class: Class,
    tenant: u64,
    cost: u64,
    route: u64,
    due: Option<u64>,
    deadline: u64,
    arrival: u64,
    slot: (u64, u64),
}

impl Entry {
    /// Its place in line: a slot that it took because its own was taken has the same start.
    fn place(&self) -> (u64, u64) {
        (self.slot.0, self.arrival)
    }
}

#[derive(Clone, Debug, Default)]
struct Model {
    entries: Vec<Entry>,
    /// Slots of each class: tenant, slot.
    slots: [Vec<(u64, (u64, u64))>; 3],
    finish: [[u64; TENANTS]; 3],
    last_start: [[u64; TENANTS]; 3],
    served: [u64; 3],
    passed: [u32; 3],
    arrivals: u64,
    /// Admitted requests, which may wait again.
    admitted: Vec<Entry>,
}

const TENANTS: usize = 4;
const ROUTES: usize = 3;
const LEN_MAX: usize = 12;

impl Model {
    fn of(&self, class: Class) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.class == class)
    }

    fn first_slot(&self, class: Class, tenant: u64) -> Option<(u64, u64)> {
        self.slots[class as usize].iter().filter(|(owner, _)| *owner == tenant).map(|(_, slot)| *slot).min()
    }

    /// Adds a request, in a slot that follows from the others.
    fn push(&mut self, new: Entry) -> bool {
        let Entry { class, tenant, cost, .. } = new;
        if self.entries.len() >= LEN_MAX {
            let lowest = self.entries.iter().map(|entry| entry.class).max().unwrap();
            if lowest <= class {
                return false;
            }
            let (owner, _) = *self.slots[lowest as usize].iter().max_by_key(|(_, slot)| *slot).unwrap();
            let last = self.of(lowest).filter(|entry| entry.tenant == owner).max_by_key(|entry| order(entry));
            self.remove(last.unwrap().id);
        }
        self.arrivals += 1;
        let (class_at, tenant_at) = (class as usize, tenant as usize);
        let is_waiting = self.of(class).any(|entry| entry.tenant == tenant);
        let mut start = self.finish[class_at][tenant_at].max(self.served[class_at]);
        self.finish[class_at][tenant_at] = start + cost.max(1);
        if is_waiting {
            start = start.max(self.last_start[class_at][tenant_at]);
        }
        self.last_start[class_at][tenant_at] = start;
        let slot = (start, self.arrivals);
        self.slots[class_at].push((tenant, slot));
        self.entries.push(Entry { cost: cost.max(1), arrival: self.arrivals, slot, ..new });
        true
    }

    /// An admitted request waits again, in its slot or in another with the same start.
    fn wait_again(&mut self, id: usize) -> Option<Entry> {
        let at = self.admitted.iter().position(|entry| entry.id == id)?;
        let mut entry = self.admitted.remove(at);
        entry.slot = entry.place();
        let slots = &mut self.slots[entry.class as usize];
        while slots.contains(&(entry.tenant, entry.slot)) {
            entry.slot.1 += AGAIN;
        }
        slots.push((entry.tenant, entry.slot));
        self.entries.push(entry);
        Some(entry)
    }

    fn remove(&mut self, id: usize) {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return };
        let entry = self.entries.remove(at);
        let slots = &mut self.slots[entry.class as usize];
        let own = slots.iter().filter(|(owner, _)| *owner == entry.tenant).map(|(_, slot)| *slot);
        let own: Vec<_> = own.collect();
        let spent = if own.contains(&entry.slot) { entry.slot } else { *own.iter().max().unwrap() };
        slots.retain(|(_, slot)| *slot != spent);
        let finish = &mut self.finish[entry.class as usize][entry.tenant as usize];
        *finish = finish.saturating_sub(entry.cost);
    }

    fn head(&self, class: Class, rooms: [bool; ROUTES]) -> Option<Entry> {
        let fits = |entry: &&Entry| rooms[entry.route as usize];
        let first = self.of(class).filter(fits).min_by_key(|entry| {
            let (due, arrival) = order(entry);
            (self.first_slot(class, entry.tenant), due, arrival)
        })?;
        let start = self.first_slot(class, first.tenant)?.0;
        let reached = self.served[class as usize].max(start);
        let has_turn = |entry: &&Entry| {
            entry.due.is_some() && self.first_slot(class, entry.tenant).is_some_and(|slot| slot.0 <= reached)
        };
        Some(*self.of(class).filter(fits).filter(has_turn).min_by_key(|entry| order(entry)).unwrap_or(first))
    }

    fn pop(&mut self, now: u64, rooms: [bool; ROUTES]) -> Option<usize> {
        let late: Vec<usize> = {
            let mut late: Vec<Entry> =
                self.entries.iter().filter(|entry| entry.deadline <= now).copied().collect();
            late.sort_by_key(|entry| (entry.deadline, entry.arrival));
            late.iter().map(|entry| entry.id).collect()
        };
        late.into_iter().for_each(|id| self.remove(id));
        let heads = Class::ALL.map(|class| self.head(class, rooms));
        let is_due = |class: &&Entry| self.passed[class.class as usize] >= PASSED_MAX;
        let chosen = *heads.iter().flatten().rev().find(is_due).or(heads.iter().flatten().next())?;
        let lower = heads.iter().flatten().filter(|head| head.class > chosen.class);
        lower.for_each(|head| self.passed[head.class as usize] += 1);
        self.passed[chosen.class as usize] = 0;
        let spent = self.first_slot(chosen.class, chosen.tenant)?;
        self.slots[chosen.class as usize].retain(|(_, slot)| *slot != spent);
        self.entries.retain(|entry| entry.id != chosen.id);
        self.admitted.push(chosen);
        let mut tenants: Vec<u64> = self.of(chosen.class).map(|entry| entry.tenant).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let served = &mut self.served[chosen.class as usize];
        *served = (*served).max(spent.0) + chosen.cost / (tenants.len() as u64 + 1);
        Some(chosen.id)
    }

    /// Requests that go before this one in its class, of one route or of all.
    fn ahead(&self, of: &Entry, route: Option<u64>, max: u64) -> u64 {
        let is_on = |entry: &&Entry| route.is_none_or(|route| entry.route == route);
        let class = || self.of(of.class).filter(is_on);
        let earlier = |entry: &&Entry| order(entry) < order(of);
        let own = self.of(of.class).filter(|entry| entry.tenant == of.tenant).filter(earlier).count();
        let mut slots: Vec<_> =
            self.slots[of.class as usize].iter().filter(|(owner, _)| *owner == of.tenant).collect();
        slots.sort_unstable();
        let slot = if own as u64 >= max { (u64::MAX, u64::MAX) } else { slots[own].1 };
        let in_slots = class().filter(|entry| entry.place() < slot).count();
        let is_due = |entry: &&Entry| entry.due.is_some();
        match of.due.is_some() && slot.0 <= self.served[of.class as usize] {
            true => in_slots.min(class().filter(is_due).filter(earlier).count()) as u64,
            false => in_slots as u64,
        }
    }

    /// Requests that would go before a new one, at most about `max`.
    fn ahead_of_new(&self, new: Entry, route: Option<u64>, max: u64) -> u64 {
        let is_on = |entry: &&Entry| route.is_none_or(|route| entry.route == route);
        let above = self.entries.iter().filter(|entry| entry.class < new.class).filter(is_on).count() as u64;
        let mut model = self.clone();
        let own = model.slots[new.class as usize].iter().any(|(owner, _)| *owner == new.tenant);
        let finish = model.finish[new.class as usize][new.tenant as usize];
        let mut start = finish.max(model.served[new.class as usize]);
        if own {
            start = start.max(model.last_start[new.class as usize][new.tenant as usize]);
        }
        model.slots[new.class as usize].push((new.tenant, (start, u64::MAX)));
        above + model.ahead(&Entry { arrival: u64::MAX, ..new }, route, max).min(max)
    }

    fn shed(&mut self, route: Option<u64>, interval: u64, now: u64) -> usize {
        let before = self.entries.len();
        let is_on = |entry: &&Entry| route.is_none_or(|route| entry.route == route);
        for class in Class::ALL.into_iter().rev() {
            loop {
                let with_due = self.of(class).filter(is_on).filter(|entry| entry.due.is_some());
                let Some(last) = with_due.max_by_key(|entry| entry.place()).copied() else { break };
                let above =
                    self.entries.iter().filter(|entry| entry.class < class).filter(is_on).count() as u64;
                let turns = last.due.unwrap().saturating_sub(now) * 1_000_000 / (interval * 1_000_000).max(1);
                if above + self.ahead(&last, route, turns) < turns {
                    break;
                }
                self.remove(last.id);
            }
        }
        before - self.entries.len()
    }
}

fn order(entry: &Entry) -> (u64, u64) {
    (entry.due.unwrap_or(u64::MAX), entry.arrival)
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        class: Class,
        tenant: u64,
        cost: u32,
        route: u64,
        due_s: Option<u64>,
        deadline_s: u64,
    },
    /// Admits the next request on the routes with room.
    Pop([bool; ROUTES]),
    Remove(usize),
    /// An admitted request waits again.
    Return(usize),
    /// Asks how many would go before a new request.
    Predict {
        class: Class,
        tenant: u64,
        route: Option<u64>,
        due_s: Option<u64>,
        max: usize,
    },
    Shed {
        route: Option<u64>,
        interval_s: u64,
    },
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let class = || prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
    let due = || prop_oneof![Just(None), (1..30_u64).prop_map(Some)];
    let (tenant, route) = (0..TENANTS as u64, 0..ROUTES as u64);
    // Costs that are often the same give slots with the same start.
    let cost = prop_oneof![Just(100_u32), 0..500_u32];
    prop_oneof![
        8 => (class(), tenant.clone(), cost, route.clone(), due(), 1..60_u64).prop_map(
            |(class, tenant, cost, route, due_s, deadline_s)| Step::Push {
                class,
                tenant,
                cost,
                route,
                due_s,
                deadline_s
            }
        ),
        3 => Just(Step::Pop([true; ROUTES])),
        3 => prop::array::uniform3(any::<bool>()).prop_map(Step::Pop),
        1 => (0..12_usize).prop_map(Step::Remove),
        1 => (0..4_usize).prop_map(Step::Return),
        2 => (class(), tenant, prop::option::of(route.clone()), due(), 1..LEN_MAX).prop_map(
            |(class, tenant, route, due_s, max)| Step::Predict { class, tenant, route, due_s, max }
        ),
        1 => (prop::option::of(route), 0..8_u64).prop_map(|(route, interval_s)| Step::Shed { route, interval_s }),
        1 => (0..5_u64).prop_map(Step::Later),
    ]
}

/// The queue and its model, with what a driver knows of the requests.
struct Pair {
    queue: AdmissionQueue<usize>,
    model: Model,
    now_s: u64,
    positions: Vec<(usize, AdmissionPosition)>,
}

impl Pair {
    fn take(&mut self, id: usize, step: Step) {
        let (now_s, now) = (self.now_s, Micros::from_secs(self.now_s));
        match step {
            Step::Push { class, tenant, cost, route, due_s, deadline_s } => {
                let new = Entry {
                    cost: cost.into(),
                    deadline: now_s + deadline_s,
                    ..self.entry(id, class, tenant, due_s)
                };
                let request = AdmissionRequest { cost, route, ..request(&new) };
                let pushed = self.queue.push(request, now + Micros::from_secs(deadline_s), id);
                assert_eq!(pushed.is_ok(), self.model.push(Entry { route, ..new }));
                self.positions.extend(pushed.ok().map(|position| (id, position)));
            }
            Step::Pop(rooms) => {
                let routes: BTreeMap<usize, u64> =
                    self.model.entries.iter().map(|entry| (entry.id, entry.route)).collect();
                let popped = self.queue.pop(now, |id| rooms[routes[id] as usize]);
                assert_eq!(popped, self.model.pop(now_s, rooms));
            }
            Step::Remove(n) if n < self.positions.len() => {
                let (id, position) = self.positions.swap_remove(n);
                let waits = self.model.entries.iter().any(|entry| entry.id == id);
                self.model.remove(id);
                assert_eq!(self.queue.remove(position), waits.then_some(id));
            }
            Step::Return(n) if n < self.model.admitted.len() => {
                let id = self.model.admitted[n].id;
                let Some((_, position)) = self.positions.iter().find(|(other, _)| *other == id) else {
                    return;
                };
                let entry = self.model.wait_again(id).unwrap();
                self.queue.wait_at(*position, Micros::from_secs(entry.deadline), id);
            }
            Step::Predict { class, tenant, route, due_s, max } => {
                let new = self.entry(id, class, tenant, due_s);
                let ahead = self.queue.ahead_of(&request(&new), route, max);
                assert_eq!(ahead as u64, self.model.ahead_of_new(new, route, max as u64));
            }
            Step::Shed { route, interval_s } => {
                let shed = self.queue.shed_hopeless(route, Micros::from_secs(interval_s), now);
                assert_eq!(shed, self.model.shed(route, interval_s, now_s));
            }
            Step::Later(s) => self.now_s += s,
            Step::Remove(_) | Step::Return(_) => {}
        }
    }

    fn entry(&self, id: usize, class: Class, tenant: u64, due_s: Option<u64>) -> Entry {
        let due = due_s.map(|due_s| self.now_s + due_s);
        Entry { id, class, tenant, cost: 0, route: 0, due, deadline: 0, arrival: 0, slot: (0, 0) }
    }
}

fn request(entry: &Entry) -> AdmissionRequest {
    let due = entry.due.map(Micros::from_secs);
    AdmissionRequest { class: entry.class, tenant: entry.tenant, cost: 0, route: entry.route, due }
}

proptest! {
    /// Order, places, predictions, drops and lengths are those of the model, whatever comes.
    #[test]
    fn the_queue_does_what_the_model_does(steps in prop::collection::vec(step(), 1..300)) {
        let queue = AdmissionQueue::new(LEN_MAX);
        let mut pair = Pair { queue, model: Model::default(), now_s: 0, positions: Vec::new() };
        for (id, step) in steps.into_iter().enumerate() {
            pair.take(id, step);
            for class in Class::ALL {
                prop_assert_eq!(pair.queue.len_of(class), pair.model.of(class).count());
            }
            prop_assert_eq!(pair.queue.len(), pair.model.entries.len());
        }
    }

    /// A tenant whose requests all claim to be urgent gets no more work than one without deadlines, up to two of the
    /// largest requests.
    #[test]
    fn urgency_brings_no_tenant_more_than_its_share(costs in prop::collection::vec((1..100_u32, 1..100_u32), 200)) {
        let mut queue = AdmissionQueue::new(1_000);
        for (patient, urgent) in &costs {
            for (tenant, cost, due) in [(0, *patient, None), (1, *urgent, Some(Micros(1)))] {
                let request = AdmissionRequest { class: Class::Normal, tenant, cost, route: 0, due };
                queue.push(request, Micros(u64::MAX), (tenant, cost)).unwrap();
            }
        }
        let mut given = [0_i64; 2];
        let least: u32 = costs.iter().map(|(patient, urgent)| (*patient).min(*urgent)).sum();
        while given.iter().max().unwrap() + 200 < i64::from(least) {
            let (tenant, cost) = queue.pop(Micros::ZERO, |_| true).unwrap();
            given[tenant as usize] += i64::from(cost);
            prop_assert!((given[0] - given[1]).abs() <= 200, "{:?}", given);
        }
    }
}

#[test]
fn the_earliest_deadline_goes_first_and_requests_without_one_follow() {
    let mut queue = AdmissionQueue::new(10);
    for (item, due) in [("none", None), ("late", Some(9)), ("soon", Some(3)), ("next", Some(5))] {
        let due = due.map(Micros::from_secs);
        let request = AdmissionRequest { class: Class::Normal, tenant: 1, cost: 10, route: 0, due };
        queue.push(request, Micros(u64::MAX), item).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| queue.pop(Micros::ZERO, |_| true)).collect();
    assert_eq!(order, ["soon", "next", "late", "none"]);
}

#[test]
fn a_full_queue_drops_the_lowest_class_for_a_higher_one_only() {
    let mut queue = AdmissionQueue::new(2);
    let request = |class| AdmissionRequest { class, tenant: 1, cost: 10, route: 0, due: None };
    let mut push = |class| queue.push(request(class), Micros(u64::MAX), class).is_ok();
    assert!(push(Class::Low) && push(Class::Normal));
    assert!(!push(Class::Low), "nothing is lower");
    assert!(push(Class::High), "the low one goes");
    assert!(push(Class::High), "the normal one goes");
    assert!(!push(Class::High));
    assert_eq!((queue.len_of(Class::High), queue.len()), (2, 2));
}
