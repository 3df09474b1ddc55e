//! `warmroute check`: checks a configuration and prints what would be in force.

use warmroute_operate::check_paths;

use crate::args::CheckArgs;
use crate::options::{check_environment, read_file};
use crate::plan::{Plan, plan};

/// Prints the effective configuration, or fails with the first mistake.
pub fn run(args: &CheckArgs) -> anyhow::Result<()> {
    check_environment()?;
    let plan = plan(args.options.clone().over(read_file(&args.config)?))?;
    check_paths(&plan)?;
    if let Some(precise) = &plan.precise {
        precise.paths.check()?;
    }
    println!("# {} is good: this would be in force", args.config.display());
    print!("{}", toml::to_string(&plan.options)?);
    println!("{}", secrets(&plan));
    let sources = &plan.sources;
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        eprintln!(
            "note: it names no workers; they would have to come by POST /workers on the admin listener"
        );
    }
    Ok(())
}

/// The secrets, which are not shown, and whether each is set.
fn secrets(plan: &Plan) -> String {
    let is_set = |is_set: bool| if is_set { "set" } else { "not set" };
    format!(
        "# not shown: admin token {}, events token {}, workers' API key {}; clients' keys {}",
        is_set(plan.admin_token.is_some()),
        is_set(plan.events_token.is_some()),
        is_set(plan.gateway.dialer.authorization().is_some()),
        is_set(plan.keys.is_some()),
    )
}
