//! `warmroute check`: checks a configuration and prints what would be in force.

use crate::args::CheckArgs;
use crate::given::{Given, file_and_urls};
use crate::options::Written;
use crate::output::{print, print_line, print_note};
use crate::plan::Plan;

/// Prints the effective configuration, or fails with the first mistake.
pub fn run(args: CheckArgs, written: &Written) -> anyhow::Result<()> {
    let (file, urls) = file_and_urls(&args.places, args.config.as_deref(), written)?;
    let given = Given::read(args.options, urls, file, written)?;
    let plan = given.plan()?;
    given.check_start(&plan)?;
    if let Some(precise) = &plan.precise {
        precise.paths.check().map_err(|error| given.explain(&error))?;
    }
    match &given.file {
        Some(file) => print_line(format_args!("# {} is good: this would be in force", file.display())),
        None => print_line("# this would be in force"),
    }?;
    print(toml::to_string(&plan.options)?)?;
    print_line(secrets(&plan))?;
    given.start_warnings(&plan).iter().for_each(|warning| print_note(format_args!("warning: {warning}")));
    if plan.sources.is_empty() {
        print_note(
            "note: no workers are configured; name their URLs, or add them with POST /workers on the admin listener",
        );
    }
    Ok(())
}

/// The secrets, which are not shown, and whether each is set.
fn secrets(plan: &Plan) -> String {
    let is_set = |is_set: bool| if is_set { "set" } else { "not set" };
    format!(
        "# secrets, never printed: admin token {}, events token {}, workers' API key {}; clients' keys {}",
        is_set(plan.gateway.admin_token.is_some()),
        is_set(plan.events_token.is_some()),
        is_set(plan.gateway.dialer.authorization().is_some()),
        is_set(plan.keys.is_some()),
    )
}
