//! Speed of the simulator on one core, by workers and requests.
//!
//! `cargo run --release -p warmroute-sim --example speed` prints the table; with `-- POLICY WORKERS REQUESTS
//! RATE` one line of it. Requests are counted per second of CPU time, which excludes other processes on the
//! machine; wall time is beside it. The load is Azure-like and unique (`--workload azure`), at 10 requests
//! per second and worker unless a rate is given.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

use std::time::Instant;

use warmroute_engine::Profile;
use warmroute_sim::{Config, Rule, Workload, WorkloadScale, run};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "{:<22}{:>8}{:>10}{:>8}{:>10}{:>10}{:>18}{:>10}",
        "policy", "workers", "requests", "req/s", "wall s", "CPU s", "simulated/CPU s", "peak MB"
    );
    if let [policy, workers, requests, rate] = &args[..] {
        let parse = |text: &str| text.parse::<f64>().expect("a number");
        line(policy, parse(workers) as usize, parse(requests) as u64, parse(rate));
        return;
    }
    for policy in ["round_robin", "least_loaded", "sticky_least_loaded"] {
        line(policy, 8, 1_000_000, 80.0);
    }
    for (workers, requests) in
        [(8, 100_000), (8, 1_000_000), (64, 1_000_000), (256, 1_000_000), (1_000, 1_000_000)]
    {
        line("cache_aware", workers, requests, workers as f64 * 10.0);
    }
}

/// Runs one line of the table.
fn line(policy: &str, workers: usize, requests: u64, rate_per_s: f64) {
    let config = Config::new(Profile::Llama3_1_8b, workers);
    let rule = Rule::parse(policy).expect("a policy");
    let scale = WorkloadScale { seed: 1, rate: rate_per_s / 80.0, requests: Some(requests) };
    let (begun, cpu_before_s) = (Instant::now(), cpu_s());
    let outcome = run(&config, &rule, Workload::Azure.sessions(scale)).expect("a valid config");
    let wall_s = begun.elapsed().as_secs_f64();
    let cpu_s = cpu_s().zip(cpu_before_s).map_or(wall_s, |(after, before)| after - before);
    println!(
        "{policy:<22}{workers:>8}{requests:>10}{rate_per_s:>8.0}{wall_s:>10.2}{cpu_s:>10.2}{:>18.0}{:>10}",
        outcome.records.len() as f64 / cpu_s,
        peak_mb()
    );
}

/// CPU time of this thread, the only one, if the system reports it.
fn cpu_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let on_cpu_ns: f64 = stat.split_whitespace().next()?.parse().ok()?;
    Some(on_cpu_ns / 1e9)
}

/// Peak resident memory of the process; 0 if the system does not report it.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1_024
}
