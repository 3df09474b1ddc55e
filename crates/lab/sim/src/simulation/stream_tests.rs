//! Runs in which routers follow engine events, some of which are lost.

use warmroute_engine::{Engine, Profile, Tier};
use warmroute_types::CacheView;

use super::*;
use crate::config::{EventPath, TierEvents};
use crate::event_stream::StreamMessage;
use crate::prompt::block_names;
use crate::{Incident, Piece, Workload, WorkloadScale, mix};

const HEADS: u64 = 40;
const HEAD_TOKENS: u32 = 1_008;

fn head(number: u64) -> Piece {
    Piece { content: mix(number), tokens: HEAD_TOKENS }
}

/// Forty prompt heads in rotation, ten requests a second, more than two small caches hold. Prompts alone fill
/// blocks, several at once.
fn sessions(requests: u64) -> impl Iterator<Item = Session> {
    (0..requests).map(|number| {
        let tail = Piece { content: mix(1_000 + number), tokens: 208 };
        let prompt = vec![head(mix(number) % HEADS), tail];
        let answer = Piece { content: mix(1_000_000 + number), tokens: 1 };
        Session::single(Micros::from_millis(number * 100), prompt, vec![answer])
    })
}

fn config(loss: f64, replay_batches: usize) -> Config {
    let events = EventPath { loss, ..EventPath::DIRECT };
    let mut config =
        Config { view: View::Reported, events, replay_batches, ..Config::new(Profile::Llama3_1_8b, 2) };
    config.fleet.iter_mut().for_each(|engine| engine.kv_tokens = 20_000);
    config
}

fn simulation(config: &Config) -> Simulation<'_> {
    let rule = Rule::parse("sticky_least_loaded").unwrap();
    let mut simulation = Simulation::new(config, &rule, Box::new(sessions(900)));
    simulation.start();
    while simulation.step() {}
    // One more batch per engine arrives, so that losses at the very end are noticed, too.
    for node in 0..config.fleet.len() {
        let batch = simulation.streams[node].publish(simulation.now, Vec::new());
        let request =
            simulation.routers[0].receive(node, &StreamMessage::PublishedBatch(batch), simulation.now);
        simulation.request_replay(0, node, request);
    }
    while simulation.step() {}
    simulation.now = simulation.now + Micros::from_secs(10);
    simulation.routers[0].tick(simulation.now);
    simulation
}

/// Per head and engine: the cache view's state, the tokens believed cached, and the tokens cached.
fn knowledge(simulation: &mut Simulation<'_>) -> Vec<(CacheView, u32, u32)> {
    let of_gpu = |(view, believed, held): (CacheView, [u32; 2], [u32; 2])| (view, believed[0], held[0]);
    all_knowledge(simulation).into_iter().map(of_gpu).collect()
}

/// The same, with the tokens in slower memory.
fn all_knowledge(simulation: &mut Simulation<'_>) -> Vec<(CacheView, [u32; 2], [u32; 2])> {
    let mut known = Vec::new();
    for number in 0..HEADS {
        let prompt = [head(number), Piece { content: mix(u64::MAX), tokens: 1 }];
        let chain = block_names(&prompt, &[], 16);
        for (node, view, tokens) in simulation.routers[0].known(&prompt, simulation.now) {
            let engine = &simulation.nodes[node].engine;
            let held = [Engine::cached_tokens, Engine::restorable_tokens];
            known.push((view, tokens, held.map(|held| held(engine, &chain, HEAD_TOKENS + 1))));
        }
    }
    assert_eq!(known.len() as u64, HEADS * 2);
    assert!(known.iter().any(|one| one.2[0] > 0) && known.iter().any(|one| one.2[0] == 0), "some is held");
    known
}

#[test]
fn replayed_losses_leave_no_error() {
    for loss in [0.0, 0.02, 0.3] {
        let config = config(loss, 10_000);
        for (view, believed, held) in knowledge(&mut simulation(&config)) {
            assert_eq!((view, believed), (CacheView::Reported, held), "a loss of {loss}");
        }
    }
}

#[test]
fn losses_without_replay_make_the_view_uncertain_and_wrong() {
    let config = config(0.3, 0);
    let knowledge = knowledge(&mut simulation(&config));
    assert!(knowledge.iter().all(|one| one.0 == CacheView::Uncertain));
    assert!(knowledge.iter().any(|(_, believed, held)| believed != held));
}

#[test]
fn a_replay_buffer_that_is_too_short_equals_none() {
    let config = config(0.3, 1);
    assert!(knowledge(&mut simulation(&config)).iter().any(|one| one.0 == CacheView::Uncertain));
}

#[test]
fn a_restarted_engine_is_followed_again() {
    let incident = |kind, second| Incident { at: Micros::from_secs(second), worker: 0, kind };
    for replay_batches in [0, 10_000] {
        let mut config = config(0.0, replay_batches);
        config.incidents = vec![incident(IncidentKind::Fail, 30), incident(IncidentKind::Recover, 40)];
        let mut simulation = simulation(&config);
        assert_eq!(simulation.streams[0].process, 1);
        for (view, believed, held) in knowledge(&mut simulation) {
            assert_eq!((view, believed), (CacheView::Reported, held), "a ring of {replay_batches}");
        }
    }
}

