//! Closed loops, repeated work and reports of load.

use warmroute_engine::{Config as EngineConfig, Profile};

use super::*;
use crate::{Slo, Summary, Workload, WorkloadScale};

fn config(workers: usize) -> Config {
    Config::new(Profile::Llama3_1_8b, workers)
}

fn traffic(workload: Workload, requests: u64) -> impl Iterator<Item = Session> {
    workload.sessions(WorkloadScale { requests: Some(requests), ..WorkloadScale::default() })
}

fn outcome(config: &Config, policy: &str, workload: Workload, requests: u64) -> Outcome {
    run(config, &Rule::parse(policy).unwrap(), traffic(workload, requests)).unwrap()
}

fn summary(config: &Config, policy: &str, workload: Workload, requests: u64) -> Summary {
    Summary::of(policy, 1, &outcome(config, policy, workload, requests), Slo::default())
}

#[test]
fn a_closed_loop_keeps_its_clients_busy_and_no_more() {
    let config = Config { concurrency: Some(12), ..config(3) };
    let outcome = outcome(&config, "least_loaded", Workload::Sharegpt, 1_500);
    let saturated = outcome.saturated.unwrap();
    let last = outcome.records.iter().map(Record::ended).max().unwrap();
    assert!(saturated > Micros::ZERO && saturated < last);
    let in_flight = |at: u64| {
        let is_there = |record: &&Record| record.asked_us <= at && at < record.ended().0;
        outcome.records.iter().filter(is_there).count()
    };
    // Within a busy time every client has a request in flight: it asks again at the very time of the answer.
    for share in [0.1, 0.4, 0.7, 0.99] {
        assert_eq!(in_flight((saturated.0 as f64 * share) as u64), 12, "{share}");
    }
    assert!(outcome.records.iter().all(|record| in_flight(record.asked_us) <= 12));
    let asked: usize = traffic(Workload::Sharegpt, 1_500).map(|session| session.turns.len()).sum();
    assert_eq!((outcome.records.len(), outcome.failed), (asked, 0));
}

#[test]
fn rates_of_a_closed_loop_are_those_of_its_busy_time() {
    let config = Config { concurrency: Some(8), ..config(2) };
    let outcome = outcome(&config, "round_robin", Workload::Unique, 400);
    let summary = Summary::of("round_robin", 1, &outcome, Slo::default());
    let busy_s = outcome.saturated.unwrap().as_secs_f64();
    let ended = outcome.records.iter().filter(|record| record.ended() <= outcome.saturated.unwrap()).count();
    assert!(ended < outcome.records.len(), "the last requests end after it");
    assert!((summary.throughput_rps - ended as f64 / busy_s).abs() < 1e-9);
    assert!((summary.output_tokens_per_s - 200.0 * summary.throughput_rps).abs() < 1e-6);
    let open = self::summary(&self::config(2), "round_robin", Workload::Unique, 400);
    assert_eq!(open.saturated_s, None);
    assert!(
        self::run(
            &Config { concurrency: Some(0), ..config },
            &Rule::parse("random").unwrap(),
            std::iter::empty()
        )
        .is_err()
    );
}

#[test]
fn ten_equal_queries_are_computed_ten_times_by_turns_and_once_by_cache() {
    let of = |policy: &str| summary(&config(10), policy, Workload::EqualQueries, 10);
    let (turns, cache) = (of("round_robin"), of("expected_ttft"));
    assert_eq!((turns.requests, cache.requests), (10, 10));
    assert!(turns.replication_factor > 9.0, "{}", turns.replication_factor);
    assert!((turns.repeated_prefill_ratio - 0.9).abs() < 0.01, "{}", turns.repeated_prefill_ratio);
    assert!(cache.replication_factor < 1.01 && cache.repeated_prefill_ratio < 0.01);
    let less = turns.prefill_tokens_computed as f64 / cache.prefill_tokens_computed as f64;
    assert!(less > 9.0, "{less}");
}

#[test]
fn blind_follow_ups_hit_one_time_in_n() {
    for workers in [1, 4, 16] {
        let hit = summary(&config(workers), "random", Workload::FollowUp, 3_000).request_hit_ratio;
        let expected = 0.5 / workers as f64;
        assert!((hit - expected).abs() < 0.03, "{workers}: {hit} {expected}");
        let warm = summary(&config(workers), "session_affinity", Workload::FollowUp, 3_000).request_hit_ratio;
        assert!(warm > 0.49, "{workers}: {warm}");
    }
}

#[test]
fn engines_report_who_waits_to_rules_that_ask() {
    let engine = EngineConfig {
        kv_tokens: 8_000,
        speed_percent: 15,
        ..EngineConfig::for_profile(Profile::Llama3_2_3b)
    };
    let config = Config { fleet: vec![engine; 2], ..config(2) };
    let by_flight = outcome(&config, "least_loaded", Workload::Assistants, 600);
    let by_waiting = outcome(&config, "least_loaded:signal=waiting", Workload::Assistants, 600);
    assert_ne!(by_flight.records, by_waiting.records);
    assert!(by_flight.records.iter().any(|record| record.queued_us > 0));
    assert!(by_flight.records.iter().all(|record| record.queued_us <= record.ttft_us));
}

#[test]
fn the_six_policies_of_the_small_study_all_differ() {
    let engine = EngineConfig {
        kv_tokens: 6_000,
        speed_percent: 15,
        ..EngineConfig::for_profile(Profile::Llama3_2_3b)
    };
    let config = Config { fleet: vec![engine; 2], ..config(2) };
    let six = [
        "round_robin",
        "least_loaded:signal=waiting",
        "power_of_two",
        "session_affinity",
        "prefix_affinity:key=system",
        "weighted_score",
    ];
    let rows = six.map(|policy| (policy, outcome(&config, policy, Workload::Assistants, 600).records));
    for (at, (one, records)) in rows.iter().enumerate() {
        for (other, others) in &rows[at + 1..] {
            assert_ne!(records, others, "{one} is {other}");
        }
    }
}
