//! Data of a report.

use warmroute_sim::{Bounds, LoadSeries, Summary};

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

    /// Notes, preceded by unanswered requests. Figures cover answered requests only, so a policy that answers
    /// few looks fast.
    pub fn remarks(&self) -> Vec<String> {
        let lost =
            self.points.iter().flat_map(|point| self.policies().into_iter().filter_map(|p| point.losses(p)));
        lost.chain(self.notes.iter().cloned()).collect()
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

    fn answered_and_lost(&self, policy: &str) -> (u64, u64) {
        let runs = self.of(policy).map(|run| (run.requests as u64, run.failed + run.rejected));
        runs.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
    }
}
