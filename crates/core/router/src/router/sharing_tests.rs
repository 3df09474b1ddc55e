//! Several routers before the same workers.

use std::collections::VecDeque;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_peers::{Config as PeersConfig, Envelope};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_prompt::ChunkSizes;
use warmroute_types::{Address, RouterId, To, Usage};

use super::*;
use crate::request::Silence;
use crate::{Change, PeerTask, PromptChunks};

const CHUNK: u32 = 256;
const SECOND: u64 = 1_000_000;

fn digests(conversation: u64, chunks: u64) -> Vec<u64> {
    (0..chunks).map(|i| (conversation << 32) + i).collect()
}

fn chunks(digests: &[u64]) -> PromptChunks<'_> {
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let bytes = ChunkSizes::of_unit(CHUNK).bytes_before(digests.len()) as u32;
    PromptChunks { root: RootKey::of(&namespace), digests, chunk_bytes: CHUNK, bytes }
}

/// Routers with the same workers, which join in another order at each.
fn routers(count: usize, workers: usize) -> Vec<Router<Standard>> {
    let make = |number: usize| {
        let policy = Standard::StickyLeastLoaded(StickyLeastLoaded::default());
        let router = Router::new(policy, Config::default());
        for i in 0..workers {
            let address = Address::new(format!("http://engine-{}", (i + number) % workers));
            router.join(address, Models::Any).unwrap();
        }
        for view in router.inspect().workers() {
            let worker = view.worker;
            router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(1) });
        }
        router.peering().start(RouterId(number as u64 + 1), PeersConfig::default());
        router
    };
    (0..count).map(make).collect()
}

/// Delivers all messages, and the answers to them, until none is left.
fn talk(routers: &[Router<Standard>], now: u64) {
    let mut envelopes: Vec<Envelope> =
        routers.iter().flat_map(|router| router.peering().compose_messages(Micros(now))).collect();
    while let Some(envelope) = envelopes.pop() {
        for (number, router) in routers.iter().enumerate() {
            if envelope.to == To::Everyone || envelope.to == To::One(RouterId(number as u64 + 1)) {
                envelopes.extend(router.peering().receive(&envelope.bytes, Micros(now)).unwrap());
            }
        }
    }
}

fn route(router: &Router<Standard>, digests: &[u64], now: u64) -> Decision {
    let request = Request { prompt: Some(chunks(digests)), ..Request::default() };
    router.route(&request, &mut Scratch::default(), Micros(now), 7).unwrap()
}

/// By address, what a router believes to be in flight.
fn in_flight(router: &Router<Standard>) -> Vec<(String, u32)> {
    let views = router.inspect().workers().into_iter();
    let mut loads: Vec<_> = views.map(|view| (view.worker.label.to_string(), view.load.in_flight)).collect();
    loads.sort();
    loads
}

#[test]
fn every_router_sees_the_assignments_of_all() {
    let routers = routers(3, 4);
    let mut decisions: Vec<Decision> = Vec::new();
    for n in 0..24 {
        decisions.push(route(&routers[n % 3], &digests(n as u64, 10), SECOND));
        talk(&routers, SECOND + n as u64);
    }
    let even: Vec<u32> = in_flight(&routers[0]).into_iter().map(|(_, load)| load).collect();
    assert_eq!(even, [6, 6, 6, 6], "as one router would have spread them");
    assert!(routers.iter().all(|router| in_flight(router) == in_flight(&routers[0])));
    let prefill = |router: &Router<Standard>| -> u64 {
        router.inspect().workers().iter().map(|view| view.load.prefill_tokens).sum()
    };
    assert_eq!(prefill(&routers[0]), prefill(&routers[2]));
    decisions.iter_mut().for_each(|decision| {
        routers[0].observe(decision, Outcome::FirstToken { at: Micros(2 * SECOND) });
    });
    talk(&routers, 2 * SECOND);
    assert_eq!(prefill(&routers[1]), 0, "all are computed");
    decisions.clear();
    talk(&routers, 2 * SECOND + 1);
    assert!(routers.iter().all(|router| in_flight(router).iter().all(|(_, load)| *load == 0)));
}

