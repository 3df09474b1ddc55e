//! Figures of one policy over its seeds.

use warmroute_sim::{Estimate, Summary};

use crate::report::Point;

/// Means over seeds, with confidence intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Whether any request was answered. Without one there are no times.
    pub is_answered: bool,
    /// Mean time to first token.
    pub ttft_mean_ms: Estimate,
    /// Median time to first token.
    pub ttft_p50_ms: Estimate,
    /// 95th percentile of the time to first token.
    pub ttft_p95_ms: Estimate,
    /// 99th percentile of the time to first token.
    pub ttft_p99_ms: Estimate,
    /// Mean time per output token.
    pub tpot_mean_ms: Estimate,
    /// Mean end-to-end time.
    pub e2e_mean_ms: Estimate,
    /// Share of prompt tokens found in caches.
    pub token_hit_ratio: Estimate,
    /// Share of predicted tokens that were not cached.
    pub stale_ratio: Estimate,
    /// Maximum over mean of the requests per worker.
    pub load_max_over_mean: Estimate,
    /// Requests within the SLO, per second.
    pub goodput_rps: Estimate,
    /// Answers per second.
    pub throughput_rps: Estimate,
    /// Output tokens per second.
    pub output_tokens_per_s: Estimate,
    /// Share of requests that found any token in a cache.
    pub request_hit_ratio: Estimate,
    /// Share of requests for which predicted tokens were not cached.
    pub stale_request_ratio: Estimate,
    /// Mean number of engines that hold a cached block at the end.
    pub copies: Estimate,
    /// Share of the computed prompt blocks that the fleet had computed before.
    pub repeated_prefill_ratio: Estimate,
    /// Mean wait in an engine's queue.
    pub queue_mean_ms: Estimate,
    /// 99th percentile of the wait in an engine's queue.
    pub queue_p99_ms: Estimate,
    /// Prompt tokens computed.
    pub prefill_tokens_computed: Estimate,
}

impl Figures {
    /// Figures of a policy at one point; `None` if it was not run there.
    pub fn of(point: &Point, policy: &str) -> Option<Figures> {
        let runs: Vec<&Summary> = point.of(policy).collect();
        if runs.is_empty() {
            return None;
        }
        let over = |of: fn(&Summary) -> f64| {
            Estimate::of(&runs.iter().map(|summary| of(summary)).collect::<Vec<_>>())
        };
        Some(Figures {
            is_answered: runs.iter().any(|run| run.requests > 0),
            ttft_mean_ms: over(|run| run.ttft_ms.mean),
            ttft_p50_ms: over(|run| run.ttft_ms.p50),
            ttft_p95_ms: over(|run| run.ttft_ms.p95),
            ttft_p99_ms: over(|run| run.ttft_ms.p99),
            tpot_mean_ms: over(|run| run.tpot_ms.mean),
            e2e_mean_ms: over(|run| run.e2e_ms.mean),
            token_hit_ratio: over(|run| run.token_hit_ratio),
            stale_ratio: over(|run| run.stale_ratio),
            load_max_over_mean: over(|run| run.load_max_over_mean),
            goodput_rps: over(|run| run.goodput_rps),
            throughput_rps: over(|run| run.throughput_rps),
            output_tokens_per_s: over(|run| run.output_tokens_per_s),
            request_hit_ratio: over(|run| run.request_hit_ratio),
            stale_request_ratio: over(|run| run.stale_request_ratio),
            copies: over(|run| run.replication_factor),
            repeated_prefill_ratio: over(|run| run.repeated_prefill_ratio),
            queue_mean_ms: over(|run| run.queue_ms.mean),
            queue_p99_ms: over(|run| run.queue_ms.p99),
            prefill_tokens_computed: over(|run| run.prefill_tokens_computed as f64),
        })
    }
}

/// The unit of a column of times, so that its figures can be compared at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Milliseconds.
    Millis,
    /// Seconds.
    Secs,
}

impl TimeUnit {
    /// The unit in which the smallest time of a column is not a fraction.
    pub fn of(smallest_ms: f64) -> TimeUnit {
        if smallest_ms < 1_000.0 { TimeUnit::Millis } else { TimeUnit::Secs }
    }

    /// Formats milliseconds: `1349 ms` or `1.35 s`.
    pub fn words(self, ms: f64) -> String {
        match self {
            TimeUnit::Millis if ms < 10.0 => format!("{ms:.1} ms"),
            TimeUnit::Millis => format!("{ms:.0} ms"),
            TimeUnit::Secs if ms < 10_000.0 => format!("{:.2} s", ms / 1_000.0),
            TimeUnit::Secs => format!("{:.1} s", ms / 1_000.0),
        }
    }
}

/// Formats round milliseconds beside an axis: `200 ms`, `5 s`, `1000 s`.
pub fn round_duration(ms: f64) -> String {
    if ms < 1_000.0 { format!("{} ms", trimmed(ms, 1)) } else { format!("{} s", trimmed(ms / 1_000.0, 1)) }
}

/// Formats a count with a unit letter: `1.2M`.
pub fn count(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{:.2}G", value / 1e9),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e4 => format!("{:.0}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 || size == 0.0 => trimmed(value, 2),
        _ => trimmed(value, 3),
    }
}

/// Formats a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats an estimate with its interval, if the interval is visible at this precision.
pub fn with_confidence(estimate: Estimate, words: impl Fn(f64) -> String) -> String {
    match estimate.within {
        Some(within) if within > 0.002 * estimate.mean.abs() => {
            format!("{} ± {}", words(estimate.mean), words(within))
        }
        _ => words(estimate.mean),
    }
}

fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::duration;

    #[test]
    fn numbers_are_formatted_for_readers() {
        assert_eq!(
            [3.21, 42.4, 1_349.0, 12_340.0, 150_000.0].map(duration).join(", "),
            "3.2 ms, 42 ms, 1.35 s, 12.3 s, 2.5 min"
        );
        assert_eq!(
            [0.0, 0.05, 2.5, 250.0, 32_000.0, 1_250_000.0].map(count).join(", "),
            "0, 0.05, 2.5, 250, 32k, 1.2M"
        );
        assert_eq!([0.5, 200.0, 5_000.0, 1e6].map(round_duration).join(", "), "0.5 ms, 200 ms, 5 s, 1000 s");
        assert_eq!(
            [3.21, 42.4, 150_000.0].map(|ms| TimeUnit::of(3.21).words(ms)).join(", "),
            "3.2 ms, 42 ms, 150000 ms"
        );
        assert_eq!(
            [1_349.0, 150_000.0].map(|ms| TimeUnit::of(1_349.0).words(ms)).join(", "),
            "1.35 s, 150.0 s"
        );
        let sure = Estimate { mean: 100.0, within: Some(0.1) };
        let unsure = Estimate { mean: 100.0, within: Some(7.0) };
        assert_eq!(with_confidence(sure, duration), "100 ms");
        assert_eq!(with_confidence(unsure, duration), "100 ms ± 7.0 ms");
    }
}
