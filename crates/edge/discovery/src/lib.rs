//! Where workers come from: a list, a watched file, DNS names.
//!
//! ```text
//! list, file, DNS ──Listing──▶ Roster ──joins and leaves──▶ whoever applies them
//! ```
//!
//! A source says, again and again, which workers it knows. The [`Roster`] compares that with what it said before and with
//! what the others say. A source that cannot be read keeps its last listing: a typing error or a DNS outage must
//! not empty a fleet.

mod dns;
mod entry;
mod file;
mod roster;

pub use dns::{BadDnsName, DnsName, watch_dns};
pub use entry::{BadWorkers, EventsEntry, WorkerEntry, line_of, read_workers};
pub use file::watch_file;
pub use roster::{Listed, Listing, Roster, RosterChange, SourceId};
