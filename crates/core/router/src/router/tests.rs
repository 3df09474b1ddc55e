//! The router's laws.

use std::sync::{Arc, Barrier};

use warmroute_fleet::{BREAKER_PAUSE, ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{LeastLoaded, RoundRobin, Standard};
use warmroute_types::{Address, LoadReport, WorkerState};

use super::*;
use crate::{Change, PromptChunks};
use warmroute_fleet::Models;

fn address(i: usize) -> Address {
    Address::new(format!("http://engine-{i}"))
}

/// A router with `n` ready workers that serve `models`.
fn router_of<P: Policy>(policy: P, n: usize, models: Models) -> Router<P> {
    let router = Router::new(policy, Config::default());
    for i in 0..n {
        router.join(address(i), models.clone()).unwrap();
    }
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(1) });
    }
    router
}

fn request_for(model: &str) -> Request<'_> {
    Request { model: Some(model), prompt_tokens: 100, ..Request::default() }
}

fn loads<P: Policy>(router: &Router<P>) -> Vec<u32> {
    router.inspect().workers().iter().map(|view| view.load.in_flight).collect()
}

/// k concurrent requests are placed as if they had arrived one after another. With the shortest queue that is a
/// perfectly even spread; any gap between reading the load and booking would break it.
#[test]
fn concurrent_siblings_are_placed_as_if_in_sequence() {
    const WORKERS: usize = 8;
    const THREADS: usize = 16;
    const EACH: usize = 50;
    let router = router_of(LeastLoaded::default(), WORKERS, Models::named(&["m"]));
    let barrier = Barrier::new(THREADS);
    let decisions: Vec<Decision> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (router, barrier) = (&router, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    // Clocks of threads disagree: `now` steps back and forth.
                    let now = Micros(1_000_000 - thread as u64 * 1_000);
                    let random = |i: usize| (thread * EACH + i) as u64;
                    (0..EACH)
                        .map(|i| {
                            router.route(&request_for("m"), &mut Scratch::default(), now, random(i)).unwrap()
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(loads(&router), vec![(THREADS * EACH / WORKERS) as u32; WORKERS]);
    drop(decisions);
    assert_eq!(loads(&router), vec![0; WORKERS], "every booking was released");
}

#[test]
fn prefill_is_released_at_the_first_token_and_the_rest_at_the_end() {
    let router = router_of(RoundRobin, 1, Models::Any);
    let mut decision = router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap();
    let load = |router: &Router<RoundRobin>| router.inspect().workers()[0].load;
    assert_eq!((load(&router).prefill_tokens, load(&router).decode_tokens), (100, 100));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    assert_eq!((load(&router).prefill_tokens, load(&router).decode_tokens), (0, 100));
    router.observe(&mut decision, Outcome::Ended { answered: None });
    drop(decision);
    assert_eq!((load(&router).in_flight, load(&router).decode_tokens), (0, 0));
}

#[test]
fn a_request_goes_only_to_workers_that_serve_its_model() {
    let router = Router::new(RoundRobin, Config::default());
    let join = |i, models| router.join(address(i), models).unwrap();
    join(0, Models::named(&["small"]));
    join(1, Models::named(&["large", "large-lora"]));
    join(2, Models::named(&["large"]));
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(1) });
    }
    let goes_to = |model: Option<&str>| -> Vec<String> {
        let request = Request { model, ..Request::default() };
        let mut urls: Vec<String> = (0..6)
            .map(|turn| {
                router
                    .route(&request, &mut Scratch::default(), Micros(1), turn)
                    .unwrap()
                    .worker
                    .address
                    .url
                    .clone()
            })
            .collect();
        urls.sort();
        urls.dedup();
        urls
    };
    assert_eq!(goes_to(Some("small")), ["http://engine-0"]);
    assert_eq!(goes_to(Some("large-lora")), ["http://engine-1"]);
    assert_eq!(goes_to(Some("large")), ["http://engine-1", "http://engine-2"]);
    assert_eq!(goes_to(None).len(), 3, "a request that names no model may go anywhere");
    assert_eq!(
        router.route(&request_for("other"), &mut Scratch::default(), Micros(1), 1).unwrap_err(),
        NoRoute::UnknownModel
    );
}

