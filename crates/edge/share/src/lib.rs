//! How routers reach one another: by Redis, or by themselves as a mesh.
//!
//! ```text
//!              Outbox ──▶ ┌──────────────┐ ══▶ other routers       mesh/   TCP between every two, membership by SWIM
//! whoever shares          │  mesh, redis │                         redis/  PUBLISH and SUBSCRIBE on one server
//!               Inbox ◀── └──────────────┘ ◀══
//! ```
//!
//! This crate knows nothing of what is shared: it carries opaque messages, which may be lost, repeated, late or out of order, as
//! datagrams may. What it promises instead: sending never waits, a router that is dead or hangs costs nobody else anything,
//! memory is bounded, full buffers drop their oldest and count it, and nobody without the secret or a certificate is heard.

mod backoff;
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
pub use link::{Inbox, Incoming, Leave, Link, MAX_MESSAGE_BYTES, Outbox, Outgoing, TooLarge};
pub use mesh::{MeshConfig, MeshFailure, MeshPace, MeshTls, MeshVisit, Met, mesh, mesh_on, visit_mesh};
pub use redis::{Overheard, RedisConfig, RedisFailure, RedisPace, RedisVisit, redis, visit_redis};
pub use secret::{Secret, Secrets};
pub use status::{Peer, Status, Traffic, Trouble};
pub use version::Versions;

use warmroute_types::RouterId;

/// A number for a router that starts. Never zero, which stands for "everyone" on the wire.
pub fn draw_router() -> RouterId {
    RouterId(u64::from_le_bytes(seal::random()).max(1))
}
