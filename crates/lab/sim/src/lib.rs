//! The same router in virtual time.
//!
//! Under which load does it pay to route by cache? How old may the knowledge be? What would another policy, another fleet,
//! another cache size have done to this traffic? This crate answers by running the production router and the engine model
//! against traces and workloads, without sockets, threads or a clock:
//!
//! ```text
//!   trace, workload ──► sessions ──► run(config, rule, sessions) ──► records ──► summary
//!                            └─────► bounds: what no router could do better
//! ```

mod bounds;
mod config;
mod directory;
mod follower;
mod gate;
mod incident;
mod load;
mod node;
mod peers;
mod post;
mod prompt;
mod queue;
mod random;
mod record;
mod replication;
mod rule;
mod session;
mod stream;
mod summary;
mod talk;
mod trace;
mod watch;
mod workload;
mod world;

pub use bounds::{Bounds, bounds};
pub use config::{
    BadConfig, Config, EvictionNews, History, NewsPath, TierNews, UnknownView, UnknownWord, View,
};
pub use incident::{BadIncident, Incident, IncidentKind};
pub use load::LoadSeries;
pub use node::Totals;
pub use peers::{PEERS, Peer};
pub use prompt::{Piece, block_names, chunk_digests, head_key, token_ids, tokens};
pub use random::{Random, mix};
pub use record::Record;
pub use replication::Replication;
pub use rule::{BadRule, Made, Needs, Rule};
pub use session::{Session, Thread, Turn};
pub use summary::{Estimate, Slo, Spread, Summary};
pub use talk::{BadCut, Balancer, Cut, Talk};
pub use trace::{BadLine, Passages, Trace, TraceError, TraceFormat, TraceOptions, read_trace};
pub use watch::{End, Watcher};
pub use workload::{Scale, Sessions, UnknownWorkload, Workload};
pub use world::{Outcome, run};
