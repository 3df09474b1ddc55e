//! Data of a report.

use warmroute_sim::{Bounds, LoadSeries, Outcome, Summary};

use crate::duration::duration;

/// A mean TTFT above both of these is an overload: an absolute time, and a multiple of the time without queues.
const OVERLOAD_TTFT_MS: f64 = 5_000.0;
const OVERLOAD_FACTOR: f64 = 20.0;
/// Points of a curve of times; more would not be seen.
const CURVE_POINTS: usize = 200;

/// Results of one lab command.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Heading of the page and name of its tab.
    pub title: String,
    /// Command that reproduces the report.
    pub command: String,
    /// Setup, as pairs of name and value.
    pub setup: Vec<(String, String)>,
    /// Notes: assumptions and omissions.
    pub notes: Vec<String>,
    /// One point per value of the sweep; a single one without a sweep.
    pub points: Vec<Point>,
    /// Varied parameters, if any.
    pub sweep: Option<Sweep>,
    /// Distribution and timeline, for the first seed of each policy.
    pub details: Vec<RunDetail>,
}

/// All runs of one setting.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// Values of the varied parameters, in the order of the sweep.
    pub values: Vec<f64>,
    /// One summary per policy and seed.
    pub summaries: Vec<Summary>,
    /// Mean bounds over the seeds, if computed.
    pub bounds: Option<Bounds>,
}

/// One or two varied parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Names with units, as on the axes.
    pub parameters: Vec<String>,
}

/// One run of a policy in detail.
#[derive(Clone, Debug)]
pub struct RunDetail {
    /// Name of the policy.
    pub policy: String,
    /// Each worker's state over time.
    pub series: LoadSeries,
    /// Times to first token and the share of requests up to each.
    pub ttft_ms: Vec<(f64, f64)>,
}

impl RunDetail {
    /// Extracts the details of a run.
    pub fn of(policy: &str, outcome: &Outcome) -> RunDetail {
        let ttft_ms = outcome.records.iter().map(|record| record.ttft_us as f64 / 1_000.0).collect();
        RunDetail { policy: policy.to_owned(), series: outcome.load.clone(), ttft_ms: distribution(ttft_ms) }
    }
}

/// Points of a cumulative distribution: at most [`CURVE_POINTS`], the fastest and the slowest value among them.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let (count, points) = (values.len(), values.len().min(CURVE_POINTS));
    let rank = |point: usize| if points > 1 { point * (count - 1) / (points - 1) } else { 0 };
    (0..points).map(|point| (values[rank(point)], (rank(point) + 1) as f64 / count as f64)).collect()
}

impl Report {
    /// Policies in the order of the command.
    pub fn policies(&self) -> Vec<&str> {
        let mut policies: Vec<&str> = Vec::new();
        for summary in self.points.iter().flat_map(|point| &point.summaries) {
            if !policies.contains(&summary.policy.as_str()) {
                policies.push(&summary.policy);
            }
        }
        policies
    }

    /// Notes, preceded by unanswered requests and overloaded fleets. Figures cover answered requests only, so a policy
    /// that answers few looks fast.
    pub fn remarks(&self) -> Vec<String> {
        let policies = self.policies();
        let lost = self.points.iter().flat_map(|point| policies.iter().filter_map(|p| point.losses(p)));
        let overload = self.points.iter().flat_map(|point| policies.iter().filter_map(|p| point.overload(p)));
        lost.chain(overload).chain(self.notes.iter().cloned()).collect()
    }
}

impl Point {
    /// Runs of one policy, one per seed.
    pub fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Summary> {
        self.summaries.iter().filter(move |summary| summary.policy == policy)
    }

    /// Whether at least 99 % of a policy's requests were answered; otherwise its times cannot be compared.
    pub fn is_answered(&self, policy: &str) -> bool {
        let (answered, lost) = self.answered_and_lost(policy);
        lost * 100 <= answered
    }

    /// Describes a policy's unanswered requests, if any.
    fn losses(&self, policy: &str) -> Option<String> {
        let (answered, lost) = self.answered_and_lost(policy);
        let at = self.values.iter().map(|value| format!(" at {value}")).collect::<String>();
        (lost > 0).then(|| format!("{policy}{at}: {lost} of {} requests were not answered (failed, or too long for any engine); the figures are of the others", answered + lost))
    }

    /// Describes an overload: under this policy, requests wait far longer than the fleet computes.
    fn overload(&self, policy: &str) -> Option<String> {
        let floor_ms = self.bounds.as_ref()?.zero_queue_ttft_ms.mean;
        let (sum_ms, runs) = self.of(policy).fold((0.0, 0), |(sum, n), run| (sum + run.ttft_ms.mean, n + 1));
        let mean_ms = sum_ms / f64::from(runs.max(1));
        let at = self.values.iter().map(|value| format!(" at {value}")).collect::<String>();
        let is_overloaded = mean_ms > OVERLOAD_TTFT_MS && mean_ms > OVERLOAD_FACTOR * floor_ms;
        is_overloaded.then(|| format!(
            "{policy}{at}: the fleet is overloaded: {} to the first token on average, {} without queues. Differences between overloaded policies say little: lower --rate-scale or add workers",
            duration(mean_ms),
            duration(floor_ms)
        ))
    }

    fn answered_and_lost(&self, policy: &str) -> (u64, u64) {
        let runs = self.of(policy).map(|run| (run.requests as u64, run.failed + run.rejected));
        runs.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_goes_from_the_fastest_to_the_slowest() {
        let points = distribution((1..=1_000).rev().map(f64::from).collect());
        assert_eq!((points.len(), points[0], points[199]), (200, (1.0, 0.001), (1_000.0, 1.0)));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(distribution(vec![7.0]), [(7.0, 1.0)]);
        assert!(distribution(Vec::new()).is_empty());
    }
}
