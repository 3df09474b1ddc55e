//! The workers: registry, health, load and latency.
//!
//! ```text
//! Fleet ── slots    per worker: address, models, health, breaker     (changes rarely, behind a lock)
//!       ├─ loads    per worker: state, requests and tokens booked    (atomics in one array, read by every decision)
//!       ├─ queues   per worker: prefill queue, relative latency      (the same)
//!       ├─ versions per worker: changes of the two before            (an unchanged worker is not read again)
//!       └─ kinds    per model served: the latency model, what answers take
//! ```
//!
//! All arrays are indexed by [`warmroute_types::WorkerId`]. A [`Booking`] is work assigned to a worker. The
//! router makes it in its critical section and releases it at the first token and at the end. A dropped
//! booking releases itself, so no path through the gateway can leak load.

mod adapter_slots;
mod answer_time;
mod booked_work;
mod booking;
mod breaker;
mod cache_belief;
mod change_guard;
mod engine_kinds;
mod fault_attribution;
mod fleet;
mod health;
mod last_block;
mod latency_model;
mod load_summary;
mod outlier;
mod places;
mod prefill_queue;
mod prefill_steps;
mod ratios;
mod relative_latency;
mod retry_budget;
mod summaries;
mod worker;
mod worker_load;

pub use booked_work::BookedWork;
pub use booking::Booking;
pub use breaker::{BREAKER_PAUSE, Breaker, BreakerState, OpenReason};
pub use cache_belief::CacheBelief;
pub use fleet::{Fleet, FleetFull};
pub use health::{AnswerProgress, HealthConfig, HealthTracker, ProbeResult};
pub use last_block::LastBlockRule;
pub use latency_model::{ObservedPrompt, PrefillCost, PrefillFeatures, QueuePosition};
pub use load_summary::LoadSummary;
pub use prefill_queue::{EnginePlaces, LatencyView, QueueForecast};
pub use retry_budget::{RETRIES_FREE, RetryBudget, RetryBudgetSpent};
pub use worker::{ModelCard, Models, Worker, WorkerView};
pub use worker_load::WorkerLoadView;
