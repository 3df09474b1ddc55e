//! Worlds in which routers know caches by their own feeds, and not all arrives.

use warmroute_engine::{Engine, Profile, Tier};
use warmroute_types::CacheView;

use super::*;
use crate::config::{NewsPath, TierNews};
use crate::stream::Letter;
use crate::{Incident, Piece, Scale, Workload, mix};

const HEADS: u64 = 40;
const HEAD_TOKENS: u32 = 1_008;

fn head(number: u64) -> Piece {
    Piece { content: mix(number), tokens: HEAD_TOKENS }
}

/// Forty heads again and again, ten a second, more than two small caches hold. Blocks are filled by prompts alone, and several at once.
fn sessions(requests: u64) -> impl Iterator<Item = Session> {
    (0..requests).map(|number| {
        let tail = Piece { content: mix(1_000 + number), tokens: 208 };
        let prompt = vec![head(mix(number) % HEADS), tail];
        let answer = Piece { content: mix(1_000_000 + number), tokens: 1 };
        Session::single(Micros::from_millis(number * 100), prompt, vec![answer])
    })
}

fn config(loss: f64, replay_batches: usize) -> Config {
    let news = NewsPath { loss, ..NewsPath::DIRECT };
    let mut config =
        Config { view: View::Reported, news, replay_batches, ..Config::new(Profile::Llama3_1_8b, 2) };
    config.fleet.iter_mut().for_each(|engine| engine.kv_tokens = 20_000);
    config
}

fn world(config: &Config) -> World<'_, impl Iterator<Item = Session>> {
    let rule = Rule::parse("sticky_least_loaded").unwrap();
    let mut world = World::new(config, &rule, sessions(900).peekable());
    world.open();
    while world.step() {}
    // One more batch of each engine, which does arrive: what was lost at the very end is noticed like the rest.
    for node in 0..config.fleet.len() {
        let batch = world.streams[node].publish(world.now, Vec::new());
        let ask = world.gates[0].hear(node, &Letter::Batch(batch), world.now);
        world.ask_replay(0, node, ask);
    }
    while world.step() {}
    world.now = world.now + Micros::from_secs(10);
    world.gates[0].tick(world.now);
    world
}

/// Of each head and engine: how its cache is known, what it is believed to hold, and what it holds.
fn knowledge<S: Iterator<Item = Session>>(world: &mut World<'_, S>) -> Vec<(CacheView, u32, u32)> {
    let of_gpu = |(view, believed, held): (CacheView, [u32; 2], [u32; 2])| (view, believed[0], held[0]);
    all_knowledge(world).into_iter().map(of_gpu).collect()
}

/// The same, each with what lies beyond in slower memory.
fn all_knowledge<S: Iterator<Item = Session>>(
    world: &mut World<'_, S>,
) -> Vec<(CacheView, [u32; 2], [u32; 2])> {
    let mut known = Vec::new();
    for number in 0..HEADS {
        let prompt = [head(number), Piece { content: mix(u64::MAX), tokens: 1 }];
        let chain = block_names(&prompt, &[], 16);
        for (node, view, tokens) in world.gates[0].known(&prompt, world.now) {
            let engine = &world.nodes[node].engine;
            let held = [Engine::cached_tokens, Engine::restorable_tokens];
            known.push((view, tokens, held.map(|held| held(engine, &chain, HEAD_TOKENS + 1))));
        }
    }
    assert_eq!(known.len() as u64, HEADS * 2);
    assert!(known.iter().any(|one| one.2[0] > 0) && known.iter().any(|one| one.2[0] == 0), "some is held");
    known
}

#[test]
fn what_is_lost_and_told_again_leaves_no_trace() {
    for loss in [0.0, 0.02, 0.3] {
        let config = config(loss, 10_000);
        for (view, believed, held) in knowledge(&mut world(&config)) {
            assert_eq!((view, believed), (CacheView::Reported, held), "a loss of {loss}");
        }
    }
}

#[test]
fn what_is_lost_for_good_makes_the_view_uncertain_and_wrong() {
    let config = config(0.3, 0);
    let knowledge = knowledge(&mut world(&config));
    assert!(knowledge.iter().all(|one| one.0 == CacheView::Uncertain));
    assert!(knowledge.iter().any(|(_, believed, held)| believed != held));
}

#[test]
fn a_ring_that_is_too_short_is_as_good_as_none_and_no_worse() {
    let config = config(0.3, 1);
    assert!(knowledge(&mut world(&config)).iter().any(|one| one.0 == CacheView::Uncertain));
}

#[test]
fn an_engine_that_was_started_again_is_known_again() {
    let incident = |kind, second| Incident { at: Micros::from_secs(second), worker: 0, kind };
    for replay_batches in [0, 10_000] {
        let mut config = config(0.0, replay_batches);
        config.incidents = vec![incident(IncidentKind::Fail, 30), incident(IncidentKind::Recover, 40)];
        let mut world = world(&config);
        assert_eq!(world.streams[0].process, 1);
        for (view, believed, held) in knowledge(&mut world) {
            assert_eq!((view, believed), (CacheView::Reported, held), "a ring of {replay_batches}");
        }
    }
}

#[test]
fn an_engine_that_left_and_came_back_tells_what_it_still_holds() {
    let incident = |kind, second| Incident { at: Micros::from_secs(second), worker: 0, kind };
    let mut config = config(0.0, 10_000);
    config.incidents = vec![incident(IncidentKind::Leave, 88), incident(IncidentKind::Join, 89)];
    let knowledge = knowledge(&mut world(&config));
    assert!(knowledge.iter().all(|(view, believed, held)| (*view, believed) == (CacheView::Reported, held)));
}

#[test]
fn events_that_get_lost_are_worth_more_than_none() {
    let found = |view, loss, replay_batches| {
        let news = NewsPath { loss, ..NewsPath::DIRECT };
        let config = Config { view, news, replay_batches, ..Config::new(Profile::Llama3_1_8b, 8) };
        let sessions = Workload::Sharegpt.sessions(Scale { requests: Some(3_000), ..Scale::default() });
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

/// Small GPUs; with host memory, or a pool, behind them that holds more than they do, and less than all.
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
fn what_lies_in_slower_memory_is_known_to_the_token() {
    let config = tiered(16_000, 0);
    let known = all_knowledge(&mut world(&config));
    assert!(known.iter().filter(|one| one.2[1] > 0).count() > 5, "some is on the host: {known:?}");
    for (view, believed, held) in known {
        assert_eq!((view, believed), (CacheView::Reported, held));
    }
}

#[test]
fn of_a_pool_each_engine_is_known_to_reach_what_it_has_put_there() {
    let config = tiered(0, 30_000);
    let known = all_knowledge(&mut world(&config));
    assert!(known.iter().all(|(_, believed, held)| believed[0] == held[0]), "{known:?}");
    let believed: u32 = known.iter().map(|one| one.1[1]).sum();
    let wrong: u32 = known.iter().map(|(_, believed, held)| believed[1].saturating_sub(held[1])).sum();
    // What the other one has pushed out since its own last step it has not told yet.
    assert!(believed > 5_000 && wrong * 10 < believed, "{wrong} of {believed} tokens are not in the pool");
}

#[test]
fn engines_that_tell_of_their_host_memory_are_asked_where_it_serves() {
    let run = |tier_news| {
        let config = Config { tier_news, ..tiered(60_000, 0) };
        run(&config, &Rule::parse("expected_ttft").unwrap(), sessions(2_000)).unwrap()
    };
    let (told, untold) = (run(TierNews::Told), run(TierNews::Untold));
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