#[test]
fn each_reason_for_no_route_is_distinct() {
    let router = Router::new(RoundRobin, Config::default());
    let why = |router: &Router<RoundRobin>| {
        router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap_err()
    };
    assert_eq!(why(&router), NoRoute::NoWorkers);
    router.join(address(0), Models::Unknown).unwrap();
    assert_eq!(why(&router), NoRoute::NotReady, "it may turn out to serve the model");
    let worker = Arc::clone(&router.inspect().workers()[0].worker);
    let serves = |models| router.apply(Change::Serves { worker: Arc::clone(&worker), models });
    serves(Models::named(&["other"]));
    assert_eq!(why(&router), NoRoute::UnknownModel);
    serves(Models::named(&["m"]));
    assert_eq!(why(&router), NoRoute::NotReady, "it serves the model but has not said that it is well");
    router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(1) });
    assert!(router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).is_ok());
}

#[test]
fn failures_in_a_row_take_a_worker_out_and_an_answer_brings_it_back() {
    let router = router_of(RoundRobin, 2, Models::Any);
    let bad = Arc::clone(&router.inspect().workers()[0].worker);
    let mut failed = 0;
    while router.inspect().workers()[0].load.state == WorkerState::Ready {
        let mut decision = router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap();
        let is_bad = decision.worker == bad;
        if is_bad {
            let worker = Arc::clone(&decision.worker);
            router.apply(Change::Probed { worker, result: ProbeResult::Failed, at: Micros(1) });
        } else {
            router.observe(&mut decision, Outcome::Ended { answered: None });
        }
        failed += u32::from(is_bad);
    }
    assert_eq!(failed, HealthConfig::default().failures_max);
    assert!((0..9).all(|_| {
        router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap().worker != bad
    }));
    router.apply(Change::Probed { worker: Arc::clone(&bad), result: ProbeResult::Answered, at: Micros(1) });
    assert!((0..2).any(|_| {
        router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap().worker == bad
    }));
}

#[test]
fn a_worker_that_failed_this_request_is_avoided() {
    let router = router_of(RoundRobin, 3, Models::Any);
    let avoid = [WorkerId(0), WorkerId(2)];
    let request = Request { avoid: &avoid, ..request_for("m") };
    assert!(
        (0..5).all(|turn| router
            .route(&request, &mut Scratch::default(), Micros(1), turn)
            .unwrap()
            .worker
            .id
            == WorkerId(1))
    );
    let all = [WorkerId(0), WorkerId(1), WorkerId(2)];
    let request = Request { avoid: &all, ..request_for("m") };
    assert_eq!(router.route(&request, &mut Scratch::default(), Micros(1), 1).unwrap_err(), NoRoute::NotReady);
}

#[test]
fn the_places_of_an_engine_that_was_away_are_forgotten() {
    let router = router_of(RoundRobin, 1, Models::Any);
    let worker = Arc::clone(&router.inspect().workers()[0].worker);
    let report = LoadReport { running: 3, places: Some(8), at: Micros(2), ..LoadReport::default() };
    router.apply(Change::Load { worker: Arc::clone(&worker), report });
    let places = || router.fleet.engine_places(worker.id).places.map(|places| places.get());
    assert_eq!(places(), Some(8));
    break_down(&router, &worker, Micros(3));
    assert_eq!(places(), Some(8), "it may only be slow");
    let at = Micros(3) + BREAKER_PAUSE;
    router.apply(Change::Probed { worker: Arc::clone(&worker), result: ProbeResult::Answered, at });
    assert_eq!(places(), None, "it was most likely restarted");
}