#[test]
fn prompts_that_are_not_rendered_last_on_every_router_that_follows_events() {
    use crate::{Family, Matching, PromptText, Unit};
    let routers = routers(2, 4);
    for router in &routers {
        for view in router.inspect().workers() {
            let worker = view.worker;
            let matching = Some(Matching::tokens(Family::new("m")));
            router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
            router.apply(Change::Viewed { worker, view: CacheView::Reported });
        }
    }
    let [plain, rendered] = [1, 2].map(|conversation| digests(conversation, 40));
    let root = routers[0].inspect().text_root(&Family::new("m"), None, None, Unit::Token);
    let text = [PromptText { root, bytes: &[7; 4_000], unit: Unit::Token }];
    for (digests, texts) in [(&plain, &[][..]), (&rendered, &text[..])] {
        let request = Request { prompt: Some(chunks(digests)), texts, ..Request::default() };
        let decision = routers[0].route(&request, &mut Scratch::default(), Micros(SECOND), 7);
        let mut decision = decision.unwrap();
        talk(&routers, SECOND);
        routers[0].observe(&mut decision, Outcome::FirstToken { at: Micros(SECOND) });
        drop(decision);
        talk(&routers, SECOND + 1);
    }
    routers.iter().for_each(|router| router.apply(Change::EventsDue { at: Micros(9 * SECOND) }));
    let found = |router: &Router<Standard>, digests: &[u64]| route(router, digests, 9 * SECOND).cached_tokens;
    for router in &routers {
        assert!(found(router, &plain) > Some(1_000), "{:?}", found(router, &plain));
        assert_eq!(found(router, &rendered), Some(0), "its event has not come");
    }
}

#[test]
fn every_router_finds_a_conversation() {
    let routers = routers(3, 4);
    let mut first = route(&routers[0], &digests(1, 40), SECOND);
    talk(&routers, SECOND);
    let sibling = route(&routers[1], &digests(1, 40), SECOND);
    assert_eq!((&sibling.worker.label, sibling.reason), (&first.worker.label, "hit"), "it is on its way");
    drop(sibling);
    routers[0].observe(&mut first, Outcome::FirstToken { at: Micros(SECOND) });
    let label = first.worker.label.clone();
    drop(first);
    talk(&routers, SECOND + 1);
    let next = route(&routers[2], &digests(1, 50), SECOND);
    assert_eq!((&next.worker.label, next.cached_tokens), (&label, Some(40 * CHUNK / 4)));
}

#[test]
fn a_late_joiner_finds_what_was_sent_before_it_came() {
    let mut routers = routers(2, 4);
    let long = digests(99, 1_000);
    let prompts: Vec<Vec<u64>> = (0..20).map(|n| digests(n, 40)).collect();
    // Then far more is sent than the ledger keeps for resending.
    let sent = prompts.iter().chain(std::iter::repeat_n(&long, 650));
    for (n, prompt) in sent.enumerate() {
        let router = &routers[n % 2];
        let mut decision = route(router, prompt, SECOND + n as u64);
        router.observe(&mut decision, Outcome::Ended { answered: None });
        drop(decision);
        talk(&routers, SECOND + n as u64);
    }
    routers.push(self::routers(3, 4).pop().unwrap());
    (0..100).for_each(|step| talk(&routers, 2 * SECOND + step * 20_000));
    let known = |router: &Router<Standard>| -> Vec<Option<u32>> {
        prompts.iter().map(|prompt| route(router, prompt, 4 * SECOND).cached_tokens).collect()
    };
    assert!(known(&routers[0]).iter().all(|tokens| tokens.is_some_and(|tokens| tokens > 2_000)));
    assert_eq!(known(&routers[2]), known(&routers[0]));
    assert_eq!(routers[2].peering().view(Micros(4 * SECOND)).unwrap().bad_messages, 0);
}

