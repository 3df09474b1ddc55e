//! A small faithful model of an LLM engine, in virtual time.
//!
//! Which replica should a request go to? To answer by measurement one needs engines that behave as real ones do: that
//! batch, queue, run out of memory, evict, and take as long as a GPU takes. This is one of them, modelled on vLLM's V1
//! scheduler, with no socket, thread or clock. Whoever drives it says what time it is:
//!
//! ```text
//!   submit ──► waiting ──► running ──► Finished          begin_step(now) ──► when it ends
//!                 ▲           │                           finish_step(..) ──► what happened
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
mod pages;
mod profile;
mod request;
mod run;
mod scheduler;
mod sequence;
mod shelf;
mod stats;
mod step;
mod tiers;

pub use config::{Config, ConfigError, PrefixCaching, Tier};
pub use cost::{DecodeCost, PrefillCost, StepCost, StepWork};
pub use engine::{Busy, Engine};
pub use happened::{Happened, Memory};
pub use profile::{Profile, UnknownProfile};
pub use request::{BlockName, Rejected, Request, SequenceId};
pub use shelf::Pool;
pub use stats::Stats;
