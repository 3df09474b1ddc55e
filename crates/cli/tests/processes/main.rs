//! The command and its processes: configuration, reload, restart, handover, systemd, and what operators ask.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod consoling;
mod discovering;
mod doctor;
mod explaining;
mod handover;
#[path = "../harness/mod.rs"]
mod harness;
mod keeping;
mod managing;
mod migrating;
mod notifying;
mod operating;
mod picking;
mod prefixes;
mod reloading;
mod rolling;
mod starting;
mod watching;
