//! Summary statistics of a run.

use serde::Serialize;

use warmroute_types::Micros;

use crate::rates::Rates;
use crate::slo::Slo;
use crate::{Outcome, Record};

/// A distribution, in milliseconds. All zero without values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    /// Distribution of values in any order.
    pub fn of(mut values: Vec<f64>) -> Spread {
        if values.is_empty() {
            return Spread::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        // Nearest-rank percentile: a value that occurred.
        let at = |percent: f64| {
            let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
            values[rank.clamp(1, values.len()) - 1]
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Spread { mean, p50: at(50.0), p90: at(90.0), p95: at(95.0), p99: at(99.0) }
    }

    /// Mean of several distributions, per figure.
    pub fn mean_of(all: &[Spread]) -> Spread {
        let mean = |of: fn(&Spread) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        let [p50, p90, p95, p99] =
            [mean(|one| one.p50), mean(|one| one.p90), mean(|one| one.p95), mean(|one| one.p99)];
        Spread { mean: mean(|one| one.mean), p50, p90, p95, p99 }
    }
}

/// One policy on one fleet with one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Policy as written.
    pub policy: String,
    /// Number of engines.
    pub workers: usize,
    /// Seed of the workload and of the run.
    pub seed: u64,
    /// Answered requests.
    pub requests: usize,
    /// Time to first token.
    pub ttft_ms: Spread,
    /// Time per output token after the first.
    pub tpot_ms: Spread,
    /// Time to the last token.
    pub e2e_ms: Spread,
    /// Wait in the engine's queue.
    pub queue_ms: Spread,
    /// Share of prompt tokens found in caches.
    pub token_hit_ratio: f64,
    /// Share of requests that found any token in a cache.
    pub request_hit_ratio: f64,
    /// Share of predicted tokens that were not cached; 0 without predictions.
    pub stale_ratio: f64,
    /// Share of requests for which the router predicted cached tokens that were not there.
    pub stale_request_ratio: f64,
    /// Share of requests whose predicted prefix was not in the cache already when the engine was chosen. The other stale requests
    /// lost it while they waited.
    pub stale_at_choice_ratio: f64,
    /// Share of cached tokens that were not predicted; 0 without predictions.
    pub missed_ratio: f64,
    /// Coefficient of variation of the requests per engine.
    pub load_cv: f64,
    /// Maximum over mean of the requests per engine.
    pub load_max_over_mean: f64,
    /// Coefficient of variation of the uncached prompt tokens per engine.
    pub uncached_load_cv: f64,
    /// Maximum over mean of the uncached prompt tokens per engine.
    pub uncached_load_max_over_mean: f64,
    /// Mean number of engines that hold a cached block at the end.
    pub replication_factor: f64,
    /// Engines that hold the most copied block at the end.
    pub replication_most: u32,
    /// Share of blocks that only one engine holds at the end.
    pub alone_ratio: f64,
    /// Share of the computed prompt blocks that the fleet had computed before.
    pub repeated_prefill_ratio: f64,
    /// In a closed loop, the seconds in which all clients were busy. The rates below are those of this time.
    pub saturated_s: Option<f64>,
    /// Output tokens per second, from the first request to the last answer.
    pub output_tokens_per_s: f64,
    /// Answered requests per second.
    pub throughput_rps: f64,
    /// Requests answered within the SLO, per second.
    pub goodput_rps: f64,
    /// Prompt tokens computed.
    pub prefill_tokens_computed: u64,
    /// Preempted sequences.
    pub preemptions: u64,
    /// Requests without a complete answer.
    pub failed: u64,
    /// Requests larger than any engine accepts.
    pub rejected: u64,
    /// Retries after an engine died.
    pub retried: u64,
    /// Size of all routers' indexes at the end.
    pub index_bytes: usize,
    /// Bytes sent between routers, counted once per receiver.
    pub shared_bytes: u64,
}