#[test]
fn what_a_worker_stores_is_continued_there_or_nowhere() {
    let router = router_of(RoundRobin, 3, Models::Any);
    let route = |avoid: &[WorkerId]| {
        let request = Request { stored_at: Some(WorkerId(1)), avoid, ..request_for("m") };
        router.route(&request, &mut Scratch::default(), Micros(1), 1).map(|decision| decision.worker.id)
    };
    assert!((0..5).all(|_| route(&[]) == Ok(WorkerId(1))));
    assert_eq!(route(&[WorkerId(1)]), Err(NoRoute::NotReady));
    let vacancy = |worker| {
        let usable = crate::Usable { stored_at: Some(WorkerId(worker)), ..crate::Usable::default() };
        router.inspect().vacancy(Some("m"), usable)
    };
    assert_eq!([1, 7].map(vacancy), [Vacancy::Free, Vacancy::NoWorker]);
    break_down(&router, &router.inspect().workers()[1].worker, Micros(2));
    assert_eq!(route(&[]), Err(NoRoute::NotReady), "no other worker has it");
    assert_eq!(vacancy(1), Vacancy::NoWorker);
}

#[test]
fn a_request_that_is_limited_to_a_group_stays_in_it_also_while_workers_pause_and_change() {
    let router = router_of(RoundRobin, 3, Models::Any);
    let workers: Vec<Arc<Worker>> =
        router.inspect().workers().iter().map(|view| Arc::clone(&view.worker)).collect();
    let put = |worker: &Arc<Worker>, groups: &[&str]| {
        let groups = groups.iter().map(|&name| name.to_owned()).collect();
        router.apply(Change::Grouped { worker: Arc::clone(worker), groups });
    };
    let group = router.worker_group("llama");
    let request = Request { within: Some(&group), ..request_for("m") };
    let went_to =
        || router.route(&request, &mut Scratch::default(), Micros(1), 1).map(|decision| decision.worker.id);
    let vacancy = || router.inspect().vacancy(Some("m"), request.usable());
    assert_eq!((went_to(), vacancy()), (Err(NoRoute::NotReady), Vacancy::NoWorker), "an empty group");
    put(&workers[1], &["llama"]);
    put(&workers[2], &["qwen"]);
    assert!((0..4).all(|_| went_to() == Ok(WorkerId(1))));
    assert_eq!(vacancy(), Vacancy::Free);
    router.apply(Change::Resting { worker: Arc::clone(&workers[1]), until: Micros::from_secs(5) });
    assert_eq!(went_to(), Ok(WorkerId(1)), "a paused worker is better than none");
    put(&workers[1], &[]);
    put(&workers[2], &["qwen", "llama"]);
    assert_eq!(went_to(), Ok(WorkerId(2)));
    assert_eq!(router.inspect().groups_of(WorkerId(2)), ["llama".into(), "qwen".into()]);
    router.apply(Change::Leave { address: address(2) });
    router.join(Address::new("http://another"), Models::Any).unwrap();
    assert_eq!(went_to(), Err(NoRoute::NotReady), "the next worker of the slot is in no group");
}

