//! `warmroute check`: is this configuration good, and what would be in force?

use crate::args::CheckArgs;
use crate::options::{check_environment, read_file};
use crate::plan::Plan;

/// Prints the effective configuration, or fails with what is wrong.
pub fn run(args: &CheckArgs) -> anyhow::Result<()> {
    check_environment()?;
    let plan = Plan::new(args.options.clone().over(read_file(&args.config)?))?;
    if let Some(precise) = &plan.precise {
        precise.paths.check()?;
    }
    println!("# {} is good: this would be in force", args.config.display());
    print!("{}", toml::to_string(&plan.options)?);
    let sources = &plan.sources;
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        eprintln!(
            "note: it names no workers; they would have to come by POST /workers on the admin listener"
        );
    }
    Ok(())
}
