//! `warmroute man` and `warmroute completions`: man pages and shell completions, from the same definition as `--help`.

use std::path::Path;

use anyhow::Context;

use crate::args::{CompletionsArgs, ManArgs};
use crate::command_line::command;
use crate::output::print;

/// Prints the main page, or writes all pages into a folder.
pub fn print_man(args: &ManArgs) -> anyhow::Result<()> {
    let command = command();
    match &args.dir {
        Some(folder) => clap_mangen::generate_to(command, folder)
            .with_context(|| format!("cannot write man pages into {}", Path::display(folder))),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            print(String::from_utf8_lossy(&page))
        }
    }
}

/// Prints the completions for a shell.
pub fn print_completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "warmroute", &mut script);
    print(String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn every_shell_completes_the_options_of_serve() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command(), "warmroute", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("access-log-format"), "{shell}");
        }
    }

    #[test]
    fn every_subcommand_has_a_man_page() {
        let folder = std::env::temp_dir().join(format!("warmroute-man-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        print_man(&ManArgs { dir: Some(folder.clone()) }).unwrap();
        for subcommand in command().get_subcommands() {
            let page = folder.join(format!("warmroute-{}.1", subcommand.get_name()));
            assert!(std::fs::read_to_string(&page).unwrap().contains(".SH OPTIONS"), "{}", page.display());
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let missing = print_man(&ManArgs { dir: Some(folder) }).unwrap_err();
        assert!(missing.to_string().contains("cannot write man pages into"), "{missing}");
    }
}
