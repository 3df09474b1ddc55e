//! `warmroute man` and `warmroute completions`: man pages and shell completions, from the same definition as `--help`.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};

/// Prints the main page, or writes all pages into a folder.
pub fn print_man(args: &ManArgs) -> anyhow::Result<()> {
    let command = Cli::command();
    match &args.dir {
        Some(folder) => clap_mangen::generate_to(command, folder)
            .with_context(|| format!("cannot write man pages into {}", Path::display(folder))),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            print(&page)
        }
    }
}

/// Prints the completions for a shell.
pub fn print_completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "warmroute", &mut script);
    print(&script)
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    std::io::stdout().write_all(text).context("cannot write to standard output")
}