/// The group llama starts from zero while another group's worker serves another model.
#[test]
fn a_model_is_unknown_only_if_the_requests_own_group_has_workers_and_none_of_them_serves_it() {
    let router = Router::new(RoundRobin, Config::default());
    let join = |i, models, group: &str| {
        router.join(address(i), models).unwrap();
        let worker = Arc::clone(&router.inspect().workers()[i].worker);
        router.apply(Change::Grouped { worker: Arc::clone(&worker), groups: vec![group.to_owned()] });
        router.apply(Change::Probed {
            worker: Arc::clone(&worker),
            result: ProbeResult::Answered,
            at: Micros(1),
        });
        worker
    };
    join(0, Models::named(&["qwen"]), "qwen");
    let (group, other_group) = (router.worker_group("llama"), router.worker_group("qwen"));
    let outcome = |within| {
        let request = Request { within, ..request_for("llama") };
        let routed = router.route(&request, &mut Scratch::default(), Micros(1), 1);
        let previewed = router.inspect().preview(&request, &mut Scratch::default(), Micros(1), 1);
        assert_eq!(routed.as_ref().err(), previewed.as_ref().err());
        (routed.err(), router.inspect().vacancy(Some("llama"), request.usable()))
    };
    let (unknown, awaited) =
        ((Some(NoRoute::UnknownModel), Vacancy::UnknownModel), (Some(NoRoute::NotReady), Vacancy::NoWorker));
    assert_eq!(outcome(Some(&group)), awaited, "the group is empty");
    assert_eq!(outcome(None), unknown);
    let worker = join(1, Models::Unknown, "llama");
    assert_eq!(outcome(Some(&group)), awaited, "its worker has not listed its models");
    assert_eq!(outcome(Some(&other_group)), unknown, "the other group's has");
    router.apply(Change::Serves { worker: Arc::clone(&worker), models: Models::named(&["other"]) });
    assert_eq!(outcome(Some(&group)), unknown);
    router.apply(Change::Serves { worker, models: Models::named(&["llama"]) });
    assert_eq!(outcome(Some(&group)), (None, Vacancy::Free));
}

#[test]
fn a_worker_that_leaves_gets_nothing_new_and_keeps_what_it_has() {
    let router = router_of(RoundRobin, 2, Models::Any);
    let held: Vec<_> = (0..2)
        .map(|_| router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap())
        .collect();
    router.apply(Change::Leave { address: address(0) });
    assert!((0..4).all(|_| {
        router.route(&request_for("m"), &mut Scratch::default(), Micros(1), 1).unwrap().worker.address
            == address(1)
    }));
    let states: Vec<_> = router.inspect().workers().iter().map(|view| view.load.state).collect();
    assert_eq!(states, [WorkerState::Draining, WorkerState::Ready]);
    drop(held);
    assert_eq!(router.inspect().workers().len(), 1, "gone after its last request");
}

#[test]
fn the_engines_waiting_count_is_believed_while_it_is_fresh() {
    let policy = LeastLoaded { signal: warmroute_policy::LoadSignal::Waiting };
    let router = router_of(policy, 2, Models::Any);
    for (view, waiting) in router.inspect().workers().into_iter().zip([9, 2]) {
        let report = LoadReport { waiting, at: Micros::from_secs(10), ..LoadReport::default() };
        router.apply(Change::Load { worker: view.worker, report });
    }
    let at = |seconds| {
        router.route(&request_for("m"), &mut Scratch::default(), Micros::from_secs(seconds), 5).unwrap()
    };
    let first = at(11);
    assert_eq!((first.worker.id, first.reason), (WorkerId(1), "least_waiting"));
    let late = at(60);
    assert_eq!((late.worker.id, late.reason), (WorkerId(0), "least_in_flight"), "the report is too old");
}

#[test]
fn the_policy_and_its_reason_are_in_the_decision() {
    let router = router_of("session_affinity".parse::<Standard>().unwrap(), 4, Models::Any);
    let decision = router
        .route(&Request { session_key: Some(5), ..request_for("m") }, &mut Scratch::default(), Micros(1), 1)
        .unwrap();
    assert_eq!((decision.policy, decision.reason), ("session_affinity", "session"));
}

/// Fails as many requests of a worker as it takes.
fn break_down<P: Policy>(router: &Router<P>, worker: &Arc<Worker>, at: Micros) {
    while router.inspect().worker_state(worker.id) != WorkerState::Unhealthy {
        router.apply(Change::Faulted { worker: Arc::clone(worker), at });
    }
}

