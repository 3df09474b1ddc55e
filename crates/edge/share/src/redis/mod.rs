//! Routers that exchange messages through a Redis or Valkey server, which stores nothing.
//!
//! ```text
//! Outbox ──▶ publisher ──PUBLISH────▶ ┌────────┐   channels PREFIX:all and PREFIX:ROUTER
//!                                     │ server │   envelope: layout of a sealed message
//! Inbox ◀── peer table ◀──SUBSCRIBE── └────────┘   read_limit: bytes that may arrive unprocessed
//! ```
//!
//! The server is not trusted: a client that can write to it must not be able to influence routers. So every envelope is sealed
//! with the shared secret, and a router's messages count only after it has answered a fresh challenge. Recorded envelopes are
//! therefore useless.

mod config;
pub(crate) mod envelope;
mod failure;
mod peer_table;
mod probe;
mod publisher;
mod read_limit;

pub use config::{RedisConfig, RedisTimings};
pub use failure::RedisFailure;
pub use probe::{AnnouncedRouters, RedisProbe, probe_redis};
pub use publisher::redis;
