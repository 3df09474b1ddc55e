//! Admission control: which requests run now, which wait, and which are asked to retry.
//!
//! ```text
//!   request ──▶ RateLimiter ──▶ Admission ──────────▶ routed now
//!               per key          │      ▲
//!                                ▼      │ a request has ended
//!                       AdmissionQueue ──┘ fair between tenants, classes first, bounded, with deadlines
//! ```
//!
//! The crate is pure: `now` is an argument, and a waiting item is whatever the driver needs to wake it. A waiting request
//! has not been routed: the router chooses a worker when the request is admitted.

mod admission;
mod class;
mod class_work;
mod drain_rate;
mod queue;
mod rate_limiter;
mod token_bucket;
mod typical_answer;

pub use admission::{Admission, Config, Refused};
pub use class::Class;
pub use drain_rate::DrainRate;
pub use queue::{AdmissionPosition, AdmissionQueue, AdmissionRequest, QueueFull};
pub use rate_limiter::{Exceeded, ExpectedTokens, Limit, Limits, RateLimiter, Reservation};
pub use token_bucket::TokenBucket;
