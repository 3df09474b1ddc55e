//! The queue against a naive model: lists that are searched from end to end.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: usize,
    class: Class,
    tenant: u64,
    cost: u64,
    route: u64,
    due: Option<u64>,
    deadline: u64,
    slot: (u64, u64),
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
}

const TENANTS: usize = 4;
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
        self.entries.push(Entry { cost: cost.max(1), slot, ..new });
        true
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

    fn head(&self, class: Class) -> Option<Entry> {
        let first = self.of(class).min_by_key(|entry| {
            let (due, arrival) = order(entry);
            (self.first_slot(class, entry.tenant), due, arrival)
        })?;
        let start = self.first_slot(class, first.tenant)?.0;
        let reached = self.served[class as usize].max(start);
        let has_turn = |entry: &&Entry| {
            entry.due.is_some() && self.first_slot(class, entry.tenant).is_some_and(|slot| slot.0 <= reached)
        };
        Some(*self.of(class).filter(has_turn).min_by_key(|entry| order(entry)).unwrap_or(first))
    }

    fn pop(&mut self, now: u64) -> Option<usize> {
        let late: Vec<usize> = {
            let mut late: Vec<Entry> =
                self.entries.iter().filter(|entry| entry.deadline <= now).copied().collect();
            late.sort_by_key(|entry| (entry.deadline, entry.slot.1));
            late.iter().map(|entry| entry.id).collect()
        };
        late.into_iter().for_each(|id| self.remove(id));
        let heads = Class::ALL.map(|class| self.head(class));
        let is_due = |class: &&Entry| self.passed[class.class as usize] >= PASSED_MAX;
        let chosen = *heads.iter().flatten().rev().find(is_due).or(heads.iter().flatten().next())?;
        let lower = heads.iter().flatten().filter(|head| head.class > chosen.class);
        lower.for_each(|head| self.passed[head.class as usize] += 1);
        self.passed[chosen.class as usize] = 0;
        let spent = self.first_slot(chosen.class, chosen.tenant)?;
        self.slots[chosen.class as usize].retain(|(_, slot)| *slot != spent);
        self.entries.retain(|entry| entry.id != chosen.id);
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
        let in_slots = class().filter(|entry| entry.slot < slot).count();
        let is_due = |entry: &&Entry| entry.due.is_some();
        match slot.0 <= self.served[of.class as usize] {
            true => in_slots.min(class().filter(is_due).filter(earlier).count()) as u64,
            false => in_slots as u64,
        }
    }

    fn shed(&mut self, route: Option<u64>, interval: u64, now: u64) -> usize {
        let before = self.entries.len();
        let is_on = |entry: &&Entry| route.is_none_or(|route| entry.route == route);
        for class in Class::ALL.into_iter().rev() {
            loop {
                let with_due = self.of(class).filter(is_on).filter(|entry| entry.due.is_some());
                let Some(last) = with_due.max_by_key(|entry| entry.slot).copied() else { break };
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
    (entry.due.unwrap_or(u64::MAX), entry.slot.1)
}

#[derive(Clone, Debug)]
enum Step {
    Push { class: Class, tenant: u64, cost: u32, route: u64, due_s: Option<u64>, deadline_s: u64 },
    Pop,
    Remove(usize),
    Shed { route: Option<u64>, interval_s: u64 },
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
    let due = prop_oneof![Just(None), (1..30_u64).prop_map(Some)];
    prop_oneof![
        8 => (class, 0..TENANTS as u64, 0..500_u32, 0..2_u64, due, 1..60_u64).prop_map(
            |(class, tenant, cost, route, due_s, deadline_s)| Step::Push {
                class,
                tenant,
                cost,
                route,
                due_s,
                deadline_s
            }
        ),
        5 => Just(Step::Pop),
        1 => (0..12_usize).prop_map(Step::Remove),
        1 => (prop::option::of(0..2_u64), 0..8_u64).prop_map(|(route, interval_s)| Step::Shed { route, interval_s }),
        1 => (0..5_u64).prop_map(Step::Later),
    ]
}

proptest! {
    /// Order, places, drops and lengths are those of the model, whatever comes.
    #[test]
    fn the_queue_does_what_the_model_does(steps in prop::collection::vec(step(), 1..300)) {
        let (mut queue, mut model, mut now_s) = (AdmissionQueue::new(LEN_MAX), Model::default(), 0_u64);
        let mut positions = Vec::new();
        for (id, step) in steps.into_iter().enumerate() {
            let now = Micros::from_secs(now_s);
            match step {
                Step::Push { class, tenant, cost, route, due_s, deadline_s } => {
                    let due = due_s.map(|due| now_s + due);
                    let request =
                        AdmissionRequest { class, tenant, cost, route, due: due.map(Micros::from_secs) };
                    let pushed = queue.push(request, now + Micros::from_secs(deadline_s), id);
                    let (cost, deadline, slot) = (cost.into(), now_s + deadline_s, (0, 0));
                    let expected = model.push(Entry { id, class, tenant, cost, route, due, deadline, slot });
                    prop_assert_eq!(pushed.is_ok(), expected);
                    positions.extend(pushed.ok().map(|position| (id, position)));
                }
                Step::Pop => prop_assert_eq!(queue.pop(now, |_| true), model.pop(now_s)),
                Step::Remove(n) if n < positions.len() => {
                    let (id, position) = positions.swap_remove(n);
                    let waits = model.entries.iter().any(|entry| entry.id == id);
                    model.remove(id);
                    prop_assert_eq!(queue.remove(position), waits.then_some(id));
                }
                Step::Remove(_) => {}
                Step::Shed { route, interval_s } => {
                    let shed = queue.shed_hopeless(route, Micros::from_secs(interval_s), now);
                    prop_assert_eq!(shed, model.shed(route, interval_s, now_s));
                }
                Step::Later(s) => now_s += s,
            }
            for class in Class::ALL {
                prop_assert_eq!(queue.len_of(class), model.of(class).count());
            }
            prop_assert_eq!(queue.len(), model.entries.len());
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
