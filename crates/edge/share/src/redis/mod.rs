//! Routers that reach one another by a Redis or Valkey server, which keeps nothing of ours.

mod config;

pub use config::{RedisConfig, RedisPace};

use warmroute_types::RouterId;

use crate::{BadShare, Link};

/// TODO
pub fn redis(_config: RedisConfig, _me: RouterId) -> Result<Link, BadShare> {
    Err(BadShare::BadUrl("not yet"))
}
