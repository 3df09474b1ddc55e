//! Which workers there are, how they are, and what they have in hand.
//!
//! ```text
//! Fleet ── seats   who sits where: address, models, health, breaker  (changes rarely, behind a lock)
//!       ├─ desks   per seat: state, requests and tokens booked    (atomics in one array, read by every decision)
//!       └─ paces   per seat: what prompts take, time booked       (the same)
//! ```
//!
//! A [`Booking`] is work promised to a worker. It is made in the router's critical section and released by what
//! happened; dropped unfinished, it releases itself, so that no path through the gateway can leak load.

mod belief;
mod booking;
mod breaker;
mod budget;
mod desk;
mod fit;
mod fleet;
mod health;
mod outlier;
mod pace;
mod suspicion;
mod worker;

pub use belief::Belief;
pub use booking::{Booking, Work};
pub use breaker::{Breaker, Open, PAUSE, Position};
pub use budget::{RETRIES_FREE, RetryBudget, Spent};
pub use desk::DeskView;
pub use fit::{Effort, Place, Speed};
pub use fleet::{Fleet, FleetFull};
pub use health::{Answer, Health, HealthConfig, ProbeResult};
pub use pace::{Outlook, PaceView};
pub use worker::{Models, Worker, WorkerView};