/// Two routers exchange messages for two seconds; returns all bytes sent and the remaining tasks.
fn talk_at_length(routers: &[Router<Standard>; 2], from: u64) -> (Vec<u8>, Vec<PeerTask>) {
    let (mut sent_bytes, mut tasks) = (Vec::new(), Vec::new());
    for now in (0..100).map(|step| Micros(from + step * 20_000)) {
        let mut envelopes: Vec<(usize, Envelope)> = Vec::new();
        for (number, router) in routers.iter().enumerate() {
            envelopes.extend(
                router.peering().compose_messages(now).into_iter().map(|envelope| (number, envelope)),
            );
        }
        while let Some((number, envelope)) = envelopes.pop() {
            sent_bytes.extend_from_slice(&envelope.bytes);
            let other = 1 - number;
            let by = RouterId(number as u64 + 1);
            let taken = routers[other].peering().receive_from(by, &envelope.bytes, now).unwrap();
            envelopes.extend(taken.answers.into_iter().map(|envelope| (other, envelope)));
            tasks.extend(taken.tasks);
        }
    }
    (sent_bytes, tasks)
}

#[test]
fn what_takes_long_is_left_to_be_done_beside_the_conversation_and_tells_no_names() {
    let mut both = routers(2, 4).into_iter();
    let routers = [both.next().unwrap(), both.next().unwrap()];
    let long = digests(99, 1_000);
    for n in 0..300 {
        let mut decision = route(&routers[0], &long, SECOND + n);
        routers[0].observe(&mut decision, Outcome::Ended { answered: None });
        drop(decision);
        routers[0].peering().compose_messages(Micros(SECOND + n));
    }
    let mut decision = route(&routers[0], &digests(7, 40), 2 * SECOND);
    routers[0].observe(&mut decision, Outcome::Ended { answered: None });
    let identity = decision.worker.identity;
    drop(decision);
    routers[0].peering().compose_messages(Micros(2 * SECOND));
    let (_, mut tasks) = talk_at_length(&routers, 3 * SECOND);
    assert!(matches!(tasks[..], [PeerTask::SendSnapshot]), "{}", tasks.len());
    routers[0].peering().run(tasks.remove(0), Micros(5 * SECOND));
    let (sent_bytes, mut tasks) = talk_at_length(&routers, 5 * SECOND);
    assert!(matches!(tasks[..], [PeerTask::MergeSnapshot { .. }]), "{}", tasks.len());
    let known = || route(&routers[1], &long, 7 * SECOND).cached_tokens;
    routers[1].peering().run(tasks.remove(0), Micros(7 * SECOND));
    assert!(known().is_some_and(|tokens| tokens > 100_000), "{:?}", known());
    let is_sent = |bytes: &[u8]| sent_bytes.windows(bytes.len()).any(|some| some == bytes);
    assert!(!is_sent(b"http") && !is_sent(b"engine-"), "no worker's address");
    assert!(is_sent(&identity.to_le_bytes()));
}

#[test]
fn a_peers_failed_request_is_not_presumed() {
    let routers = routers(2, 4);
    drop(route(&routers[0], &digests(1, 40), SECOND));
    talk(&routers, SECOND);
    assert_eq!(route(&routers[1], &digests(1, 40), SECOND).cached_tokens, Some(0));
}

#[test]
fn what_an_engine_had_no_longer_is_forgotten_by_all() {
    let routers = routers(2, 1);
    let prompt = digests(1, 40);
    let mut first = route(&routers[0], &prompt, SECOND);
    routers[0].observe(&mut first, Outcome::Ended { answered: None });
    drop(first);
    talk(&routers, SECOND);
    let longer = digests(1, 80);
    let mut second = route(&routers[0], &longer, SECOND);
    talk(&routers, SECOND + 1);
    let usage = Usage { prompt_tokens: 80 * 64, output_tokens: 1, cached_tokens: Some(64) };
    let request =
        Request { prompt: Some(chunks(&longer)), silence: Silence::MeansZero, ..Request::default() };
    assert!(routers[0].answered(&mut second, &request, usage, Micros(SECOND)).stale > 0);
    drop(second);
    talk(&routers, SECOND + 2);
    let of = |router: &Router<Standard>| route(router, &longer, SECOND).cached_tokens;
    assert_eq!(of(&routers[1]), of(&routers[0]), "what it computed itself is there");
    let mut other = digests(1, 40);
    other.extend(digests(9, 10));
    let of = |router: &Router<Standard>| route(router, &other, SECOND).cached_tokens;
    assert_eq!(of(&routers[1]), of(&routers[0]));
}

