//! A small, faithful model of an LLM engine in virtual time.
//!
//! Measuring routing policies needs engines that behave as real ones do: they batch, queue, run out of memory, evict, and
//! take as long as a GPU takes. This model follows vLLM's V1 scheduler, without socket, thread or clock. Its driver passes
//! the time:
//!
//! ```text
//!   submit ──► waiting ──► running ──► Finished          begin_step(now) ──► when it ends
//!                 ▲           │                           finish_step(..) ──► its events
//!                 └─Preempted─┘
//! ```
//!
//! The engine never sees a token. A prompt arrives as counts and as the names of its full blocks.

mod blocks;
mod config;
mod cost;
mod engine;
mod happened;
mod leaf;
mod lru_tier;
mod pages;
mod profile;
mod request;
mod run;
mod scheduler;
mod sequence;
mod stats;
mod step;
mod tiers;
mod window;

pub use config::{Config, ConfigError, PrefixCaching, Tier};
pub use cost::{DecodeCost, PrefillCost, StepCost, StepWork};
pub use engine::{Busy, Engine};
pub use happened::{Happened, Memory};
pub use lru_tier::Pool;
pub use profile::{Profile, UnknownProfile};
pub use request::{BlockName, Rejected, Request, SequenceId};
pub use stats::EngineStats;
