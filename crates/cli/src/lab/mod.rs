//! `warmroute lab`: what would another policy, fleet or cache have done?
//!
//! ```text
//!   trace, workload ─┐
//!   fleet, views    ─┼─▶ scene ──▶ runs (policy × seed, in parallel) ──▶ table, JSON, HTML, Markdown, rows
//!   policies        ─┘
//! ```
//!
//! The router is production's and the engines are the model of `warmroute engine`, in virtual time. The figures depend on the
//! flags and seeds alone, never on the machine. `drive` alone is in real time: the same traffic against any router, ours or not.

mod args;
mod bounds;
mod drive;
mod exec;
mod output;
mod runs;
mod scene;
mod simulate;
mod speech;
mod sweep;
mod traffic;

pub use scene::host_tier;

use clap::{Args, Subcommand};

/// `warmroute lab`.
#[derive(Args)]
pub struct LabArgs {
    /// What to find out.
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Run policies against a trace or a workload and compare them
    Simulate(Box<args::SimulateArgs>),
    /// The same over a range of one parameter, or of two
    Sweep(Box<args::SweepArgs>),
    /// What no router could do better on a trace or a workload
    Bounds(Box<args::BoundsArgs>),
    /// Send a trace or a workload to a router in real time, and measure what its clients see
    Drive(Box<args::DriveArgs>),
}

/// Runs one of them.
pub fn run(args: LabArgs) -> anyhow::Result<()> {
    match args.command {
        LabCommand::Simulate(args) => simulate::run(&args),
        LabCommand::Sweep(args) => sweep::run(&args),
        LabCommand::Bounds(args) => bounds::run(&args),
        LabCommand::Drive(args) => drive::run(&args),
    }
}

#[cfg(test)]
mod tests;
