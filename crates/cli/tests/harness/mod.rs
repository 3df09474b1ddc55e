//! The harness of the end-to-end tests: the real binary as processes, scripted engines, and a client that shows every
//! byte. It uses blocking sockets and threads, so that a test reads from top to bottom.
//!
//! No fixed sleep decides a result. Tests wait for each event, up to [`TIMEOUT`].

#![allow(dead_code, reason = "every test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

pub mod client;
pub mod gate;
pub mod gated;
pub mod keep_alive;
pub mod load;
pub mod process;
pub mod redis;
pub mod script;
pub mod temp_folder;

use std::time::{Duration, Instant};

/// How long an expected event may take on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `happened` returns something.
pub fn eventually<T>(what: &str, happened: impl FnMut() -> Option<T>) -> T {
    eventually_within(TIMEOUT, what, happened)
}

/// The same with another limit, for what is tried again after longer than [`TIMEOUT`].
pub fn eventually_within<T>(limit: Duration, what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
