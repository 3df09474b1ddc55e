//! Goodput under overload: requests a second whose first token comes within the budget, with no shedding, with a
//! queue of fixed length, and with time budgets.
//!
//! `cargo run --release -p warmroute-sim --example goodput` prints the table of docs/reliability.md. Traffic is
//! Azure-like (`azure`, nothing shared) on two engines for a minute. Capacity is the highest rate, in steps of
//! 2 %, at which 99 % of the requests are in time without shedding. The fixed lengths are requests in flight per engine;
//! `Retry-After` is not obeyed: refused requests are gone.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

use warmroute_engine::Profile;
use warmroute_sim::{Config, Outcome, Rule, Shedding, Workload, WorkloadScale, run};
use warmroute_types::Micros;

const WORKERS: usize = 2;
const SECONDS: f64 = 60.0;
/// Requests a second of the workload at its own rate.
const AZURE_PER_S: f64 = 80.0;
const BUDGET: Micros = Micros::from_millis(1_000);
const LENGTHS: [u32; 3] = [32, 64, 128];

fn main() {
    let capacity = capacity();
    println!("capacity: {capacity:.0} requests/s on {WORKERS} engines, budget {} ms", BUDGET.0 / 1_000);
    println!(
        "{:>5} {:<14}{:>9}{:>10}{:>10}{:>9}{:>13}",
        "load", "shedding", "offered", "in time", "too late", "refused", "p99 TTFT ms"
    );
    for load in [1.0, 1.2, 1.5, 2.0] {
        let fixed = LENGTHS.map(Shedding::InFlight);
        for shedding in [&[Shedding::Off], &fixed[..], &[Shedding::Budget(BUDGET)]].concat() {
            line(load, load * capacity, shedding);
        }
    }
}

/// The highest rate that is served in time without shedding.
fn capacity() -> f64 {
    let is_met = |rate: f64| in_time(&simulate(rate, Shedding::Off)) >= 0.99 * rate;
    let mut rate = 8.0;
    while is_met(rate * 1.2) {
        rate *= 1.2;
    }
    while is_met(rate * 1.02) {
        rate *= 1.02;
    }
    rate
}

fn simulate(rate_per_s: f64, shedding: Shedding) -> Outcome {
    let config = Config { shedding, ..Config::new(Profile::Llama3_1_8b, WORKERS) };
    let rule = Rule::parse("expected_ttft").expect("a policy");
    let requests = Some((rate_per_s * SECONDS) as u64);
    let scale = WorkloadScale { seed: 1, rate: rate_per_s / AZURE_PER_S, requests };
    run(&config, &rule, Workload::Azure.sessions(scale)).expect("a valid config")
}

/// Requests a second with their first token in time.
fn in_time(outcome: &Outcome) -> f64 {
    let met = outcome.records.iter().filter(|record| record.ttft_us <= BUDGET.0).count();
    met as f64 / SECONDS
}

fn line(load: f64, rate_per_s: f64, shedding: Shedding) {
    let outcome = simulate(rate_per_s, shedding);
    let mut ttfts: Vec<u64> = outcome.records.iter().map(|record| record.ttft_us).collect();
    ttfts.sort_unstable();
    let p99 = ttfts.get(ttfts.len() * 99 / 100).copied().unwrap_or(0);
    let name = match shedding {
        Shedding::Off => "none".to_owned(),
        Shedding::InFlight(length) => format!("length {length}"),
        Shedding::Budget(_) => "budget".to_owned(),
    };
    let met = in_time(&outcome);
    println!(
        "{load:>5.1} {name:<14}{rate_per_s:>9.0}{met:>10.1}{:>10.1}{:>9.1}{:>13}",
        outcome.records.len() as f64 / SECONDS - met,
        outcome.refused as f64 / SECONDS,
        p99 / 1_000
    );
}
