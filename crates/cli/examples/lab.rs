//! The lab by itself, until `warmroute lab` is wired into the command: the same modules, the same flags.

#[path = "../src/lab/mod.rs"]
mod lab;

use std::process::ExitCode;

use clap::Parser;

/// `lab simulate`, `lab sweep`, `lab bounds`.
#[derive(Parser)]
struct Cli {
    /// What to find out.
    #[command(flatten)]
    lab: lab::LabArgs,
}

fn main() -> ExitCode {
    match lab::run(Cli::parse().lab) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
