//! The life of a gateway process: startup, reload, saved state, handover to another process, drain.
//!
//! ```text
//! Plan ──▶ serve ──▶ Service   listeners, gateway, admin page, and what `follow` and `probe` keep up to date
//!             │         ▲
//!             │         └── Control   SIGHUP, changed files, PUT /config ──▶ a new plan, applied as a whole or refused
//!             ├── handover, notify    another process takes over; systemd is told
//!             └── saved_state         what the next process starts with
//! ```
//!
//! The command reads options and makes the plan; this crate does not know flags or configuration files. It asks for a new
//! plan through [`ConfigReader`].

mod control;
mod file_limit;
mod fingerprints;
mod handover;
mod listen_error;
mod notify;
mod paths;
mod picker_settings;
mod plan;
mod saved_state;
mod serve;
mod service;
mod summary;
#[cfg(test)]
mod test_plan;

pub use control::{ConfigReader, ConfigSource, Control};
pub use fingerprints::Fingerprints;
pub use handover::Listeners;
pub use listen_error::listen_error;
pub use paths::{check_paths, check_state_is_writable};
pub use picker_settings::PickerSettings;
pub use plan::{Acceptors, PickerPlan, Plan, ProcessConfig};
pub use serve::{StopSignals, announce, serve};
pub use service::Service;
