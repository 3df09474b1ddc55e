//! Verdicts about runs with given figures.

use warmroute_engine::Profile;
use warmroute_sim::{Bounds, Config, Rule, Slo, Workload, WorkloadScale, bounds, run};

use super::*;

/// Summary of a real run with a replaced figure.
fn summary(policy: &str, seed: u64, ttft_ms: f64) -> Summary {
    let scale = WorkloadScale { requests: Some(5), ..WorkloadScale::default() };
    let config = Config::new(Profile::Llama3_1_8b, 1);
    let outcome = run(&config, &Rule::parse("random").unwrap(), Workload::Unique.sessions(scale)).unwrap();
    let mut summary = Summary::of(policy, seed, &outcome, Slo::default());
    summary.ttft_ms.mean = ttft_ms;
    summary
}

/// Verdict of a table: a policy per row, a seed per column.
fn said(rows: &[(&str, &[f64])]) -> String {
    let runs = rows.iter().flat_map(|(policy, ttfts_ms)| {
        (1..).zip(*ttfts_ms).map(|(seed, ttft_ms)| summary(policy, seed, *ttft_ms))
    });
    let point = Point { summaries: runs.collect(), ..Point::default() };
    verdict(&Report { points: vec![point], ..Report::default() }).concat()
}

#[test]
fn policies_are_compared_seed_by_seed() {
    // Seeds differ by a factor of three, the policies by a constant.
    let sure = said(&[("slow", &[110.0, 210.0, 310.0]), ("quick", &[100.0, 201.0, 299.0])]);
    assert!(sure.starts_with("quick gives the first token soonest: 200 ms"), "{sure}");
    assert!(!sure.contains("may be as soon"), "{sure}");
    let unsure = said(&[("a", &[100.0, 220.0, 300.0]), ("b", &[110.0, 190.0, 310.0])]);
    assert!(unsure.contains(". a may be as soon, within 95 % confidence"), "{unsure}");
    let three = said(&[("a", &[100.0, 220.0]), ("b", &[110.0, 190.0]), ("c", &[120.0, 185.0])]);
    assert!(three.contains(". c and a may be as soon"), "{three}");
}

#[test]
fn a_winner_of_a_single_run_is_marked_as_such() {
    let once = said(&[("slow", &[110.0]), ("quick", &[100.0])]);
    assert!(once.starts_with("quick gives the first token soonest in one run: 100 ms"), "{once}");
    assert!(!once.contains("confidence"), "{once}");
}

#[test]
fn belady_is_an_approximate_bound_for_closed_loop_clients() {
    let bounded = |workload: Workload| {
        let scale = WorkloadScale { requests: Some(300), ..WorkloadScale::default() };
        let bounds: Bounds = bounds(&Config::new(Profile::Llama3_1_8b, 1), workload.sessions(scale)).unwrap();
        let point = Point { summaries: vec![summary("a", 1, 9.0)], bounds: Some(bounds), ..Point::default() };
        verdict(&Report { points: vec![point], ..Report::default() }).concat()
    };
    assert!(bounded(Workload::Sharegpt).contains("no router could find more than about "));
    let open = bounded(Workload::OneHotPrefix);
    assert!(open.contains("no router could find more than ") && !open.contains("about"), "{open}");
}

#[test]
fn an_overloaded_fleet_is_said_to_be_one() {
    let scale = WorkloadScale { requests: Some(50), ..WorkloadScale::default() };
    let bounds = bounds(&Config::new(Profile::Llama3_1_8b, 1), Workload::Unique.sessions(scale)).unwrap();
    let summaries = vec![summary("calm", 1, 90.0), summary("flooded", 1, 33_000.0)];
    let point = Point { summaries, bounds: Some(bounds), ..Point::default() };
    let remarks = Report { points: vec![point], ..Report::default() }.remarks();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].starts_with("flooded: the fleet is overloaded: 33.0 s"), "{remarks:?}");
}
