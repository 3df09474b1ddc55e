use super::*;

const LIMITS: Limits = Limits { requests_per_minute: 2, tokens_per_minute: 0, concurrent: 0 };
const ONE: ExpectedTokens = ExpectedTokens { prompt: 1, answers: 0, answer_max: Some(0) };
const ME: RouterId = RouterId(1);
const OTHER: RouterId = RouterId(2);

/// A router with one other, and a tenant with this home.
fn pair(home: RouterId) -> (SharedLimits<u32>, u64) {
    let mut limits = SharedLimits::default();
    limits.set_members(ME, [OTHER].into(), Micros::ZERO);
    let tenant = (0..).find(|&tenant| limits.home(tenant) == home).unwrap();
    limits.take_messages();
    (limits, tenant)
}

fn is_granted(asked: LeaseRequest) -> bool {
    matches!(asked, LeaseRequest::Decided(Ok(_)))
}

#[test]
fn without_others_and_at_home_a_request_is_decided_at_once() {
    let mut alone = SharedLimits::default();
    let mut ask = || is_granted(alone.ask(7, LIMITS, ONE, 0_u32, Micros::ZERO));
    assert_eq!([ask(), ask(), ask()], [true, true, false]);
    let (mut limits, tenant) = pair(ME);
    assert!(is_granted(limits.ask(tenant, LIMITS, ONE, 0, Micros::ZERO)));
    assert!(limits.take_messages().is_empty());
}

#[test]
fn elsewhere_a_request_waits_for_the_home() {
    let (mut limits, tenant) = pair(OTHER);
    let LeaseRequest::Pending(id) = limits.ask(tenant, LIMITS, ONE, 5, Micros::ZERO) else {
        panic!("decided")
    };
    let asked = limits.take_messages();
    assert_eq!(asked, [(To::One(OTHER), LimitMessage::Ask { id, tenant, limits: LIMITS, tokens: 1 })]);
    let (waker, decision) =
        limits.receive(OTHER, LimitMessage::Answer { id, refused: None }, Micros::ZERO).unwrap();
    assert_eq!(waker, 5);
    limits.settle(&decision.unwrap(), 3);
    assert_eq!(limits.take_messages(), [(To::One(OTHER), LimitMessage::Settle { id, tokens: 3 })]);
}

#[test]
fn an_answer_for_a_client_that_has_gone_is_returned() {
    let (mut limits, tenant) = pair(OTHER);
    let LeaseRequest::Pending(id) = limits.ask(tenant, LIMITS, ONE, 5, Micros::ZERO) else {
        panic!("decided")
    };
    limits.cancel(id);
    limits.take_messages();
    let answer = LimitMessage::Answer { id, refused: None };
    assert!(limits.receive(OTHER, answer, Micros::ZERO).is_none());
    assert_eq!(limits.take_messages(), [(To::One(OTHER), LimitMessage::Return { id })]);
}

#[test]
fn a_home_that_does_not_answer_is_not_asked_for_a_while() {
    let (mut limits, tenant) = pair(OTHER);
    let mut now = Micros::ZERO;
    assert!(matches!(limits.ask(tenant, LIMITS, ONE, 5, now), LeaseRequest::Pending(_)));
    now = now + Micros::from_millis(900);
    assert!(limits.tick(now).is_empty());
    let repeated = limits.take_messages();
    assert!(repeated.iter().any(|(_, message)| matches!(message, LimitMessage::Ask { .. })), "{repeated:?}");
    now = now + Micros::from_millis(100);
    let decided = limits.tick(now);
    assert!(matches!(decided[..], [(5, Ok(_))]), "{decided:?}");
    assert!(is_granted(limits.ask(tenant, LIMITS, ONE, 6, now)), "alone");
    assert!(
        matches!(limits.ask(tenant, LIMITS, ONE, 7, now), LeaseRequest::Decided(Err(_))),
        "within the limit"
    );
    let heard = LimitMessage::Held { first: 0, last: 0, leases: Vec::new(), pending: Vec::new() };
    limits.receive(OTHER, heard.clone(), now);
    assert!(
        matches!(limits.ask(tenant, LIMITS, ONE, 8, now), LeaseRequest::Decided(_)),
        "asks may not reach it"
    );
    now = now + SILENCE_MIN;
    limits.receive(OTHER, heard, now);
    assert!(matches!(limits.ask(tenant, LIMITS, ONE, 9, now), LeaseRequest::Pending(_)));
}

