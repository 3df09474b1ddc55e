//! Runs all policies and seeds of one scene in parallel. Results keep the order of the flags, whichever run ends
//! first.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warmroute_report::{Point, RunDetail};
use warmroute_sim::{Bounds, Record, Rule, Slo, Summary, Trouble, exec_rule};

use warmroute_types::Micros;

use super::args::ContestArgs;
use super::scene::Scene;
use crate::options::OnOff;

/// The default policies.
const POLICIES: [&str; 6] =
    ["round_robin", "least_loaded", "prefix_affinity", "weighted_score", "cache_aware", "expected_ttft"];
/// Above this many requests, computing the bounds takes longer than the runs.
const BOUNDS_REQUESTS_MAX: usize = 300_000;

/// The policies to compare, and the first error of external ones.
pub struct Contest {
    pub rules: Vec<Rule>,
    trouble: Trouble,
    seeds: std::ops::Range<u64>,
    slo: Slo,
    bounds: OnOff,
    threads: usize,
}

/// The results of one scene.
#[derive(Default)]
pub struct Ran {
    pub point: Point,
    pub details: Vec<RunDetail>,
    /// By policy and seed, if requested.
    pub records: Vec<(String, u64, Vec<Record>)>,
}

/// Whether to keep each request's record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Records,
    Summaries,
}

impl Contest {
    /// Reads the flags; `first_seed` is the scene's.
    pub fn new(args: &ContestArgs, first_seed: u64) -> anyhow::Result<Contest> {
        let trouble = Trouble::default();
        let names = named(args);
        // Duplicate policies would look like more seeds of one policy.
        if let Some(at) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
            anyhow::bail!("{} is compared with itself: every policy is given once", names[at]);
        }
        let rule = |name: &String| match name.strip_prefix("exec:") {
            Some(program) => exec_rule(name, program, &trouble).map_err(anyhow::Error::new),
            None => Ok(Rule::parse(name)?),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Contest {
            rules: names.iter().map(rule).collect::<anyhow::Result<_>>()?,
            trouble,
            seeds: first_seed..first_seed + args.seeds,
            slo: args.slo.into(),
            bounds: args.bounds,
            threads: args.threads.unwrap_or(cores).max(1),
        })
    }

    /// The number of runs of one scene.
    pub fn runs(&self) -> usize {
        self.rules.len() * (self.seeds.end - self.seeds.start) as usize
    }

    /// Runs all.
    pub fn run(&self, scene: &Scene, keep: Keep, bar: &ProgressBar) -> anyhow::Result<Ran> {
        let jobs: Vec<(&Rule, u64)> =
            self.rules.iter().flat_map(|rule| self.seeds.clone().map(move |seed| (rule, seed))).collect();
        let done = side_by_side(self.threads, &jobs, |&(rule, seed)| {
            let one = (!self.is_void()).then(|| self.one(scene, rule, seed, keep));
            bar.inc(1);
            one
        });
        if let Some(what) = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
            anyhow::bail!("the foreign policy failed: {what}");
        }
        self.gather(scene, done)
    }

    /// Fails if an external policy has failed, because its later choices are meaningless.
    fn is_void(&self) -> bool {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn one(&self, scene: &Scene, rule: &Rule, seed: u64, keep: Keep) -> anyhow::Result<Done> {
        let outcome = warmroute_sim::run(&scene.config_for(seed), rule, scene.sessions(seed))?;
        anyhow::ensure!(
            outcome.saturated != Some(Micros::ZERO),
            "--concurrency: the traffic has fewer sessions than clients; raise --requests or lower --concurrency"
        );
        let summary = Summary::of(rule.name(), seed, &outcome, self.slo);
        let detail = (seed == self.seeds.start).then(|| RunDetail::of(rule.name(), &outcome));
        let records = if keep == Keep::Records { outcome.records } else { Vec::new() };
        Ok(Done { summary, detail, records })
    }

    fn gather(&self, scene: &Scene, done: Vec<Option<anyhow::Result<Done>>>) -> anyhow::Result<Ran> {
        let mut ran = Ran::default();
        for one in done.into_iter().flatten() {
            let Done { summary, detail, records } = one?;
            ran.details.extend(detail);
            ran.records.push((summary.policy.clone(), summary.seed, records));
            ran.point.summaries.push(summary);
        }
        let requests = ran.point.summaries.iter().map(|summary| summary.requests).max().unwrap_or(0);
        let has_times = scene.config.concurrency.is_none();
        if self.bounds.0 && has_times && (1..=BOUNDS_REQUESTS_MAX).contains(&requests) {
            ran.point.bounds = self.bounds_of(scene)?;
        }
        Ok(ran)
    }

    /// The mean over the seeds, like the figures beside it.
    fn bounds_of(&self, scene: &Scene) -> anyhow::Result<Option<Bounds>> {
        let seeds: Vec<u64> = self.seeds.clone().collect();
        let all = side_by_side(self.threads, &seeds, |&seed| {
            warmroute_sim::bounds(&scene.config, scene.sessions(seed))
        });
        Ok(Bounds::mean_of(&all.into_iter().collect::<Result<Vec<_>, _>>()?))
    }
}

/// The policies in the flags, or the default ones.
pub fn named(args: &ContestArgs) -> Vec<String> {
    let named: Vec<String> = args.policies.iter().chain(&args.policy).cloned().collect();
    if named.is_empty() { POLICIES.map(str::to_owned).to_vec() } else { named }
}

/// Runs `work` for each item on this many threads. Results are in the order of the items.
fn side_by_side<I: Sync, T: Send>(threads: usize, items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let done: Mutex<Vec<Option<T>>> = Mutex::new(items.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let index = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(item) = items.get(index)
                {
                    let one = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(one);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

struct Done {
    summary: Summary,
    detail: Option<RunDetail>,
    records: Vec<Record>,
}

/// Shows how many runs are done.
pub fn progress_bar(count: usize, what: &'static str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}  {elapsed}")
        .expect("the template is a constant");
    ProgressBar::with_draw_target(Some(count as u64), target).with_style(style).with_message(what)
}
