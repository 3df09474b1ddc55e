//! `warmroute top`: the fleet of a running gateway as a table, once or live.

use std::time::Duration;

use super::fleet_reading::FleetReading;
use super::fleet_table::{FleetTable, SortKey};
use crate::args::TopArgs;
use crate::explain::query::AdminListener;
use crate::output::print;

/// Prints or shows the table.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut listener = AdminListener::new(&args.gateway)?;
    let is_sensible = (0.1..=3_600.0).contains(&args.interval);
    anyhow::ensure!(is_sensible, "--interval must be between 0.1 and 3600 seconds");
    if args.once {
        let reading = runtime.block_on(FleetReading::take(&mut listener))?;
        return print(FleetTable::new(&reading, None).text(SortKey::Worker));
    }
    runtime.block_on(super::live::show(listener, Duration::from_secs_f64(args.interval)))
}
