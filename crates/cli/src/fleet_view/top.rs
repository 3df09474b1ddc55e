//! `warmroute top`: the fleet of a running gateway as a table, once or live.

use std::time::Duration;

use super::fleet_reading::FleetReading;
use super::fleet_table::{FleetTable, SortKey};
use crate::args::TopArgs;
use crate::explain::query::AdminListener;
use crate::options::quantity::Secs;
use crate::output::print;
use crate::text_table::terminal_width;

/// Prints or shows the table.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut listener = AdminListener::new(&args.gateway)?;
    let Secs(interval) = args.interval;
    let is_sensible = (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&interval);
    anyhow::ensure!(is_sensible, "--interval must be between 100ms and 1h");
    if args.once {
        let reading = runtime.block_on(FleetReading::take(&mut listener))?;
        let width = terminal_width().unwrap_or(usize::MAX);
        return print(FleetTable::new(&reading, None).text(SortKey::Worker, width));
    }
    runtime.block_on(super::live::show(listener, interval))
}
