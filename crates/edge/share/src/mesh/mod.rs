//! Routers that reach one another without any other service.
//!
//! ```text
//! door ──accepted──▶ ┌─────┐ ──▶ lane  one connection to one router: a task, two queues
//! dials ──dialed───▶ │ hub │ ──▶ lane
//! names ──resolved─▶ └─────┘       ▲ book: whom to dial, and when      members: SWIM, who is there      election: one of two
//! ```
//!
//! Every two routers have one connection, whoever dialed; messages and gossip are frames on it. The hub is one task and owns all that is
//! decided; what it decides by is pure (`book`, `members`, `election`, `twins`, `hello`, and the frames).
//! Messages are not passed on for others: two routers that cannot reach each other share nothing until they can.

mod book;
mod config;
mod dial;
mod door;
mod election;
mod handshake;
pub(crate) mod hello;
mod hub;
mod lane;
mod members;
mod places;
mod twins;
mod visit;

pub use config::{MeshConfig, MeshPace, MeshTls};
pub use handshake::Failed as MeshFailure;
pub use hub::{mesh, mesh_on};
pub use visit::{MeshVisit, Met, visit_mesh};
