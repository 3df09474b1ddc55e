//! KV events of engines, and state shared between routers.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

#[path = "../harness/mod.rs"]
mod harness;
mod precise;
mod sharing;
mod visible;
