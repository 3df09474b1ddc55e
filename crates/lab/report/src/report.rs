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
    /// For the first seed, where they were computed.
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
}

impl Point {
    /// One policy's runs, one for each seed.
    pub fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Summary> {
        self.summaries.iter().filter(move |summary| summary.policy == policy)
    }
}
