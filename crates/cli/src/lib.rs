//! The `warmroute` command: the only place where the parts meet.
//!
//! ```text
//! flags ─┐
//! env   ─┼─▶ options ──▶ plan ──▶ serve   gateway, admin, discovery, probe
//! file  ─┘                        engine  one simulated engine
//!                                 demo    eight engines, a gateway, a workload, a table
//!                                 lab     the same router in virtual time
//! explain: asks a gateway that runs · doctor: asks the engines
//! ```

mod args;
mod check;
mod client;
mod config_reader;
mod demo;
mod difference;
mod doctor;
mod engine;
mod explain;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod lab;
mod log_lines;
mod logging;
mod options;
mod plan;
mod runtime;
mod security;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// Runs the command.
pub fn run() -> ExitCode {
    let ran = match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Engine(args) => engine::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Explain(args) => explain::run(&args),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
