//! Which workers there are, how they are, and what they have in hand.
//!
//! ```text
//! Fleet ── seats   who sits where: address, models, health, breaker  (changes rarely, behind a lock)
//!       ├─ desks   per seat: state, requests and tokens booked    (atomics in one array, read by every decision)
//!       ├─ queues  per seat: prefill queue, relative latency      (the same)
//!       └─ kinds   per model served: the latency model
//! ```
//!
//! A [`Booking`] is work promised to a worker. It is made in the router's critical section and released by what
//! happened; dropped unfinished, it releases itself, so that no path through the gateway can leak load.

mod belief;
mod booking;
mod breaker;
mod budget;
mod desk;
mod engine_kinds;
mod fleet;
mod health;
mod latency_model;
mod outlier;
mod prefill_queue;
mod prefill_steps;
mod ratios;
mod relative_latency;
mod suspicion;
mod worker;

pub use belief::Belief;
pub use booking::{Booking, Work};
pub use breaker::{Breaker, Open, PAUSE, Position};
pub use budget::{RETRIES_FREE, RetryBudget, Spent};
pub use desk::DeskView;
pub use fleet::{Fleet, FleetFull};
pub use health::{Answer, Health, HealthConfig, ProbeResult};
pub use latency_model::{ObservedPrompt, PrefillCost, PrefillFeatures, QueuePosition};
pub use prefill_queue::{LatencyView, QueueForecast};
pub use worker::{Models, Worker, WorkerView};
