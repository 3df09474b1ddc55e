//! Simulator: the production router and the engine model in virtual time.
//!
//! Under which load does cache-aware routing pay? How old may cache knowledge be? What would another policy,
//! fleet or cache size have done to this traffic? This crate answers by running the production router and the
//! engine model against traces and workloads, without sockets, threads or a clock:
//!
//! ```text
//!   trace, workload ──► sessions ──► run(config, rule, sessions) ──► records ──► summary
//!                            └─────► bounds: what no router could do better
//! ```

mod baselines;
mod bounds;
mod built_rule;
mod config;
mod directory;
mod event_stream;
mod event_transit;
mod exec;
mod feed_follower;
mod incident;
mod key_span;
mod load;
mod node;
mod peer_network;
mod prompt;
mod queue;
mod random;
mod rates;
mod record;
mod repeated_prefill;
mod replication;
mod rule;
mod sampled;
mod session;
mod session_text;
mod shedding;
mod sim_router;
mod simulation;
mod slo;
mod summary;
mod trace;
mod watch;
mod workload;

pub use baselines::{BASELINES, Baseline};
pub use bounds::{Bounds, bounds};
pub use built_rule::{BuiltRule, Needs};
pub use config::{
    BadConfig, Config, EventPath, EvictionEvents, History, TierEvents, UnknownView, UnknownWord, View,
};
pub use exec::{ProgramError, Trouble, exec_rule};
pub use incident::{BadIncident, Incident, IncidentKind};
pub use key_span::KeySpan;
pub use load::{LoadSeries, WorkerSample};
pub use node::Totals;
pub use peer_network::{BadPartition, Balancer, Partition, PeerNetwork};
pub use prompt::{Piece, block_names, chunk_digests, head_key, token_ids, tokens};
pub use random::{Random, mix};
pub use record::Record;
pub use replication::Replication;
pub use rule::{BadRule, Rule};
pub use session::{Session, Thread, Turn};
pub use session_text::SessionText;
pub use shedding::Shedding;
pub use simulation::{Outcome, run};
pub use slo::Slo;
pub use summary::{Estimate, Spread, Summary};
pub use trace::{BadLine, PassagePlacement, Trace, TraceError, TraceFormat, TraceOptions, read_trace};
pub use watch::{End, Watcher};
pub use workload::{Sessions, UnknownWorkload, Workload, WorkloadScale};
