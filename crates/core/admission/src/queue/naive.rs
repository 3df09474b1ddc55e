//! The queue as a list: every pop looks at all waiting requests. Property tests compare the queue with it.

use std::collections::BTreeMap;

use super::*;

#[derive(Default)]
pub(super) struct NaiveQueue {
    waiting: Vec<NaiveRequest>,
    tenants: BTreeMap<(Class, u64), (u64, u64)>,
    served: BTreeMap<Class, u64>,
    passed: BTreeMap<Class, u32>,
    arrivals: u64,
}

#[derive(Clone, Copy)]
pub(super) struct NaiveRequest {
    pub ask: AdmissionRequest,
    pub start: u64,
    pub arrival: u64,
    pub deadline: Micros,
    pub item: usize,
}

impl NaiveQueue {
    fn waits(&self, class: Class, tenant: u64) -> bool {
        self.waiting.iter().any(|one| (one.ask.class, one.ask.tenant) == (class, tenant))
    }

    fn serve(&mut self, class: Class, start: u64, cost: u32) {
        let of_class = self.waiting.iter().filter(|one| one.ask.class == class);
        let tenants: std::collections::BTreeSet<u64> = of_class.map(|one| one.ask.tenant).collect();
        let served = self.served.entry(class).or_default();
        *served = (*served).max(start) + u64::from(cost) / (tenants.len() as u64 + 1);
    }

    fn refund(&mut self, ask: AdmissionRequest) {
        let (finish, _) = self.tenants.entry((ask.class, ask.tenant)).or_default();
        *finish = finish.saturating_sub(ask.cost.into());
    }

    pub(super) fn arrive(&mut self, ask: AdmissionRequest, deadline: Micros, item: usize) -> NaiveRequest {
        let AdmissionRequest { class, tenant, cost, .. } = ask;
        let ask = AdmissionRequest { cost: cost.max(1), ..ask };
        let is_behind = self.waits(class, tenant);
        let served = self.served.get(&class).copied().unwrap_or(0);
        let (finish, last_start) = self.tenants.entry((class, tenant)).or_default();
        let mut start = served.max(*finish);
        *finish = start + u64::from(ask.cost);
        if is_behind {
            start = start.max(*last_start);
        }
        *last_start = start;
        self.arrivals += 1;
        NaiveRequest { ask, start, arrival: self.arrivals, deadline, item }
    }

    pub(super) fn pass(&mut self, ask: AdmissionRequest) {
        let one = self.arrive(ask, Micros::ZERO, 0);
        self.serve(ask.class, one.start, one.ask.cost);
    }

    pub(super) fn wait(&mut self, one: NaiveRequest) {
        self.waiting.push(one);
    }

    pub(super) fn remove(&mut self, item: usize) -> Option<usize> {
        let at = self.waiting.iter().position(|one| one.item == item)?;
        let one = self.waiting.swap_remove(at);
        self.refund(one.ask);
        Some(item)
    }

    pub(super) fn correct(&mut self, one: NaiveRequest, cost: u32) {
        let (finish, _) = self.tenants.entry((one.ask.class, one.ask.tenant)).or_default();
        *finish = finish.saturating_add_signed(i64::from(cost) - i64::from(one.ask.cost));
    }

