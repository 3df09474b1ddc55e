//! Turns flags into traffic: a workload drawn for each seed, or a trace.

use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::Context;
use warmroute_sim::{PassagePlacement, Session, Sessions, TraceOptions, Workload, WorkloadScale, read_trace};

use super::args::{SESSIONS_PER_S, THINK_S, TrafficArgs};

/// The traffic of a run, for any of its seeds.
pub struct Traffic {
    source: Source,
    /// Notes for the report.
    pub notes: Vec<String>,
}

enum Source {
    /// A workload drawn for each run.
    Workload(Workload, WorkloadScale),
    /// A trace, read once per seed, starting with the first.
    Trace { first_seed: u64, by_seed: Vec<Arc<Vec<Session>>> },
}

impl Traffic {
    /// Checks the flags and reads the trace for this many seeds.
    pub fn new(args: &TrafficArgs, seeds: u64) -> anyhow::Result<Traffic> {
        check(args)?;
        let mut notes = Vec::new();
        let source = match args.workload {
            Some(workload) => {
                let scale = WorkloadScale { seed: args.seed, rate: args.rate_scale, requests: args.requests };
                Source::Workload(workload, scale)
            }
            None => read(args, seeds, &mut notes)?,
        };
        Ok(Traffic { source, notes })
    }

    /// The sessions of a seed.
    pub fn sessions(&self, seed: u64) -> Sessions {
        match &self.source {
            Source::Workload(workload, scale) => workload.sessions(WorkloadScale { seed, ..*scale }),
            Source::Trace { first_seed, by_seed } => {
                let sessions = Arc::clone(&by_seed[(seed - first_seed) as usize]);
                let mut index = 0;
                Box::new(std::iter::from_fn(move || {
                    index += 1;
                    sessions.get(index - 1).cloned()
                }))
            }
        }
    }
}

/// Checks the flags that need no trace.
pub fn check(args: &TrafficArgs) -> anyhow::Result<()> {
    for (flag, value) in [("--rate-scale", args.rate_scale), ("--sessions-per-s", args.sessions_per_s)] {
        let (least, most) = (RATES.start(), RATES.end());
        anyhow::ensure!(RATES.contains(&value), "{flag} {value}: expected a number from {least} to {most}");
    }
    anyhow::ensure!((0.0..=THINK_S_MAX).contains(&args.think_s), "--think-s: expected a time from 0 to 24h");
    let copies = (args.copies != 1).then_some("--copies");
    let ignored = args.workload.and_then(|_| text_flag(args).or(copies));
    match ignored {
        Some(flag) => anyhow::bail!(
            "{flag} means nothing with --workload, which draws its own sessions: take --trace, or leave {flag} out"
        ),
        None => Ok(()),
    }
}

/// Multiples of a rate, and sessions per second. Slower traffic would take years of virtual time, and days of real time.
const RATES: RangeInclusive<f64> = 0.0001..=10_000.0;
/// A day.
const THINK_S_MAX: f64 = 86_400.0;

/// The first flag that only traces of texts read, and that differs from its default.
fn text_flag(args: &TrafficArgs) -> Option<&'static str> {
    let given = [
        ("--think-s", args.think_s != THINK_S),
        ("--passages", args.passages != PassagePlacement::default()),
        ("--sessions-per-s", args.sessions_per_s != SESSIONS_PER_S),
    ];
    given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
}

fn read(args: &TrafficArgs, seeds: u64, notes: &mut Vec<String>) -> anyhow::Result<Source> {
    let file = args.trace.as_ref().context("--trace or --workload is needed")?;
    let mut by_seed = Vec::new();
    for seed in args.seed..args.seed + seeds {
        let options = TraceOptions {
            seed,
            rate: args.rate_scale,
            copies: args.copies,
            sessions_per_s: args.sessions_per_s,
            think_s: args.think_s,
            passages: args.passages,
            requests_max: args.requests,
        };
        let trace = read_trace(file, &options)?;
        if let Some(flag) = text_flag(args).filter(|_| !trace.format.is_text()) {
            anyhow::bail!("{flag} means nothing with {}, which has times and no texts", file.display());
        }
        if seed == args.seed {
            notes.extend(trace.notes);
            if trace.bad_lines_total > 0 {
                notes.push(format!("{} lines could not be read and were left out", trace.bad_lines_total));
            }
            trace.bad_lines.iter().for_each(|bad| eprintln!("{bad}"));
        }
        by_seed.push(Arc::new(trace.sessions));
    }
    Ok(Source::Trace { first_seed: args.seed, by_seed })
}
