//! What the end-to-end tests are played with: the real binary as processes, engines that follow a script, and a client that
//! sees every byte. Blocking sockets and threads: a test reads from top to bottom.
//!
//! Nothing here waits a fixed time to decide anything. Whatever must happen is waited for, up to [`PATIENCE`].

#![allow(dead_code, reason = "every test file uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

pub mod client;
pub mod gate;
pub mod kept;
pub mod load;
pub mod process;
pub mod redis;
pub mod scrap;
pub mod script;

use std::time::{Duration, Instant};

/// How long something that must happen may take on a busy machine before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `happened` gives something.
pub fn eventually<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < deadline, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
