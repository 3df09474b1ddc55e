//! What does a request cost on its way through the gateway?
//!
//! One simulated engine that takes next to no time, and in front of it, one beside the other: the gateway with two
//! policies, and the proxies that people would use instead. Every round drives every case through every one of them,
//! so that what else happens on the machine hits all alike; the table shows the median round.
//!
//! ```text
//!   16 connections ──> warmroute | nginx | haproxy | … ──> one engine
//!                └────────────── direct ──────────────────────┘
//! ```

use std::error::Error;
use std::process::ExitCode;

use warmroute_bench_gateway::args::{Args, USAGE, bench};
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::measure::{Sample, measure};
use warmroute_bench_gateway::proxies;
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::table::{self, Row};
use warmroute_bench_gateway::target::Target;

fn main() -> ExitCode {
    bench(USAGE, Args::parse(std::env::args().skip(1)), run)
}

/// Runs everything and prints the table. Returns the number of failed requests.
fn run(args: &Args) -> Result<u64, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let cases = Case::named(&args.cases)?;
    let targets = proxies::start_all(args, &scratch)?;
    announce(args, cases.len() * targets.len());
    let engine_port = targets[0].port;
    let mut rows = Row::grid(&cases, &targets);
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for row in &mut rows {
            cases[row.case].pace.set(engine_port)?;
            let sample = measure(&targets[row.target], &cases[row.case], &args.load)?;
            report_failure(&targets[row.target], &cases[row.case], &sample);
            row.samples.push(sample);
        }
    }
    print!("{}", table::render(&rows, &cases, &targets));
    Ok(rows.iter().flat_map(|row| &row.samples).map(|sample| sample.errors).sum())
}

fn announce(args: &Args, pairs: usize) {
    let seconds = args.load.length().as_secs_f64() * (pairs * args.rounds) as f64;
    eprintln!("{pairs} pairs of case and target, {} rounds: about {seconds:.0} s", args.rounds);
}

fn report_failure(target: &Target, case: &Case, sample: &Sample) {
    if let Some(failure) = &sample.first_failure {
        eprintln!("{} / {}: {} failed, first: {failure}", target.name, case.name, sample.errors);
    }
}