/// Cuts two routers off from each other for three seconds.
fn part_and_meet(routers: &[Router<Standard>], between: impl FnOnce()) {
    for step in 0..150 {
        talk(&routers[..1], 2 * SECOND + step * 20_000);
        talk(&routers[1..], 2 * SECOND + step * 20_000);
    }
    assert_eq!(routers[1].peering().view(Micros(5 * SECOND)).unwrap().lost_peers, 1);
    between();
    (0..50).for_each(|step| talk(routers, 5 * SECOND + step * 20_000));
    assert_eq!(routers[1].peering().view(Micros(6 * SECOND)).unwrap().peers[0].missing, 0);
}

#[test]
fn a_cache_that_was_found_empty_once_stays_known_through_a_silence() {
    let routers = routers(2, 1);
    let worker = routers[0].inspect().workers()[0].worker.clone();
    routers[0].sharing.get().unwrap().emptied(&worker);
    talk(&routers, SECOND);
    let prompt = digests(1, 40);
    let mut decision = route(&routers[1], &prompt, SECOND);
    routers[1].observe(&mut decision, Outcome::Ended { answered: None });
    drop(decision);
    talk(&routers, SECOND + 1);
    part_and_meet(&routers, || {});
    let known = |router| route(router, &prompt, 6 * SECOND).cached_tokens;
    assert_eq!(
        [known(&routers[0]), known(&routers[1])],
        [Some(40 * CHUNK / 4 - 1); 2],
        "all but the last token"
    );
}

#[test]
fn what_an_engine_lacked_before_a_silence_ends_cuts_nothing_that_was_sent_meanwhile() {
    let routers = routers(2, 1);
    let prompt = digests(1, 80);
    let mut first = route(&routers[0], &prompt, SECOND);
    routers[0].observe(&mut first, Outcome::Ended { answered: None });
    drop(first);
    let mut second = route(&routers[0], &prompt, SECOND);
    talk(&routers, SECOND + 1);
    let branch = [digests(1, 40), digests(9, 10)].concat();
    part_and_meet(&routers, || {
        let mut meanwhile = route(&routers[1], &branch, 5 * SECOND);
        routers[1].observe(&mut meanwhile, Outcome::Ended { answered: None });
        let usage = Usage { prompt_tokens: 80 * 64, output_tokens: 1, cached_tokens: Some(64) };
        let request =
            Request { prompt: Some(chunks(&prompt)), silence: Silence::MeansZero, ..Request::default() };
        assert!(routers[0].answered(&mut second, &request, usage, Micros(5 * SECOND)).stale > 0);
        drop(second);
    });
    assert_eq!(route(&routers[1], &branch, 6 * SECOND).cached_tokens, Some(50 * CHUNK / 4 - 1));
    assert!(in_flight(&routers[1]).iter().all(|(_, load)| *load == 0));
}

#[test]
fn the_bookings_of_a_router_that_died_expire() {
    let mut routers = routers(2, 4);
    let decisions: Vec<Decision> = (0..8).map(|n| route(&routers[0], &digests(n, 10), SECOND)).collect();
    talk(&routers, SECOND);
    let sum = |router: &Router<Standard>| in_flight(router).iter().map(|(_, load)| load).sum::<u32>();
    assert_eq!(sum(&routers[1]), 8);
    let alone = routers.split_off(1);
    talk(&alone, 2 * SECOND);
    assert_eq!(sum(&alone[0]), 8, "it may only be slow");
    (1..=100).for_each(|step| talk(&alone, 2 * SECOND + step * 20_000));
    assert_eq!(sum(&alone[0]), 0);
    let view = alone[0].peering().view(Micros(3 * SECOND)).unwrap();
    assert_eq!((view.lost_peers, view.peers.len()), (1, 0));
    drop(decisions);
}

