//! `warmroute lab`: compares policies, fleets and caches in simulation.
//!
//! ```text
//!   trace, workload ─┐
//!   fleet, views    ─┼─▶ scene ──▶ runs (policy × seed, in parallel) ──▶ table, JSON, HTML, Markdown, rows
//!   policies        ─┘
//! ```
//!
//! The router is production code, and the engines are the model of `warmroute engine`, in virtual time. Results depend
//! only on flags and seeds, not on the machine. Only `drive` runs in real time: it sends the same traffic to any router.

mod args;
mod bounds;
mod drive;
mod output;
mod runs;
mod scene;
mod simulate;
mod sweep;
mod traffic;

pub use scene::host_tier;

use clap::{Args, Subcommand};

/// `warmroute lab`.
#[derive(Args)]
pub struct LabArgs {
    /// The subcommand.
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Run policies against a trace or a workload and compare them
    Simulate(Box<args::SimulateArgs>),
    /// Repeat a simulation over a range of one or two parameters
    Sweep(Box<args::SweepArgs>),
    /// Compute bounds that no router can beat on a trace or workload
    Bounds(Box<args::BoundsArgs>),
    /// Send a trace or a workload to a router in real time, and measure what its clients see
    Drive(Box<args::DriveArgs>),
}

/// Runs a subcommand.
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
