//! Turns flags into traffic: a workload drawn for each seed, or a trace.

use std::sync::Arc;

use anyhow::Context;
use warmroute_sim::{Session, Sessions, TraceOptions, Workload, WorkloadScale, read_trace};

use super::args::TrafficArgs;

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
        anyhow::ensure!(args.rate_scale.is_finite() && args.rate_scale > 0.0, "--rate-scale must be above 0");
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