#[test]
fn a_late_answer_ends_the_silence() {
    let (mut limits, tenant) = pair(OTHER);
    let LeaseRequest::Pending(id) = limits.ask(tenant, LIMITS, ONE, 5, Micros::ZERO) else { panic!() };
    let now = Micros::from_secs(1);
    limits.tick(now);
    limits.receive(OTHER, LimitMessage::Answer { id, refused: None }, now);
    assert!(matches!(limits.ask(tenant, LIMITS, ONE, 6, now), LeaseRequest::Pending(_)));
}

#[test]
fn without_others_nothing_is_kept_to_announce() {
    let mut limits: SharedLimits<u32> = SharedLimits::default();
    (0..100).for_each(|tenant| assert!(is_granted(limits.ask(tenant, LIMITS, ONE, 1, Micros::ZERO))));
    assert!(limits.changed.is_empty());
}

#[test]
fn a_repeated_ask_gets_the_same_answer_and_counts_once() {
    let (mut limits, tenant) = pair(ME);
    let mut ask = |id| {
        let ask = LimitMessage::Ask { id, tenant, limits: LIMITS, tokens: 1 };
        limits.receive(OTHER, ask, Micros::ZERO);
        match limits.take_messages().pop() {
            Some((_, LimitMessage::Answer { refused, .. })) => refused.is_none(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([1, 1, 2, 2, 3, 3, 1].map(&mut ask), [true, true, true, true, false, false, true]);
    limits.receive(OTHER, LimitMessage::Return { id: 2 }, Micros::ZERO);
    let refused = |limits: &mut SharedLimits<u32>, id| {
        let ask = LimitMessage::Ask { id, tenant, limits: LIMITS, tokens: 1 };
        limits.receive(OTHER, ask, Micros::ZERO);
        matches!(limits.take_messages().pop(), Some((_, LimitMessage::Answer { refused: Some(_), .. })))
    };
    assert!(refused(&mut limits, 3), "as it was answered");
    assert!(!refused(&mut limits, 4), "what was returned is there again");
    assert!(refused(&mut limits, 5));
}

#[test]
fn routers_with_different_limits_do_not_fill_a_tenants_buckets_by_taking_turns() {
    let (mut limits, tenant) = pair(ME);
    let mut granted = 0;
    for id in 0..100 {
        let of = Limits { requests_per_minute: 10 + (id % 2) as u32, ..LIMITS };
        limits.receive(OTHER, LimitMessage::Ask { id, tenant, limits: of, tokens: 1 }, Micros::ZERO);
        let answer = limits.take_messages().pop();
        granted += usize::from(matches!(answer, Some((_, LimitMessage::Answer { refused: None, .. }))));
    }
    assert!((9..=12).contains(&granted), "{granted}");
}

/// A place of the tenant is freed and taken again, as when a request's body has arrived, or one follows another.
#[test]
fn a_place_is_found_free_although_the_message_that_freed_it_was_lost() {
    let of = Limits { concurrent: 1, ..Limits::default() };
    let (mut home, tenant) = pair(ME);
    let mut asking: SharedLimits<u32> = SharedLimits::default();
    asking.set_members(OTHER, [ME].into(), Micros::ZERO);
    asking.take_messages();
    let mut ask = |asking: &mut SharedLimits<u32>| {
        assert!(matches!(asking.ask(tenant, of, ONE, 0, Micros::ZERO), LeaseRequest::Pending(_)));
        for (_, message) in asking.take_messages() {
            home.receive(OTHER, message, Micros::ZERO);
        }
        let answers = home.take_messages();
        let (_, answer) = answers.into_iter().next_back().unwrap();
        asking.receive(ME, answer, Micros::ZERO).unwrap().1
    };
    let mut lease = ask(&mut asking).unwrap();
    for i in 0..50 {
        if i % 2 == 0 {
            asking.give_back(&lease)
        } else {
            asking.settle(&lease, 1)
        }
        let lost = asking.take_messages();
        assert_eq!(lost.len(), 1);
        lease = ask(&mut asking).unwrap();
    }
    assert!(ask(&mut asking).is_err(), "its place is taken");
    asking.tick(OVER_KEPT);
    assert!(asking.ends.is_empty(), "ends are forgotten");
}
