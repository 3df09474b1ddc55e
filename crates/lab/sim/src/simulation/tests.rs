//! Small runs with a known outcome.

use warmroute_engine::Profile;

use super::*;
use crate::{Balancer, Incident, PeerNetwork, Piece, Workload, WorkloadScale, mix};

fn config(workers: usize) -> Config {
    Config::new(Profile::Llama3_1_8b, workers)
}

fn rule(name: &str) -> Rule {
    Rule::parse(name).unwrap()
}

fn piece(text: u64, tokens: u32) -> Piece {
    Piece { content: mix(text), tokens }
}

fn request(at_ms: u64, prompt: &[Piece], answer: Piece) -> Session {
    Session::single(Micros::from_millis(at_ms), prompt.to_vec(), vec![answer])
}

fn chats(requests: u64) -> impl Iterator<Item = Session> {
    Workload::Sharegpt.sessions(WorkloadScale { requests: Some(requests), ..WorkloadScale::default() })
}

fn outcome(config: &Config, policy: &str, sessions: impl Iterator<Item = Session>) -> Outcome {
    run(config, &rule(policy), sessions).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for view in [View::Exact, View::Reported, View::Presumed] {
        let config = Config { view, ..config(4) };
        let once = outcome(&config, "cache_aware", chats(600));
        assert_eq!(once, outcome(&config, "cache_aware", chats(600)), "{view}");
        let other = outcome(&Config { seed: 2, ..config }, "cache_aware", chats(600));
        assert_ne!(once.records, other.records, "{view}");
    }
}

#[test]
fn a_lone_request_takes_the_engine_time_and_two_hops() {
    let config = config(1);
    let sessions = [request(5, &[piece(1, 500)], piece(2, 10))];
    let records = outcome(&config, "random", sessions.into_iter()).records;
    let mut work = warmroute_engine::StepWork::default();
    work.add(0, 500);
    let prefill = Profile::Llama3_1_8b.cost().of(&work);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].asked_us, records[0].ttft_us), (5_000, prefill.0 + 2 * config.hop.0));
    assert!(records[0].tpot_ms().unwrap() > 4.9);
}

#[test]
fn every_view_finds_a_repeated_prompt_on_its_engine() {
    let prompt = [piece(1, 4_000)];
    let sessions = || (0..20).map(|turn| request(turn * 3_000, &prompt, piece(100 + turn, 20)));
    for view in [View::Exact, View::Reported, View::Presumed] {
        let config = Config { view, ..config(4) };
        let records = outcome(&config, "sticky_least_loaded", sessions()).records;
        assert!(records[1..].iter().all(|record| record.worker == records[0].worker), "{view}");
        assert!(records[1..].iter().all(|record| record.cached_tokens == 3_984), "{view}");
        assert_eq!(records.iter().map(|record| record.stale_tokens).sum::<u32>(), 0, "{view}");
    }
    let blind = outcome(&config(4), "round_robin", sessions()).records;
    assert_eq!(
        blind.iter().filter(|record| record.cached_tokens > 0).count(),
        16,
        "each of four computes it once"
    );
}

#[test]
fn events_reveal_answers_that_routing_cannot_presume() {
    let found = |view| {
        let records = outcome(&Config { view, ..config(8) }, "sticky_least_loaded", chats(3_000)).records;
        let sum = |of: fn(&Record) -> u32| records.iter().map(of).map(u64::from).sum::<u64>() as f64;
        (sum(|record| record.cached_tokens), sum(|record| record.missed_tokens))
    };
    let (presumed, reported, exact) = (found(View::Presumed), found(View::Reported), found(View::Exact));
    assert!(reported.0 > 1.05 * presumed.0, "{reported:?} {presumed:?}");
    assert!(reported.0 > 0.95 * exact.0, "{reported:?} {exact:?}");
    assert!(reported.1 < presumed.1, "less is there that was not promised: {reported:?} {presumed:?}");
}

#[test]
fn turns_wait_for_the_previous_answer() {
    let turn = |think_ms, prompt: &[Piece], answer| crate::Turn {
        think: Micros::from_millis(think_ms),
        thread: crate::Thread::default(),
        prompt: prompt.to_vec(),
        answer: vec![answer],
    };
    let (question, answer) = (piece(1, 320), piece(2, 64));
    let turns = vec![turn(0, &[question], answer), turn(70, &[question, answer, piece(3, 40)], piece(4, 5))];
    let sessions = [Session { starts: Micros::ZERO, turns }];
    let records = outcome(&config(1), "random", sessions.into_iter()).records;
    assert_eq!(records[1].asked_us, records[0].e2e_us + 70_000);
    assert_eq!(records[1].cached_tokens, 368, "the answer too, but for the token that was never computed");
}

