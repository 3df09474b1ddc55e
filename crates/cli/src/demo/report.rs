//! The results of a demo run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use warmroute_replica::Stats;

use super::load::Outcome;
use super::workload::{ANSWER_TOKENS, QUESTION_TOKENS, SYSTEM_TOKENS, TURNS, Workload};
use crate::args::DemoArgs;

/// One policy's figures. Times are engine time: wall time × speed.
pub struct Run {
    pub policy: String,
    pub requests: usize,
    pub errors: u64,
    pub ttft_ms: Ttft,
    pub token_hit_ratio: f64,
    pub requests_per_s: f64,
    pub load_max_over_mean: f64,
}

/// Time to first token, in milliseconds.
pub struct Ttft {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Run {
    /// Computes the figures from the clients' measurements and the engines' counters.
    pub fn new(policy: &str, outcome: &Outcome, engines: &[Stats], speed: f64) -> Run {
        let ttfts = outcome.served.iter().map(|served| served.ttft.as_secs_f64() * 1e3 * speed).collect();
        let sum = |count: fn(&Stats) -> u64| engines.iter().map(count).sum::<u64>() as f64;
        let (hits, queries) = (sum(|s| s.prefix_hits_tokens), sum(|s| s.prefix_queries_tokens));
        Run {
            policy: policy.to_owned(),
            requests: outcome.served.len(),
            errors: outcome.errors,
            ttft_ms: Ttft::of(ttfts),
            token_hit_ratio: hits / queries.max(1.0),
            requests_per_s: outcome.served.len() as f64 / engine_seconds(outcome.lasted, speed),
            load_max_over_mean: load_max_over_mean(outcome, engines.len()),
        }
    }
}

fn engine_seconds(wall: Duration, speed: f64) -> f64 {
    (wall.as_secs_f64() * speed).max(f64::MIN_POSITIVE)
}

/// Requests of the busiest engine over the mean.
fn load_max_over_mean(outcome: &Outcome, engines: usize) -> f64 {
    let mut by_worker: BTreeMap<&str, usize> = BTreeMap::new();
    outcome.served.iter().for_each(|served| *by_worker.entry(&served.worker).or_default() += 1);
    let most = by_worker.values().max().copied().unwrap_or(0);
    most as f64 * engines as f64 / outcome.served.len().max(1) as f64
}

impl Ttft {
    fn of(mut values: Vec<f64>) -> Ttft {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Ttft { mean, p50: at(0.50), p95: at(0.95), p99: at(0.99) }
    }
}

/// The results as JSON.
pub fn as_json(workload: &Workload, runs: &[Run]) -> Value {
    let one = |run: &Run| {
        json!({
            "policy": run.policy,
            "requests": run.requests,
            "errors": run.errors,
            "ttft_ms": {
                "mean": run.ttft_ms.mean, "p50": run.ttft_ms.p50, "p95": run.ttft_ms.p95, "p99": run.ttft_ms.p99,
            },
            "token_hit_ratio": run.token_hit_ratio,
            "token_hit_ratio_ideal": workload.ideal_hit_ratio(),
            "requests_per_s": run.requests_per_s,
            "load_max_over_mean": run.load_max_over_mean,
        })
    };
    json!({"runs": runs.iter().map(one).collect::<Vec<_>>()})
}

/// A row of the table: its label, value, format and direction.
struct Row {
    name: &'static str,
    read: fn(&Run) -> f64,
    write: fn(f64) -> String,
    /// The last policy's figure divided by the first one's, or the inverse if less is better.
    gain: fn(first: f64, last: f64) -> f64,
}

const HIT_RATIO: &str = "token hit ratio";

const ROWS: [Row; 6] = [
    Row { name: "TTFT p50", read: |run| run.ttft_ms.p50, write: ms, gain: less },
    Row { name: "TTFT p95", read: |run| run.ttft_ms.p95, write: ms, gain: less },
    Row { name: "TTFT p99", read: |run| run.ttft_ms.p99, write: ms, gain: less },
    Row { name: HIT_RATIO, read: |run| run.token_hit_ratio, write: percent, gain: more },
    Row { name: "requests/s", read: |run| run.requests_per_s, write: decimal, gain: more },
    Row { name: "busiest / mean", read: |run| run.load_max_over_mean, write: decimal, gain: less },
];

fn ms(value: f64) -> String {
    format!("{value:.1} ms")
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn decimal(value: f64) -> String {
    format!("{value:.2}")
}

fn less(first: f64, last: f64) -> f64 {
    first / last
}

fn more(first: f64, last: f64) -> f64 {
    last / first
}

/// A gain in words.
fn comparison(gain: f64) -> String {
    match gain {
        gain if gain >= 1.005 => format!("{gain:.2} x better"),
        gain if gain <= 0.995 => format!("{:.2} x worse", gain.recip()),
        _ => "the same".to_owned(),
    }
}

/// The results as a table.
pub fn as_table(args: &DemoArgs, workload: &Workload, runs: &[Run]) -> String {
    let mut table = format!(
        "\n{} conversations of {TURNS} turns over {} simulated engines (8B on an H200): {SYSTEM_TOKENS} tokens of system \
         prompt\nshared by six conversations each, about {QUESTION_TOKENS} a question, {ANSWER_TOKENS} an answer.\n\n",
        workload.conversations.len(),
        args.engines,
    );
    let width = runs.iter().map(|run| run.policy.len() + 2).max().unwrap_or(0).max(17);
    let mut line = |name: &str, cells: Vec<String>| {
        _ = write!(table, "{name:<17}");
        cells.iter().for_each(|cell| _ = write!(table, "{cell:>width$}"));
        table.push('\n');
    };
    let mut head: Vec<String> = runs.iter().map(|run| run.policy.clone()).collect();
    if runs.len() > 1 {
        head.push(if runs.len() == 2 { String::new() } else { "last to first".to_owned() });
    }
    line("", head);
    for row in ROWS {
        let figures: Vec<f64> = runs.iter().map(row.read).collect();
        let mut cells: Vec<String> = figures.iter().map(|&figure| (row.write)(figure)).collect();
        if let [first, .., last] = figures[..] {
            cells.push(comparison((row.gain)(first, last)));
        }
        line(row.name, cells);
        if row.name == HIT_RATIO {
            line("  of at most", vec![percent(workload.ideal_hit_ratio()); runs.len()]);
        }
    }
    line("errors", runs.iter().map(|run| run.errors.to_string()).collect());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let ttft = Ttft::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((ttft.mean, ttft.p50, ttft.p95, ttft.p99), (50.5, 50.0, 95.0, 99.0));
        let none = Ttft::of(vec![]);
        assert_eq!((none.mean, none.p99), (0.0, 0.0));
    }

    #[test]
    fn better_is_above_one_whichever_way_the_figure_goes() {
        assert_eq!(less(100.0, 50.0), 2.0);
        assert_eq!(more(0.4, 0.8), 2.0);
        assert_eq!(comparison(2.0), "2.00 x better");
        assert_eq!(comparison(0.75), "1.33 x worse");
        assert_eq!(comparison(1.001), "the same");
    }
}
