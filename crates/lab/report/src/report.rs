//! Data of a report.

use warmroute_sim::{Bounds, LoadSeries, Summary};

use crate::duration::duration;

/// A mean TTFT above both of these is an overload: an absolute time, and a multiple of the time without queues.
const OVERLOAD_TTFT_MS: f64 = 5_000.0;
const OVERLOAD_FACTOR: f64 = 20.0;

/// Results of one lab command.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Title.
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
    /// Load over time, for the first seed of each policy.
    pub loads: Vec<Load>,
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

/// One policy's load over time.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name of the policy.
    pub policy: String,
    /// Requests in flight per worker.
    pub series: LoadSeries,
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