#[test]
fn an_engine_that_rejoins_replays_its_cache() {
    let incident = |kind, second| Incident { at: Micros::from_secs(second), worker: 0, kind };
    let mut config = config(0.0, 10_000);
    config.incidents = vec![incident(IncidentKind::Leave, 88), incident(IncidentKind::Join, 89)];
    let knowledge = knowledge(&mut simulation(&config));
    assert!(knowledge.iter().all(|(view, believed, held)| (*view, believed) == (CacheView::Reported, held)));
}

#[test]
fn lossy_events_are_better_than_none() {
    let found = |view, loss, replay_batches| {
        let events = EventPath { loss, ..EventPath::DIRECT };
        let config = Config { view, events, replay_batches, ..Config::new(Profile::Llama3_1_8b, 8) };
        let sessions =
            Workload::Sharegpt.sessions(WorkloadScale { requests: Some(3_000), ..WorkloadScale::default() });
        let records = run(&config, &Rule::parse("sticky_least_loaded").unwrap(), sessions).unwrap().records;
        records.iter().map(|record| u64::from(record.cached_tokens)).sum::<u64>()
    };
    let presumed = found(View::Presumed, 0.0, 0);
    let [whole, healed, torn] =
        [(0.0, 0), (0.05, 10_000), (0.05, 0)].map(|(loss, batches)| found(View::Reported, loss, batches));
    assert!(healed * 100 > whole * 98, "replays mend it: {healed} of {whole}");
    assert!(torn > presumed, "{torn} against {presumed}");
    assert!(torn < healed, "{torn} of {healed}");
}

/// Engines with small GPU memory, and host memory or a pool that holds more, but not everything.
fn tiered(host_tokens: u64, pool_tokens: u64) -> Config {
    let tier = |tokens| {
        let tier = Tier { tokens, megabytes_per_s: 25_000, latency: Micros(100) };
        (tokens > 0).then_some(tier)
    };
    let mut config = config(0.0, 10_000);
    for engine in &mut config.fleet {
        (engine.kv_tokens, engine.host, engine.pool) = (6_000, tier(host_tokens), tier(pool_tokens));
    }
    config
}

#[test]
fn tokens_in_slower_memory_are_known_exactly() {
    let config = tiered(16_000, 0);
    let known = all_knowledge(&mut simulation(&config));
    assert!(known.iter().filter(|one| one.2[1] > 0).count() > 5, "some is on the host: {known:?}");
    for (view, believed, held) in known {
        assert_eq!((view, believed), (CacheView::Reported, held));
    }
}

#[test]
fn each_engine_is_credited_with_its_own_blocks_in_the_pool() {
    let config = tiered(0, 30_000);
    let known = all_knowledge(&mut simulation(&config));
    assert!(known.iter().all(|(_, believed, held)| believed[0] == held[0]), "{known:?}");
    let believed: u32 = known.iter().map(|one| one.1[1]).sum();
    let wrong: u32 = known.iter().map(|(_, believed, held)| believed[1].saturating_sub(held[1])).sum();
    // The other engine has not yet published what it evicted since its last step.
    assert!(believed > 5_000 && wrong * 10 < believed, "{wrong} of {believed} tokens are not in the pool");
}

#[test]
fn published_host_memory_attracts_the_requests_it_serves() {
    let run = |tier_events| {
        let config = Config { tier_events, ..tiered(60_000, 0) };
        run(&config, &Rule::parse("expected_ttft").unwrap(), sessions(2_000)).unwrap()
    };
    let (told, untold) = (run(TierEvents::Published), run(TierEvents::Unpublished));
    let sum = |outcome: &Outcome, of: fn(&Record) -> u32| -> u64 {
        outcome.records.iter().map(|record| u64::from(of(record))).sum()
    };
    let restored: u64 = told.totals.iter().map(|totals| totals.host_tokens).sum();
    let promised = sum(&told, |record| record.restorable_tokens);
    assert!(promised.abs_diff(restored) * 50 <= restored, "{promised} promised, {restored} restored");
    let [missed, unheard] = [&told, &untold].map(|outcome| sum(outcome, |record| record.missed_tokens));
    assert!(missed * 100 <= restored && unheard * 4 > restored, "{missed} or {unheard} of {restored} missed");
    let ttft_us = |outcome: &Outcome| -> u64 { outcome.records.iter().map(|record| record.ttft_us).sum() };
    let cached = |outcome: &Outcome| sum(outcome, |record| record.cached_tokens);
    let mean_ms = |outcome: &Outcome| ttft_us(outcome) as f64 / outcome.records.len() as f64 / 1e3;
    println!(
        "restorable {promised}, restored {restored}; mean TTFT {:.1} ms, untold {:.1} ms; found {} and {} tokens",
        mean_ms(&told),
        mean_ms(&untold),
        cached(&told),
        cached(&untold)
    );
    assert!(cached(&told) * 20 > cached(&untold) * 21, "{} or {}", cached(&told), cached(&untold));
    assert!(ttft_us(&told) * 20 < ttft_us(&untold) * 19, "{} or {}", ttft_us(&told), ttft_us(&untold));
}
