//! Transports between routers: a Redis server, or a mesh of direct connections.
//!
//! ```text
//!                Outbox ──▶ ┌──────────────┐ ══▶ peers       mesh/   TCP between every two routers, membership by SWIM
//! sharing router            │  mesh, redis │                 redis/  PUBLISH and SUBSCRIBE on one server
//!                 Inbox ◀── └──────────────┘ ◀══
//! ```
//!
//! This crate does not know what is shared: it carries opaque messages, which may be lost, repeated, late or out of order, like
//! datagrams. It guarantees that sending never waits, that a dead or stalled router does not affect the others, that memory is
//! bounded (full buffers drop the oldest message and count it), and that messages come only from routers with the secret.

mod departure;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod mesh;
mod queue;
mod redis;
mod seal;
mod secret;
mod status;
mod version;

pub use error::BadShare;
pub use link::{
    LeaveHandle, Link, MAX_MESSAGE_BYTES, MessageInbox, MessageOutbox, MessageTooLarge, OutgoingMessage,
    ReceivedMessage,
};
pub use mesh::{MeshConfig, MeshFailure, MeshProbe, MeshTimings, ProbedRouter, mesh, mesh_on, probe_mesh};
pub use redis::{AnnouncedRouters, RedisConfig, RedisFailure, RedisProbe, RedisTimings, probe_redis, redis};
pub use secret::{Secret, Secrets};
pub use status::{ConnectedPeer, Problem, Traffic, TransportStatus};
pub use version::Versions;

use warmroute_types::RouterId;

/// A random id for a router that starts. Never zero, which means "everyone" on the wire.
pub fn random_router_id() -> RouterId {
    RouterId(u64::from_le_bytes(seal::random()).max(1))
}
