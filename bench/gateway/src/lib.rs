//! What the measurements of the gateway share: processes that are started and watched, requests, and connections to send them on.

pub mod args;
pub mod case;
pub mod launch;
pub mod measure;
pub mod pace;
pub mod process;
pub mod proxies;
pub mod scratch;
pub mod stats;
pub mod table;
pub mod target;
pub mod usage;
pub mod wire;
