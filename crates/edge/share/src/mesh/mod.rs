//! Routers that connect to each other directly.
//!
//! ```text
//! acceptor ──accepted──▶ ┌─────────────┐ ──▶ peer connection   one connection to one router: a task, two queues
//! dialers ───dialed────▶ │ coordinator │ ──▶ peer connection
//! resolvers ─resolved──▶ └─────────────┘
//! ```
//!
//! Every two routers share one connection, which either may have dialed; messages and gossip are frames on it. The coordinator
//! is one task and makes all decisions. The rules are pure: `dial_schedule` (whom to dial when), `membership` (SWIM),
//! `election` (which of two connections stays), `duplicate_addresses`, `handshake_message` and the frames. Messages are not
//! forwarded: two routers that cannot reach each other share nothing until they can.

mod acceptor;
mod config;
mod coordinator;
mod dial_schedule;
mod duplicate_addresses;
mod election;
mod event;
mod handshake;
pub(crate) mod handshake_message;
mod membership;
mod peer_address;
mod peer_connection;
mod peer_dialer;
mod probe;
mod resolver;

pub use config::{MeshConfig, MeshTimings};
pub use coordinator::{mesh, mesh_on};
pub use handshake::MeshFailure;
pub use probe::{MeshProbe, ProbedRouter, probe_mesh};
