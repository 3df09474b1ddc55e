//! The routing core: `route`, `observe`, `apply`.
//!
//! ```text
//!  request ──▶ route ──▶ Decision (worker, reason, booking)
//!                          │
//!  what happened ──▶ observe(booking)      first token, end, failure; dropping the booking = client gone
//!  news ──▶ apply(change)                  workers come and go, probes, load reports
//! ```
//!
//! Pure: no clock, sockets or randomness of its own. The gateway drives it in real time, the lab in virtual time.
//!
//! The law of this crate: scoring and booking happen in one critical section per model, so k concurrent requests are
//! placed as if they had come one after another. Nothing in that section allocates or waits.

mod change;
mod pool;
mod router;

pub use change::{Change, Outcome};
pub use router::{Config, Decision, NoRoute, Request, Router};
