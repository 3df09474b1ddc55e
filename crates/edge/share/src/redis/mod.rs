//! Routers that reach one another by a Redis or Valkey server, which keeps nothing of ours.
//!
//! ```text
//! Outbox ──▶ post ──PUBLISH──▶ ┌────────┐ PREFIX:all, PREFIX:NUMBER      letter: what a message looks like, sealed
//! Inbox  ◀── roster ◀─────SUBSCRIBE── │ server │                                roster: who has proved to be there
//!                              └────────┘                                leash: how much may come at once
//! ```
//!
//! The server is not trusted: whoever can write to it must not be able to steer routers. So every letter is sealed with the routers' secret,
//! and a router is heard only after it has answered a question that was asked just now: letters that somebody recorded are worth nothing.

mod config;
mod leash;
pub(crate) mod letter;
mod lost;
mod post;
mod roster;
mod visit;

pub use config::{RedisConfig, RedisPace};
pub use lost::Lost as RedisFailure;
pub use post::redis;
pub use visit::{Overheard, RedisVisit, visit_redis};
