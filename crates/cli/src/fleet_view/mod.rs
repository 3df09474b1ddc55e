//! `warmroute status` and `warmroute top`: a running gateway's fleet, for scripts and for people.
//!
//! ```text
//! /readyz, /workers, /metrics ──▶ FleetReading ──▶ status   one line or JSON, and an exit code
//!                     two readings ──▶ FleetTable ──▶ top   a table, once or live
//! ```

mod fleet_reading;
mod fleet_table;
mod live;
mod status;
mod terminal;
mod top;

pub use status::run as run_status;
pub use top::run as run_top;
