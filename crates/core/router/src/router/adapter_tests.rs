//! LoRA adapters: where they are loaded decides, in milliseconds. Models with settings of their own.

use std::sync::Arc;

use warmroute_fleet::{ModelCard, Models, ProbeResult};
use warmroute_policy::{ExpectedTtft, Standard};
use warmroute_types::{Address, LoadReport};

use super::*;
use crate::{Change, ModelRules, Usable};

const NOW: Micros = Micros::from_secs(100);

/// Two engines with a base model and three adapters, of which one fits into memory.
fn router() -> Router<Standard> {
    let router = Router::new(Standard::ExpectedTtft(ExpectedTtft::default()), Config::default());
    let names = ["base", "sql", "law", "chat"];
    for engine in 0..2 {
        let address = Address::new(format!("http://engine-{engine}"));
        let worker = router.join(address, Models::named(&names)).unwrap();
        let card = |name: &&str| ModelCard {
            id: Arc::from(*name),
            created: None,
            max_model_len: None,
            parent: (*name != "base").then(|| Arc::from("base")),
        };
        router.apply(Change::ModelCards {
            worker: Arc::clone(&worker),
            cards: names.iter().map(card).collect(),
        });
        router.apply(Change::Adapters { worker: Arc::clone(&worker), names: Vec::new(), slots: Some(1) });
        router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: NOW });
    }
    router
}

fn route(router: &Router<Standard>, model: &str, at: Micros) -> Decision {
    let request = Request { model: Some(model), prompt_tokens: 400, ..Request::default() };
    router.route(&request, &mut Scratch::default(), at, at.0).unwrap()
}

/// A request that is answered after this time. Returns its worker.
fn answered(router: &Router<Standard>, model: &str, at: Micros, took: Micros) -> String {
    let mut decision = route(router, model, at);
    router.observe(&mut decision, Outcome::FirstToken { at: at + took });
    router.observe(&mut decision, Outcome::Ended { answered: None });
    decision.worker.address.url.clone()
}

fn adapter_ms(decision: &Decision) -> f32 {
    decision.candidate_records[0].as_ref().unwrap().numbers.estimate.adapter_ms
}

#[test]
fn requests_go_where_their_adapter_is_warm_unless_the_queue_is_longer() {
    let router = router();
    let second = |s: u64| NOW + Micros::from_secs(s);
    let sql = answered(&router, "sql", second(0), Micros::from_millis(900));
    let law = answered(&router, "law", second(2), Micros::from_millis(900));
    assert_ne!(sql, law, "a second adapter is loaded where none is lost");
    for turn in 0..6 {
        let at = second(4 + turn);
        assert_eq!(answered(&router, "sql", at, Micros::from_millis(40)), sql, "turn {turn}");
        assert_eq!(answered(&router, "law", at, Micros::from_millis(40)), law, "turn {turn}");
    }
    let mut queued = Vec::new();
    while queued.len() < 200 {
        let decision = route(&router, "sql", second(20));
        let is_elsewhere = decision.worker.address.url != sql;
        queued.push(decision);
        if is_elsewhere {
            break;
        }
    }
    assert!((3..200).contains(&queued.len()), "{} requests wait before a load pays", queued.len());
}

#[test]
fn the_time_of_a_load_is_learned_and_does_not_slow_the_latency_model() {
    let router = router();
    let cold = |s: u64, model: &str| {
        let decision = route(&router, model, NOW + Micros::from_secs(s));
        adapter_ms(&decision)
    };
    let prior = cold(0, "chat");
    assert!(prior > 0.0);
    let speed = |router: &Router<Standard>| {
        let ids = router.inspect().workers().into_iter().map(|view| view.worker.id);
        ids.map(|id| router.inspect().latency(id, NOW).ms_per_1k_tokens).sum::<f32>()
    };
    let before = speed(&router);
    for turn in 0..40 {
        let model = ["sql", "law", "chat"][turn % 3];
        answered(&router, model, NOW + Micros::from_secs(10 + turn as u64), Micros::from_millis(2_000));
    }
    let decision = route(&router, "sql", NOW + Micros::from_secs(100));
    let (all, learned) = (decision.expected_ttft_ms(), adapter_ms(&decision));
    if learned > 0.0 {
        assert!((1_500.0..2_100.0).contains(&all), "{all} ms with a load of {learned} ms");
    }
    assert!(speed(&router) < 4.0 * before.max(1.0), "{} ms per 1,000 tokens", speed(&router));
}

#[test]
fn base_models_need_no_adapter_and_restarts_lose_them() {
    let router = router();
    assert_eq!(adapter_ms(&route(&router, "base", NOW)), 0.0);
    let held = answered(&router, "sql", NOW, Micros::from_millis(500));
    let view = router.inspect().workers().into_iter().find(|view| view.worker.address.url == held).unwrap();
    let at = NOW + Micros::from_secs(1);
    assert_eq!(adapter_ms(&route(&router, "sql", at)), 0.0);
    // Its counters go back: the engine is a new process.
    let report = |queries| LoadReport {
        prefix_cache: Some(warmroute_types::PrefixCache { queries, hits: 0 }),
        at,
        ..LoadReport::default()
    };
    for queries in [500, 3] {
        router.apply(Change::Load { worker: Arc::clone(&view.worker), report: report(queries) });
    }
    assert!(adapter_ms(&route(&router, "sql", at)) > 0.0);
    router.apply(Change::Adapters { worker: view.worker, names: vec!["sql".into()], slots: None });
    assert_eq!(adapter_ms(&route(&router, "sql", at)), 0.0, "the engine says that it holds it");
}

#[test]
fn a_model_may_have_a_policy_and_a_limit_of_its_own() {
    let router = router();
    let rules = ModelRules { policy: Some("round_robin".parse().unwrap()), in_flight_max: Some(1) };
    router.set_model_rules([("sql".to_owned(), rules)].into());
    let (first, other) = (route(&router, "sql", NOW), route(&router, "base", NOW));
    assert_eq!((first.policy, other.policy), ("round_robin", "expected_ttft"));
    assert!(router.inspect().needs(|policy| policy.name() == "round_robin"));
    let request = Request { model: Some("sql"), prompt_tokens: 400, ..Request::default() };
    assert_eq!(router.route(&request, &mut Scratch::default(), NOW, 1).err(), Some(NoRoute::Full));
    assert_eq!(router.inspect().vacancy(Some("sql"), Usable::default()), Vacancy::Full);
    assert_eq!(router.inspect().vacancy(Some("law"), Usable::default()), Vacancy::Free);
    drop((first, other));
    assert_eq!(route(&router, "sql", NOW).policy, "round_robin");
}