#[test]
fn a_worker_that_leaves_while_it_fails_is_found_failing_no_more() {
    let routers = routers(2, 4);
    let failing = routers[0].inspect().workers()[0].worker.clone();
    for n in 0..10 {
        let (worker, result) = (Arc::clone(&failing), ProbeResult::Failed);
        routers[0].apply(Change::Probed { worker, result, at: Micros(SECOND + n) });
    }
    let found_failing = |at| {
        talk(&routers, at);
        routers[1].peering().view(Micros(at)).unwrap().peers[0].failing
    };
    assert_eq!(found_failing(SECOND), 1);
    routers[0].apply(Change::Leave { address: failing.address.clone() });
    assert_eq!(found_failing(SECOND + 300_000), 0);
}

#[test]
fn a_worker_that_fails_elsewhere_is_passed_over_unless_it_serves_here() {
    let routers = routers(2, 4);
    let failing = routers[0].inspect().workers()[0].worker.clone();
    for n in 0..10 {
        let (worker, result) = (Arc::clone(&failing), ProbeResult::Failed);
        routers[0].apply(Change::Probed { worker, result, at: Micros(SECOND + n) });
    }
    talk(&routers, SECOND);
    talk(&routers, SECOND + 200_000);
    let now = SECOND + 300_000;
    let chosen = |n| route(&routers[1], &digests(n, 10), now);
    let decisions: Vec<Decision> = (0..12).map(chosen).collect();
    assert!(decisions.iter().all(|decision| decision.worker.label != failing.label));
    let again = (50..80).map(|n| route(&routers[1], &digests(n, 10), now + SECOND));
    let mut there: Vec<Decision> =
        again.into_iter().filter(|decision| decision.worker.label == failing.label).collect();
    assert!(!there.is_empty(), "for a moment only");
    routers[1].observe(&mut there[0], Outcome::FirstToken { at: Micros(now + SECOND) });
    drop((decisions, there));
    talk(&routers, now + SECOND);
    let still: Vec<Decision> =
        (80..99).map(|n| route(&routers[1], &digests(n, 10), now + SECOND + 1)).collect();
    assert!(still.iter().any(|decision| decision.worker.label == failing.label), "it serves us");
}

#[test]
fn messages_are_received_while_a_request_writes_the_ledger() {
    let routers = routers(2, 2);
    let _open: Vec<Decision> = (0..50).map(|n| route(&routers[0], &digests(n, 2_048), SECOND)).collect();
    let envelopes = routers[0].peering().compose_messages(Micros(SECOND));
    let requests = routers[1].sharing.get().unwrap().hold_own();
    let (report, received) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            envelopes
                .iter()
                .for_each(|one| _ = routers[1].peering().receive(&one.bytes, Micros(SECOND)).unwrap());
            report.send(in_flight(&routers[1])).unwrap();
        });
        let loads = received.recv_timeout(std::time::Duration::from_secs(60));
        drop(requests);
        let sum = loads.expect("it waits for no request").iter().map(|(_, load)| load).sum::<u32>();
        assert_eq!(sum, 50);
    });
}

#[test]
fn what_was_sent_to_a_worker_that_joins_here_a_moment_later_is_booked_then() {
    let routers = routers(2, 2);
    let address = Address::new("http://late");
    let join = |router: &Router<Standard>| {
        let (address, models) = (address.clone(), Models::Any);
        router.join(address.clone(), models).unwrap();
        let worker = router
            .inspect()
            .workers()
            .into_iter()
            .find(|view| view.worker.address == address)
            .unwrap()
            .worker;
        router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(SECOND) });
    };
    join(&routers[0]);
    let prompt = digests(1, 40);
    let mut decisions: Vec<Decision> =
        (0..9).map(|n| route(&routers[0], &digests(n, 40), SECOND + n)).collect();
    let late: Vec<usize> = (0..9).filter(|&n| decisions[n].worker.address == address && n != 1).collect();
    assert!(late.len() > 1, "some went there");
    routers[0].observe(&mut decisions[late[0]], Outcome::FirstToken { at: Micros(SECOND) });
    let _over = decisions.swap_remove(*late.last().unwrap());
    talk(&routers, SECOND + 20);
    drop(_over);
    talk(&routers, SECOND + 40);
    join(&routers[1]);
    talk(&routers, SECOND + 60);
    assert_eq!(in_flight(&routers[1]), in_flight(&routers[0]), "but for the one that was over before");
    let prefill = |router: &Router<Standard>| -> u64 {
        router.inspect().workers().iter().map(|view| view.load.prefill_tokens).sum()
    };
    assert_eq!(prefill(&routers[1]), prefill(&routers[0]));
    drop((decisions, prompt));
    talk(&routers, SECOND + 80);
    assert!(in_flight(&routers[1]).iter().all(|(_, load)| *load == 0));
}

