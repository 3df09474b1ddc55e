//! One engine's event stream as a pure state machine: is the known state of that engine's cache true?
//!
//! Streams lose, repeat and reorder batches, and engines restart unannounced. A [`Feed`] receives what arrives and when,
//! and returns [`Step`]s: apply these events, forget this worker, request a replay, trust the view or not. It owns no
//! socket, clock or index; the edge drives it with real sockets, the lab and the tests with scripts.
//!
//! ```text
//!              connected          live batch n               live batch n + 3
//!   (nothing) ──────────► joining ──────────► in step ──────────────────────► a gap: request from n + 1, hold live batches
//!        ▲   replay from 0, hold               ▲   │  replayed(n + 1, n + 2)        │
//!        │   live batches                      └───┼───────────────────────────────◄┤
//!        └──────── restart: forget, start over ◄───┘                                ▼ replay without them
//!                  (a sequence number or a batch                          uncertain: continue, keep what is known,
//!                   that the same process cannot have sent)               clear or rebuild it later
//! ```

mod config;
mod counters;
mod feed;
mod groups;
mod held_batches;
mod recent_batches;
mod replay_schedule;
mod silence;
mod state;
mod step;

pub use config::Config;
pub use counters::Counters;
pub use feed::Feed;
pub use groups::{GROUPS_MAX, GroupObstacle};
pub use state::Doubt;
pub use step::{Moment, ReplayEnd, Step, View};
