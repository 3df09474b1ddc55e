//! Keeps the router up to date while the gateway runs.
//!
//! ```text
//! engines/   KV events of every engine that publishes them ──▶┐
//! workers/   the configured list, a watched file, DNS names ──▶ router
//! peers/     messages of other routers ◀─────────────────────▶┘
//! ```
//!
//! The crates below know one part each: `discovery` lists workers, `events` reads streams, `share` carries messages.
//! This crate connects them to the router and decides what to do when a source falls silent, moves or disagrees.

mod boxed_task;
mod engines;
mod peers;
mod workers;

pub use boxed_task::BoxedTask;
pub use engines::{
    Aligned, Card, Configured, Engine, EngineFollower, FollowSettings, Following, MatchingUnit, ModelPaths,
    ReportEndpoint, UnexpectedStatus, align,
};
pub use peers::{SharePlan, ShareSettings, Transport, exchange_with_peers};
pub use warmroute_events::Publishers;
pub use workers::{FollowedSources, KubernetesSettings, Listings, SourceSettings, Sources, follow_sources};
