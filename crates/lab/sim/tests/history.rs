//! Routers that start beside engines with a history: replayed events may describe blocks that are gone.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use warmroute_engine::{Config as EngineConfig, Profile};
use warmroute_sim::{
    Config, EvictionEvents, History, Outcome, Rule, Slo, Summary, View, Workload, WorkloadScale, run,
};

/// Four engines, a quarter as fast as the latency model's prior.
fn config(view: View, history: History) -> Config {
    let usual = EngineConfig::for_profile(Profile::Llama3_1_8b);
    let engine = EngineConfig { kv_tokens: 96_000, speed_percent: 25, ..usual };
    Config { fleet: vec![engine; 4], view, history, ..Config::new(Profile::Llama3_1_8b, 4) }
}

fn outcome(config: &Config, policy: &str, seed: u64) -> Outcome {
    let scale = WorkloadScale { seed, rate: 1.0, requests: Some(400) };
    run(&Config { seed, ..config.clone() }, &Rule::parse(policy).unwrap(), Workload::Tenants.sessions(scale))
        .unwrap()
}

/// Mean time to first token over three seeds, in milliseconds.
fn mean_ms(config: &Config, policy: &str) -> f64 {
    let mean = |seed| {
        let records = outcome(config, policy, seed).records;
        records.iter().map(|record| record.ttft_us as f64 / 1e3).sum::<f64>() / records.len() as f64
    };
    (1..=3).map(mean).sum::<f64>() / 3.0
}

#[test]
fn with_events_the_default_policy_is_no_worse_than_without_whatever_the_engines_did_before() {
    for history in [History::Fresh, History::Warm, History::Reset] {
        let reported_ms = mean_ms(&config(View::Reported, history), "expected_ttft");
        let presumed_ms = mean_ms(&config(View::Presumed, history), "expected_ttft");
        assert!(reported_ms <= 1.02 * presumed_ms, "{history}: {reported_ms} {presumed_ms}");
        // The same when many requests come at once.
        let burst = |view| Config { concurrency: Some(48), ..config(view, history) };
        let reported_ms = mean_ms(&burst(View::Reported), "expected_ttft");
        let presumed_ms = mean_ms(&burst(View::Presumed), "expected_ttft");
        assert!(reported_ms <= 1.02 * presumed_ms, "{history}, closed loop: {reported_ms} {presumed_ms}");
    }
}

#[test]
fn after_a_reset_no_other_policy_is_better_by_more_than_6_percent() {
    let after_reset = config(View::Reported, History::Reset);
    let ours_ms = mean_ms(&after_reset, "expected_ttft");
    for policy in ["cache_aware", "product", "sticky_least_loaded", "least_loaded", "round_robin"] {
        let other_ms = mean_ms(&after_reset, policy);
        assert!(ours_ms <= 1.06 * other_ms, "{policy}: {ours_ms} {other_ms}");
    }
}

#[test]
fn the_history_is_not_recorded_and_a_reset_empties_the_caches() {
    let figures = |history| {
        let outcome = outcome(&config(View::Presumed, history), "round_robin", 1);
        let hits = outcome.records.iter().take(10).map(|record| record.cached_tokens).sum::<u32>();
        let computed = outcome.totals.iter().map(|totals| totals.computed_tokens).sum::<u64>();
        let summary = Summary::of("round_robin", 1, &outcome, Slo::default());
        (summary.requests, hits > 0, computed)
    };
    let (fresh, warm, reset) = (figures(History::Fresh), figures(History::Warm), figures(History::Reset));
    assert_eq!((fresh.0, warm.0), (reset.0, reset.0), "only the requests of the run count");
    assert!(warm.1, "a warm engine answers the first requests from its cache");
    assert!(warm.2 < fresh.2, "{} tokens computed, {} by fresh engines", warm.2, fresh.2);
    assert_eq!(fresh, reset, "an engine that was reset is like a fresh one");
}

#[test]
fn resets_and_unpublished_evictions_during_a_run_cost_little() {
    let quiet = config(View::Reported, History::Fresh);
    let quiet_ms = mean_ms(&quiet, "expected_ttft");
    let resets = (0..4).map(|worker| format!("reset:{worker}@{}", 10 + worker).parse().unwrap()).collect();
    let reset_ms = mean_ms(&Config { incidents: resets, ..quiet.clone() }, "expected_ttft");
    assert!(
        reset_ms > quiet_ms && reset_ms < 2.5 * quiet_ms,
        "every prompt is computed twice, and those that come meanwhile wait: {reset_ms} {quiet_ms}"
    );
    let mut small = Config { eviction_events: EvictionEvents::Unpublished, ..quiet.clone() };
    small.fleet.iter_mut().for_each(|engine| engine.kv_tokens = 48_000);
    let unpublished_ms = mean_ms(&small, "expected_ttft");
    let presumed_ms = mean_ms(&Config { view: View::Presumed, ..small.clone() }, "expected_ttft");
    assert!(
        unpublished_ms < 1.5 * presumed_ms,
        "events without evictions are worth as much as no events: {unpublished_ms} {presumed_ms}"
    );
}
