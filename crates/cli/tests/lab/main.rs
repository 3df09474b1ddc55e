//! The lab against real processes. A program of its own: these tests measure times, and other tests beside them would disturb.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod driving;
#[path = "../harness/mod.rs"]
mod harness;
mod recording;
mod validation;
