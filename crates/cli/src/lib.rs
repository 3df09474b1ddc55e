//! The `warmroute` command: the only place where the parts meet.
//!
//! ```text
//! flags ─┐
//! env   ─┼─▶ options ──▶ plan ──▶ serve   gateway, admin, discovery, probe
//! file  ─┘                        engine  one simulated engine
//!                                 demo    eight engines, a gateway, a workload, a table
//!                                 lab     the same router in virtual time
//! explain, status, top: ask a gateway that runs · doctor: asks the engines · completions, man: from the definition of flags
//! ```

mod args;
mod check;
mod client;
mod command_line;
mod config_reader;
mod demo;
mod difference;
mod doctor;
mod engine;
mod explain;
mod fleet_view;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod given;
mod lab;
mod large_blocks;
mod log_lines;
mod log_thread;
mod logging;
mod manual;
mod options;
mod output;
mod plan;
mod runtime;
mod security;
mod serve;
mod text_table;

use std::process::ExitCode;

use crate::args::Command;

/// Runs the command.
pub fn run() -> ExitCode {
    let (cli, written) = command_line::parse();
    let ran = match cli.command {
        Command::Serve(args) => serve::run(*args, &written),
        Command::Engine(args) => engine::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Check(args) => check::run(*args, &written),
        Command::Doctor(args) => doctor::run(*args, &written),
        Command::Explain(args) => explain::run(&args),
        Command::Status(args) => fleet_view::run_status(&args),
        Command::Top(args) => fleet_view::run_top(&args),
        Command::Completions(args) => manual::print_completions(&args),
        Command::Man(args) => manual::print_man(&args),
    };
    match ran {
        Ok(()) => {
            log_thread::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            log_thread::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