impl Summary {
    /// Summarises a run.
    pub fn of(policy: &str, seed: u64, outcome: &Outcome, slo: Slo) -> Summary {
        let records = &outcome.records;
        let sum = |of: fn(&Record) -> u32| records.iter().map(|record| u64::from(of(record))).sum::<u64>();
        let (prompt, cached) = (sum(|record| record.prompt_tokens), sum(|record| record.cached_tokens));
        let promised = sum(|record| record.predicted_tokens.unwrap_or(0));
        let predicts = records.iter().any(|record| record.predicted_tokens.is_some());
        let rates = Rates::of(outcome, slo);
        let spread = |of: fn(&Record) -> Option<f64>| Spread::of(records.iter().filter_map(of).collect());
        let requests = outcome.totals.iter().map(|totals| totals.requests as f64);
        let uncached = outcome.totals.iter().map(|totals| totals.uncached_tokens as f64);
        let (load_cv, load_max_over_mean) = evenness(requests);
        let (uncached_load_cv, uncached_load_max_over_mean) = evenness(uncached);
        Summary {
            policy: policy.to_owned(),
            workers: outcome.totals.len(),
            seed,
            requests: records.len(),
            ttft_ms: spread(|record| Some(record.ttft_us as f64 / 1_000.0)),
            tpot_ms: spread(Record::tpot_ms),
            e2e_ms: spread(|record| Some(record.e2e_us as f64 / 1_000.0)),
            queue_ms: spread(|record| Some(record.queued_us as f64 / 1_000.0)),
            token_hit_ratio: ratio(cached, prompt),
            request_hit_ratio: ratio(sum(|record| u32::from(record.cached_tokens > 0)), records.len() as u64),
            stale_ratio: ratio(sum(|record| record.stale_tokens), promised),
            stale_request_ratio: ratio(
                sum(|record| u32::from(record.stale_tokens > 0)),
                records.len() as u64,
            ),
            stale_at_choice_ratio: ratio(
                sum(|record| u32::from(record.was_stale_at_choice())),
                records.len() as u64,
            ),
            missed_ratio: if predicts { ratio(sum(|record| record.missed_tokens), cached) } else { 0.0 },
            load_cv,
            load_max_over_mean,
            uncached_load_cv,
            uncached_load_max_over_mean,
            replication_factor: outcome.replication.mean,
            replication_most: outcome.replication.most,
            alone_ratio: outcome.replication.alone_ratio,
            repeated_prefill_ratio: outcome.repeated_prefill_ratio,
            saturated_s: outcome.saturated.map(Micros::as_secs_f64),
            output_tokens_per_s: rates.output_tokens_per_s,
            throughput_rps: rates.throughput_rps,
            goodput_rps: rates.goodput_rps,
            prefill_tokens_computed: prompt - cached,
            preemptions: outcome.totals.iter().map(|totals| totals.preemptions).sum(),
            failed: outcome.failed,
            rejected: outcome.rejected,
            retried: outcome.retried,
            index_bytes: outcome.index_bytes,
            shared_bytes: outcome.shared_bytes,
        }
    }
}

/// Mean over several seeds, with its 95 % confidence interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Mean over the seeds.
    pub mean: f64,
    /// Half-width of the interval; `None` for a single seed.
    pub within: Option<f64>,
}

/// Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1. From 10 on the last value is used:
/// it is close and errs on the safe side.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

impl Estimate {
    /// Estimate from one value per seed.
    pub fn of(values: &[f64]) -> Estimate {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let within = (values.len() > 1).then(|| {
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
            STUDENT[(values.len() - 2).min(STUDENT.len() - 1)] * (variance / count).sqrt()
        });
        Estimate { mean, within }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Coefficient of variation, and maximum over mean; both 0 without values.
fn evenness(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    if mean.is_nan() || mean <= 0.0 {
        return (0.0, 0.0);
    }
    let variance = values.clone().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (variance.sqrt() / mean, values.fold(0.0, f64::max) / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((spread.mean, spread.p50, spread.p95, spread.p99), (100.5, 100.0, 190.0, 198.0));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
        assert_eq!(Spread::of(vec![7.0]).p99, 7.0);
    }

    #[test]
    fn confidence_needs_more_than_one_seed() {
        assert_eq!(Estimate::of(&[3.0]), Estimate { mean: 3.0, within: None });
        let two = Estimate::of(&[1.0, 3.0]);
        assert!((two.within.unwrap() - 12.706).abs() < 1e-9 && two.mean == 2.0);
    }

    #[test]
    fn evenness_is_zero_for_equals() {
        assert_eq!(evenness([4.0, 4.0].into_iter()), (0.0, 1.0));
        assert_eq!(evenness([8.0, 0.0].into_iter()), (1.0, 2.0));
        assert_eq!(evenness([].into_iter()), (0.0, 0.0));
    }
}