#[test]
fn an_old_directory_has_stale_and_missing_blocks() {
    let sum = |refresh_s: u64| {
        let events = EventPath { refresh: Micros::from_secs(refresh_s), ..EventPath::DIRECT };
        let mut config = Config { view: View::Exact, events, ..config(2) };
        config.fleet.iter_mut().for_each(|engine| engine.kv_tokens = 20_000);
        let outcome = outcome(&config, "sticky_least_loaded", chats(3_000));
        let sum = |of: fn(&Record) -> u32| outcome.records.iter().map(of).map(u64::from).sum::<u64>();
        let at_choice = sum(|record| u32::from(record.was_stale_at_choice()));
        (sum(|r| r.stale_tokens), sum(|r| r.missed_tokens), sum(|r| r.cached_tokens), at_choice)
    };
    let (fresh, old) = (sum(0), sum(60));
    assert_eq!(fresh.3, 0, "a perfect directory can only be overtaken after the choice");
    assert!(old.3 > 0, "an old one is wrong at the choice");
    assert!(old.0 > 2 * fresh.0, "stale: {fresh:?} then {old:?}");
    assert!(old.1 > 2 * fresh.1, "missed: {fresh:?} then {old:?}");
    assert!(old.2 < fresh.2, "hits: {fresh:?} then {old:?}");
}

#[test]
fn requests_of_a_dead_engine_are_retried_unless_they_had_a_first_token() {
    let fail = Incident { at: Micros::from_secs(2), worker: 0, kind: IncidentKind::Fail };
    let recover = Incident { at: Micros::from_secs(20), worker: 0, kind: IncidentKind::Recover };
    let config = Config { incidents: vec![fail, recover], ..config(3) };
    let requests = 900;
    let sessions =
        || Workload::Unique.sessions(WorkloadScale { requests: Some(requests), rate: 0.5, seed: 3 });
    let outcome = outcome(&config, "round_robin", sessions());
    assert!(outcome.failed > 0, "some were being answered");
    assert!(outcome.retried > 0, "some were not");
    assert_eq!(outcome.records.len() as u64 + outcome.failed, requests);
    let while_dead = 3_000_000..20_000_000;
    assert!(outcome.records.iter().filter(|r| while_dead.contains(&r.asked_us)).all(|r| r.worker != 0));
    assert!(outcome.records.iter().any(|r| r.asked_us > 21_000_000 && r.worker == 0), "it came back");
}

#[test]
fn a_directory_forgets_an_engine_that_died() {
    let incident = |second, kind| Incident { at: Micros::from_secs(second), worker: 0, kind };
    let incidents = vec![incident(5, IncidentKind::Fail), incident(6, IncidentKind::Recover)];
    let prompt = [piece(1, 4_000)];
    let sessions = || [0, 4_000, 10_000].map(|at_ms| request(at_ms, &prompt, piece(at_ms, 2))).into_iter();
    for (lag_ms, refresh_s, loss) in [(100, 0, 0.0), (0, 2, 0.0), (1_500, 2, 0.0), (100, 0, 0.5)] {
        let events =
            EventPath { lag: Micros::from_millis(lag_ms), refresh: Micros::from_secs(refresh_s), loss };
        for seed in 1..=8 {
            let incidents = incidents.clone();
            let config = Config { view: View::Exact, events, incidents, seed, ..config(1) };
            let records = outcome(&config, "sticky_least_loaded", sessions()).records;
            let last = records[2];
            assert_eq!((last.predicted_tokens, last.cached_tokens), (Some(0), 0), "{events:?} {seed}");
            let heard_before = records[1].predicted_tokens == Some(3_984);
            assert!(heard_before || loss > 0.0, "{events:?} {seed}");
        }
    }
}

#[test]
fn engines_join_and_leave() {
    let join = Incident { at: Micros::from_secs(5), worker: 1, kind: IncidentKind::Join };
    let leave = Incident { at: Micros::from_secs(10), worker: 0, kind: IncidentKind::Leave };
    let config = Config { incidents: vec![join, leave], ..config(2) };
    let sessions = Workload::Short.sessions(WorkloadScale { requests: Some(900), rate: 0.15, seed: 3 });
    let outcome = outcome(&config, "least_loaded", sessions);
    assert_eq!(outcome.records.len(), 900);
    for record in &outcome.records {
        match record.asked_us {
            0..5_000_000 => assert_eq!(record.worker, 0),
            10_000_001.. => assert_eq!(record.worker, 1),
            _ => {}
        }
    }
    assert!(outcome.totals.iter().all(|totals| totals.requests > 100));
}

