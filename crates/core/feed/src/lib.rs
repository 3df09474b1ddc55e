//! One engine's event stream, as a pure state machine: is what we know of that engine's cache true?
//!
//! Streams lose, repeat and reorder; engines restart without a word. A [`Feed`] is told what arrives and when, and answers
//! with [`Step`]s: apply these events, forget this worker, ask for a replay, trust it or not. It owns no socket, clock or
//! index; the edge drives it with real sockets, the lab and the tests with scripts.
//!
//! ```text
//!              connected            heard(n)                  heard(n + 3)
//!   (nothing) ──────────► joining ──────────► in step ──────────────────────► a gap: ask from n + 1, hold what is live
//!        ▲   replay from 0, hold               ▲   │  replayed(n + 1, n + 2)        │
//!        │   what is live                      └───┼───────────────────────────────◄┤
//!        └──────── restart: forget, start over ◄───┘                                ▼ replay without them
//!                  (a sequence number or a batch                          uncertain: go on, keep what is known,
//!                   that the same process cannot have sent)               cleared or rebuilt later
//! ```

mod config;
mod counters;
mod feed;
mod groups;
mod held;
mod prints;
mod rebuild;
mod silence;
mod state;
mod step;
mod stream;

pub use config::Config;
pub use counters::Counters;
pub use feed::Feed;
pub use state::Doubt;
pub use step::{Extent, Moment, ReplayEnd, Step, View};
pub use stream::{Arrival, Numbered, Others, Stream};