#[test]
fn workers_that_another_names_otherwise_are_counted_and_those_that_are_late_are_not() {
    let routers = routers(2, 2);
    let other = Address::new("http://127.0.0.1:8000");
    routers[0].join(other.clone(), Models::Any).unwrap();
    let worker =
        routers[0].inspect().workers().into_iter().find(|view| view.worker.address == other).unwrap().worker;
    let probed = Change::Probed { worker, result: ProbeResult::Answered, at: Micros(SECOND) };
    routers[0].apply(probed);
    let unknown = |at| {
        talk(&routers, at);
        routers[1].peering().view(Micros(at)).unwrap().peers[0].unknown_workers
    };
    let _decisions: Vec<Decision> = (0..9).map(|n| route(&routers[0], &digests(n, 4), SECOND)).collect();
    assert_eq!(unknown(SECOND), 0, "it may be late");
    let later: Vec<usize> = (1..=40).map(|step| unknown(SECOND + step * 200_000)).collect();
    assert_eq!((later[20], later.last()), (0, Some(&1)));
    routers[1].join(other, Models::Any).unwrap();
    assert_eq!(unknown(10 * SECOND), 0);
}

#[test]
fn messages_that_claim_another_sender_are_rejected() {
    let routers = routers(3, 2);
    let _decision = route(&routers[0], &digests(1, 10), SECOND);
    let envelope = routers[0].peering().compose_messages(Micros(SECOND)).remove(0);
    let receive = |from: u64| {
        routers[1].peering().receive_from(RouterId(from), &envelope.bytes, Micros(SECOND)).unwrap()
    };
    assert_eq!(receive(3).answers, []);
    let sum = || in_flight(&routers[1]).iter().map(|(_, load)| load).sum::<u32>();
    let bad = || routers[1].peering().view(Micros(SECOND)).unwrap().bad_messages;
    assert_eq!((sum(), bad()), (0, 1));
    receive(1);
    assert_eq!((sum(), bad()), (1, 1));
}

/// The unpropagated load that a router computes after a minute in which every message took `delay_ms`.
fn unpropagated_load(delay_ms: u64) -> f64 {
    let routers = routers(4, 4);
    let mut under_way: VecDeque<(u64, Envelope)> = VecDeque::new();
    for ms in (0..60_000).step_by(10) {
        let now = Micros::from_millis(SECOND / 1_000 + ms);
        while under_way.front().is_some_and(|(due, _)| *due <= ms)
            && let Some((_, Envelope { to, bytes })) = under_way.pop_front()
        {
            let is_for = |number: usize| to == To::Everyone || to == To::One(RouterId(number as u64 + 1));
            let receivers = routers.iter().enumerate().filter(|(number, _)| is_for(*number));
            let answers = receivers.flat_map(|(_, router)| router.peering().receive(&bytes, now).unwrap());
            let answers: Vec<Envelope> = answers.collect();
            under_way.extend(answers.into_iter().map(|envelope| (ms + delay_ms, envelope)));
        }
        if ms.is_multiple_of(100) {
            drop(route(&routers[0], &digests(ms, 40), now.0));
        }
        for router in &routers {
            under_way.extend(
                router.peering().compose_messages(now).into_iter().map(|envelope| (ms + delay_ms, envelope)),
            );
        }
    }
    routers[1].sharing.get().unwrap().unpropagated_load().0 as f64
}

#[test]
fn unpropagated_load_grows_with_the_message_delay() {
    let [little, some, more] = [20, 80, 400].map(unpropagated_load);
    assert!(little > 0.0 && (3.0..5.0).contains(&(some / little)), "{little}, {some}");
    assert!((1.0..1.6).contains(&(more / some)), "{some}, {more}: no more than one prompt");
}
