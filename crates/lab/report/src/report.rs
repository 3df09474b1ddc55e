//! What a report is made of.

use warmroute_sim::{Bounds, LoadSeries, Summary};

/// Everything that one command of the lab found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was asked, in a few words.
    pub title: String,
    /// The command that makes it again.
    pub command: String,
    /// How the world was set up, as pairs of a word and a value.
    pub setup: Vec<(String, String)>,
    /// What the reader must know: what was made up, what was left out.
    pub notes: Vec<String>,
    /// One for each value of the sweep; a single one without a sweep.
    pub points: Vec<Point>,
    /// What was varied, if anything.
    pub sweep: Option<Sweep>,
    /// Load over time, for the first seed of each policy.
    pub loads: Vec<Load>,
}

/// All runs of one setting.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// The values of what is varied, as many as the sweep has parameters.
    pub values: Vec<f64>,
    /// One for each policy and seed.
    pub summaries: Vec<Summary>,
    /// The mean over the seeds, where they were computed.
    pub bounds: Option<Bounds>,
}

/// What is varied: one or two parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Their names with units, as axes are labelled.
    pub parameters: Vec<String>,
}

/// One policy's load over time.
#[derive(Clone, Debug)]
pub struct Load {
    /// Whose.
    pub policy: String,
    /// Requests in flight, by worker.
    pub series: LoadSeries,
}

impl Report {
    /// Policies in the order in which they were asked for.
    pub fn policies(&self) -> Vec<&str> {
        let mut policies: Vec<&str> = Vec::new();
        for summary in self.points.iter().flat_map(|point| &point.summaries) {
            if !policies.contains(&summary.policy.as_str()) {
                policies.push(&summary.policy);
            }
        }
        policies
    }

    /// Notes, and before them what nobody answered: figures are of answered requests alone, and whoever answers few looks quick.
    pub fn remarks(&self) -> Vec<String> {
        let lost =
            self.points.iter().flat_map(|point| self.policies().into_iter().filter_map(|p| point.losses(p)));
        lost.chain(self.notes.iter().cloned()).collect()
    }
}

impl Point {
    /// One policy's runs, one for each seed.
    pub fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Summary> {
        self.summaries.iter().filter(move |summary| summary.policy == policy)
    }

    /// Whether a policy's requests were answered, but for one in a hundred: else its times cannot be compared.
    pub fn is_answered(&self, policy: &str) -> bool {
        let (answered, lost) = self.answered_and_lost(policy);
        lost * 100 <= answered
    }

    /// What became of a policy's requests, where some were not answered.
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