#[test]
fn a_request_too_large_for_every_engine_is_rejected_alone() {
    let sessions = [request(0, &[piece(1, 900_000)], piece(2, 1)), request(1, &[piece(3, 100)], piece(4, 1))];
    let outcome = outcome(&config(2), "cache_aware", sessions.into_iter());
    assert_eq!((outcome.rejected, outcome.records.len()), (1, 1));
    assert!(outcome.load.samples.iter().flatten().all(|worker| worker.in_flight <= 1));
}

#[test]
fn load_aware_policies_send_less_to_a_slow_engine() {
    let mut config = config(2);
    config.fleet[1].speed_percent = 25;
    let sessions = Workload::Unique.sessions(WorkloadScale { requests: Some(2_000), rate: 0.4, seed: 3 });
    let totals = outcome(&config, "least_loaded", sessions).totals;
    assert!(totals[0].requests > 2 * totals[1].requests, "{totals:?}");
}

#[test]
fn routers_that_share_find_more_than_routers_that_do_not() {
    let hits = |routers, sharing| {
        let config = Config { routers, sharing, ..config(8) };
        let records = outcome(&config, "cache_aware", chats(2_000)).records;
        let sum = |of: fn(&Record) -> u32| records.iter().map(|record| u64::from(of(record))).sum::<u64>();
        sum(|record| record.cached_tokens) as f64 / sum(|record| record.prompt_tokens) as f64
    };
    let sharing = |delay_ms, loss, partitions: &[&str]| {
        let partitions = partitions.iter().map(|cut| cut.parse().unwrap()).collect();
        Some(PeerNetwork { delay: Micros::from_millis(delay_ms), loss, partitions })
    };
    let (one, eight) = (hits(1, None), hits(8, None));
    assert!(eight < one * 0.9, "{eight} against {one}");
    let together = hits(8, sharing(50, 0.0, &[]));
    assert!(together > one - 0.01, "{together} against {one}");
    let lossy = hits(8, sharing(50, 0.2, &[]));
    assert!(lossy > one - 0.01, "{lossy}: what was lost is asked for");
    let cut = hits(8, sharing(50, 0.0, &["0..100000"]));
    assert!((eight..one).contains(&cut), "{cut}: two halves");
}

#[test]
fn the_same_seed_gives_the_same_bytes_when_routers_share() {
    let sharing = Some(PeerNetwork { delay: Micros::from_millis(20), loss: 0.1, partitions: Vec::new() });
    let config = Config { routers: 4, sharing, balancer: Balancer::Session, ..config(4) };
    let once = outcome(&config, "expected_ttft", chats(600));
    assert_eq!(once, outcome(&config, "expected_ttft", chats(600)));
    assert!(once.shared_bytes > 0);
}

#[test]
fn host_memory_saves_prefill_and_a_pool_serves_all_engines() {
    let run = |host_tokens: u64, pool_tokens: u64| {
        let mut config = config(4);
        let tier = |tokens| {
            let latency = Micros(1_000);
            (tokens > 0).then_some(warmroute_engine::Tier { tokens, megabytes_per_s: 25_000, latency })
        };
        for engine in &mut config.fleet {
            (engine.kv_tokens, engine.host, engine.pool) = (20_000, tier(host_tokens), tier(pool_tokens));
        }
        let outcome = outcome(&config, "round_robin", chats(3_000));
        let sum = |of: fn(&Totals) -> u64| outcome.totals.iter().map(of).sum::<u64>();
        let ttft_us: u64 = outcome.records.iter().map(|record| record.ttft_us).sum();
        (sum(|t| t.uncached_tokens), sum(|t| t.host_tokens), sum(|t| t.pool_tokens), ttft_us)
    };
    let (none, host, pool) = (run(0, 0), run(400_000, 0), run(0, 1_600_000));
    assert_eq!((none.1, none.2, host.2, pool.1), (0, 0, 0, 0));
    assert!(host.1 > 0 && host.0 < none.0, "{host:?} {none:?}");
    assert!(pool.0 < host.0 * 9 / 10, "what others have computed too: {pool:?} {host:?}");
    assert!(pool.3 < none.3, "and it is worth the time: {pool:?} {none:?}");
}