#[test]
fn a_worker_whose_requests_failed_is_tried_with_one_at_a_time() {
    let router = router_of(RoundRobin, 2, Models::Any);
    let bad = Arc::clone(&router.inspect().workers()[0].worker);
    break_down(&router, &bad, Micros(1));
    let late = Micros(1) + BREAKER_PAUSE;
    let answered = Change::Probed { worker: Arc::clone(&bad), result: ProbeResult::Answered, at: late };
    router.apply(answered);
    let held: Vec<_> =
        (0..9).map(|_| router.route(&request_for("m"), &mut Scratch::default(), late, 1).unwrap()).collect();
    let mut trials: Vec<_> = held.into_iter().filter(|decision| decision.worker == bad).collect();
    assert_eq!(trials.len(), 1, "it has one request; the others go elsewhere");
    router.observe(&mut trials[0], Outcome::FirstToken { at: late });
    assert_eq!(router.inspect().worker_state(bad.id), WorkerState::Ready);
}

#[test]
fn a_paused_worker_is_skipped_while_others_are_ready() {
    let router = router_of(RoundRobin, 2, Models::Any);
    let busy = Arc::clone(&router.inspect().workers()[0].worker);
    let until = Micros::from_secs(5);
    router.apply(Change::Resting { worker: Arc::clone(&busy), until });
    let went_to = |request: &Request<'_>, now| {
        router.route(request, &mut Scratch::default(), now, 1).map(|decision| decision.worker)
    };
    assert!((0..6).all(|_| went_to(&request_for("m"), Micros::from_secs(4)).unwrap() != busy));
    assert!((0..2).any(|_| went_to(&request_for("m"), until).unwrap() == busy), "its time is over");
    router.apply(Change::Leave { address: address(1) });
    assert_eq!(went_to(&request_for("m"), Micros::from_secs(4)).unwrap(), busy, "better than no worker");
    let avoid = [WorkerId(1)];
    let again = Request { avoid: &avoid, ..request_for("m") };
    assert_eq!(
        went_to(&again, Micros::from_secs(4)).unwrap_err(),
        NoRoute::NotReady,
        "but not as a second try"
    );
}

/// Sixteen kilobytes.
fn asking(digests: &[u64]) -> Request<'_> {
    let name = Namespace { model: "m", lora: None, salt: None, cut: 256, source: Source::Presumed };
    let prompt = PromptChunks { root: RootKey::of(&name), digests, chunk_bytes: 256, bytes: 64 * 256 };
    Request { prompt: Some(prompt), ..request_for("m") }
}

/// One worker holds 64 conversations and goes down: they are placed like new ones.
#[test]
fn requests_spread_when_all_holders_are_out() {
    let conversations: Vec<Vec<u64>> =
        (0..64).map(|i| (0..64).map(|chunk| i << 32 | chunk).collect()).collect();
    let random = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for policy in ["expected_ttft", "cache_aware", "sticky_least_loaded", "product"] {
        let router = router_of(policy.parse::<Standard>().unwrap(), 9, Models::Any);
        let others: Vec<WorkerId> = (1..9).map(WorkerId).collect();
        for digests in &conversations {
            let request = Request { avoid: &others, ..asking(digests) };
            let mut held = router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
            router.observe(&mut held, Outcome::FirstToken { at: Micros(2) });
            router.observe(&mut held, Outcome::Ended { answered: None });
        }
        break_down(&router, &router.inspect().workers()[0].worker, Micros(3));
        let route = |(i, digests): (u64, &Vec<u64>)| {
            router.route(&asking(digests), &mut Scratch::default(), Micros(4 + i), random(i)).unwrap()
        };
        let _placed: Vec<_> = (0..).zip(&conversations).map(route).collect();
        let loads = loads(&router);
        assert!(
            loads[0] == 0 && loads[1..].iter().all(|load| (4..=16).contains(load)),
            "{policy}: {loads:?}"
        );
    }
}
