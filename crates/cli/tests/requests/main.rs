//! Requests from clients: routing, relaying, failures, timeouts, admission, TLS, keys, hostile clients.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod adapting;
mod attacks;
mod bursts;
mod caching;
mod deadlines;
mod encrypting;
mod failing;
mod generating;
mod hanging;
mod hardening;
#[path = "../harness/mod.rs"]
mod harness;
mod logging;
mod recovering;
mod relaying;
mod securing;
mod storing;
mod surviving;
mod tracing;
mod waiting;
mod waking;