    pub(super) fn pop(&mut self, now: Micros, has_room: impl Fn(u64) -> bool) -> Option<usize> {
        let late: Vec<usize> =
            self.waiting.iter().filter(|one| one.deadline <= now).map(|one| one.item).collect();
        late.into_iter().for_each(|item| _ = self.remove(item));
        let head = |class: Class| {
            let can = self.waiting.iter().filter(|one| one.ask.class == class && has_room(one.ask.route));
            can.min_by_key(|one| (one.start, one.arrival)).copied()
        };
        let heads: Vec<NaiveRequest> = Class::ALL.into_iter().filter_map(head).collect();
        let is_due = |one: &&NaiveRequest| self.passed.get(&one.ask.class).copied() >= Some(PASSED_MAX);
        let chosen = *heads.iter().rev().find(is_due).or(heads.first())?;
        for lower in heads.iter().filter(|one| one.ask.class > chosen.ask.class) {
            *self.passed.entry(lower.ask.class).or_default() += 1;
        }
        self.passed.insert(chosen.ask.class, 0);
        self.waiting.retain(|one| one.item != chosen.item);
        self.serve(chosen.ask.class, chosen.start, chosen.ask.cost);
        Some(chosen.item)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Push {
        ask: AdmissionRequest,
        deadline_s: u64,
    },
    Pass(AdmissionRequest),
    Pop {
        rooms: u8,
    },
    Remove(usize),
    /// An admitted request waits again, for other workers.
    Return {
        nth: usize,
        route: u64,
    },
    Correct {
        nth: usize,
        cost: u32,
    },
    Later(u64),
}

fn ask() -> impl Strategy<Value = AdmissionRequest> {
    let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
    (class, 0..4_u64, 0..500_u32, 0..4_u64).prop_map(|(class, tenant, cost, route)| AdmissionRequest {
        class,
        tenant,
        cost,
        route,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (ask(), 1..40_u64).prop_map(|(ask, deadline_s)| Step::Push { ask, deadline_s }),
        1 => ask().prop_map(Step::Pass),
        5 => (0..16_u8).prop_map(|rooms| Step::Pop { rooms }),
        1 => (0..20_usize).prop_map(Step::Remove),
        1 => (0..20_usize, 0..4_u64).prop_map(|(nth, route)| Step::Return { nth, route }),
        1 => (0..20_usize, 0..2_000_u32).prop_map(|(nth, cost)| Step::Correct { nth, cost }),
        1 => (0..5_u64).prop_map(Step::Later),
    ]
}

/// Both queues, and what a driver knows of their requests.
struct Pair {
    queue: AdmissionQueue<usize>,
    naive: NaiveQueue,
    routes: Vec<u64>,
    known: Vec<(AdmissionPosition, NaiveRequest)>,
    admitted: Vec<usize>,
    now: Micros,
}

impl Pair {
    fn push(&mut self, ask: AdmissionRequest, deadline: Micros) {
        let item = self.known.len();
        let position = self.queue.push(ask, deadline, item).unwrap();
        let one = self.naive.arrive(ask, deadline, item);
        self.naive.wait(one);
        self.routes.push(ask.route);
        self.known.push((position, one));
    }

    fn pop(&mut self, rooms: u8) -> (Option<usize>, Option<usize>) {
        let has_room = |route: u64| rooms >> route & 1 == 1;
        let routes = &self.routes;
        let popped = self.queue.pop(self.now, |&item| has_room(routes[item]));
        self.admitted.extend(popped);
        (popped, self.naive.pop(self.now, has_room))
    }

    fn wait_again(&mut self, nth: usize, route: u64) {
        let Some(&item) = self.admitted.get(nth) else { return };
        self.admitted.swap_remove(nth);
        let (position, one) = &mut self.known[item];
        *position = position.on_route(route);
        one.ask.route = route;
        self.routes[item] = route;
        self.queue.wait_at(*position, one.deadline, item);
        self.naive.wait(*one);
    }

    fn correct(&mut self, nth: usize, cost: u32) {
        let Some(&item) = self.admitted.get(nth) else { return };
        self.admitted.swap_remove(nth);
        let (position, one) = self.known[item];
        self.queue.correct(position, cost);
        self.naive.correct(one, cost);
    }
}

proptest! {
    /// Whatever happens, the queue admits the request that the list admits.
    #[test]
    fn the_queue_admits_in_the_order_of_a_list(steps in prop::collection::vec(step(), 1..400)) {
        let mut pair = Pair {
            queue: AdmissionQueue::new(1_000),
            naive: NaiveQueue::default(),
            routes: Vec::new(),
            known: Vec::new(),
            admitted: Vec::new(),
            now: Micros::ZERO,
        };
        for step in steps {
            match step {
                Step::Push { ask, deadline_s } => pair.push(ask, pair.now + Micros::from_secs(deadline_s)),
                Step::Pass(ask) => {
                    pair.queue.pass(ask);
                    pair.naive.pass(ask);
                }
                Step::Pop { rooms } => {
                    let (popped, expected) = pair.pop(rooms);
                    prop_assert_eq!(popped, expected);
                }
                Step::Remove(n) => {
                    let Some(&(position, one)) = pair.known.get(n) else { continue };
                    prop_assert_eq!(pair.queue.remove(position), pair.naive.remove(one.item));
                }
                Step::Return { nth, route } => pair.wait_again(nth, route),
                Step::Correct { nth, cost } => pair.correct(nth, cost),
                Step::Later(s) => pair.now = pair.now + Micros::from_secs(s),
            }
            prop_assert_eq!(pair.queue.len(), pair.naive.len());
        }
    }
}
