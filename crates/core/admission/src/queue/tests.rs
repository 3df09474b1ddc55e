//! Tests of the queue.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::class_queue::TENANTS_MAX;

const NEVER: Micros = Micros(u64::MAX);

fn request(tenant: u64, cost: u32) -> AdmissionRequest {
    AdmissionRequest { class: Class::Normal, tenant, cost, route: 0, due: None }
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
        _ = queue.push(AdmissionRequest { class: Class::High, ..request(1, 1) }, NEVER, Class::High).unwrap()
    });
    let order = all(&mut queue);
    assert_eq!(order.iter().position(|class| *class == Class::Low), Some(PASSED_MAX as usize));
}

#[test]
fn a_request_without_room_blocks_no_other() {
    let mut queue = AdmissionQueue::new(100);
    queue.push(request(1, 1), NEVER, "full model").unwrap();
    queue.push(AdmissionRequest { route: 1, ..request(1, 1) }, NEVER, "free model").unwrap();
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

/// Each new tenant would otherwise look at all of them to drop one.
#[test]
fn forgetting_makes_room_for_many_tenants() {
    let mut queue: AdmissionQueue<()> = AdmissionQueue::new(1);
    queue.push(request(u64::MAX, 1), NEVER, ()).unwrap();
    let lead = |queue: &AdmissionQueue<()>| queue.lines[Class::Normal as usize].tenants.len();
    for tenant in 0.. {
        let before = lead(&queue);
        let position = queue.pass(request(tenant, 100));
        // Each tenant keeps a lead.
        queue.correct(position, 1_000_000);
        let forgotten = (before + 1).saturating_sub(lead(&queue));
        if forgotten > 0 {
            assert!(forgotten > TENANTS_MAX / 4, "{forgotten} at {tenant}");
            return;
        }
    }
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
                Step::Push { tenant, cost, deadline_s, .. } => {
                    // A full queue drops lower classes, which `model_tests` covers.
                    let class = Class::Normal;
                    let deadline = now + Micros::from_secs(deadline_s);
                    let is_full = queue.len() == MAX;
                    match queue.push(AdmissionRequest { class, tenant, cost, route: 0, due: None }, deadline, next) {
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
                    let position = queue.push(AdmissionRequest { class, tenant, cost, route: 0, due: None }, NEVER, (class, tenant, next)).unwrap();
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
        queue.push(AdmissionRequest { class: Class::ALL[class], tenant: 9, cost: 100, route: 0, due: None }, NEVER, true).unwrap();
        let was_let_in = others.into_iter().any(|(class, tenant, cost)| {
            queue.push(AdmissionRequest { class: Class::ALL[class], tenant, cost, route: 0, due: None }, NEVER, false).unwrap();
            queue.pop(Micros::ZERO, |_| true).unwrap()
        });
        prop_assert!(was_let_in);
    }
}

#[test]
fn many_requests_that_expire_together_are_dropped_some_at_a_time() {
    let mut queue = AdmissionQueue::new(1_000);
    let push = |queue: &mut AdmissionQueue<u32>, class, deadline| {
        _ = queue.push(AdmissionRequest { class, ..request(1, 1) }, deadline, 0).unwrap();
    };
    (0..300).for_each(|_| push(&mut queue, Class::Normal, Micros(10)));
    (0..300).for_each(|_| push(&mut queue, Class::Low, Micros(10)));
    push(&mut queue, Class::Normal, NEVER);
    assert!(queue.drop_late(Micros(9), 256), "none has expired");
    let drop_some = |queue: &mut AdmissionQueue<u32>| (queue.drop_late(Micros(10), 256), queue.len());
    let dropped: Vec<(bool, usize)> = (0..3).map(|_| drop_some(&mut queue)).collect();
    assert_eq!(dropped, [(false, 345), (false, 89), (true, 1)]);
    (0..300).for_each(|_| push(&mut queue, Class::Normal, Micros(20)));
    assert_eq!(queue.pop(Micros(20), |_| true), Some(0), "an expired request is never admitted");
    assert!(queue.is_empty());
}

#[test]
fn many_hopeless_requests_are_dropped_as_others_come() {
    let mut queue = AdmissionQueue::new(1_000);
    let due = |due| AdmissionRequest { due: Some(Micros(due)), ..request(1, 1) };
    (0..600).for_each(|_| _ = queue.push(due(100), NEVER, ()).unwrap());
    let shed: Vec<usize> = (0..4).map(|_| queue.shed_hopeless(None, Micros(10), Micros::ZERO)).collect();
    assert_eq!((shed, queue.len()), (vec![256, 256, 78, 0], 10));
}
