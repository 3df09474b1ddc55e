//! Properties of all baselines, on small runs.

use warmroute_engine::Profile;

use super::*;
use crate::{Config, Outcome, Rule, Session, View, Workload, WorkloadScale, run};

/// Baselines that keep a prefix shared by all requests on few workers.
const HERDS: [&str; 4] = ["preble_e2", "llmd_weights", "llmd_sticky", "longest_match"];

fn outcome(baseline: &str, workload: Workload, requests: u64) -> Outcome {
    let config = Config { view: View::Exact, ..Config::new(Profile::Llama3_1_8b, 4) };
    let scale = WorkloadScale { requests: Some(requests), rate: 0.5, ..WorkloadScale::default() };
    let sessions: Vec<Session> = workload.sessions(scale).collect();
    run(&config, &Rule::parse(baseline).unwrap(), sessions.into_iter()).unwrap()
}

#[test]
fn every_baseline_is_found_by_its_name() {
    for baseline in &BASELINES {
        assert_eq!((baseline.make)().policy.name(), baseline.name);
        assert_eq!(Baseline::named(&baseline.name.replace('_', "-")).unwrap().name, baseline.name);
    }
    assert!(Baseline::named("round_robin").is_none());
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for baseline in &BASELINES {
        let once = outcome(baseline.name, Workload::Sharegpt, 300);
        assert_eq!(once.records.len(), 300, "{}", baseline.name);
        assert_eq!(once, outcome(baseline.name, Workload::Sharegpt, 300), "{}", baseline.name);
    }
}

#[test]
fn a_prefix_shared_by_all_is_spread_unless_the_rule_is_known_to_herd() {
    let spread = |baseline: &Baseline| {
        let totals = outcome(baseline.name, Workload::OneHotPrefix, 600).totals;
        (baseline.name, totals.iter().map(|total| total.requests).collect::<Vec<u64>>())
    };
    let spreads: Vec<(&str, Vec<u64>)> = BASELINES.iter().map(spread).collect();
    // An even share of 600 requests is 150; a worker with less than a fifth of that is left out. CHWBL's
    // bound alone allows a third.
    let is_herd = |(_, requests): &&(&str, Vec<u64>)| requests.iter().any(|&one| one < 30);
    let herds: Vec<&str> = spreads.iter().filter(is_herd).map(|&(name, _)| name).collect();
    assert_eq!(herds, HERDS, "{spreads:?}");
}
