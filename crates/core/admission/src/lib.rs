//! Admission control: which requests run now, which wait, and which are asked to retry.
//!
//! ```text
//!   request ──▶ SharedLimits ─▶ Admission ──────────▶ routed now
//!               per tenant       │      ▲
//!                                ▼      │ a request has ended
//!                       AdmissionQueue ──┘ classes first, fair between tenants, then by deadline; bounded
//! ```
//!
//! The crate is pure: `now` is an argument, and a waiting item is whatever the driver needs to wake it. A waiting request
//! has not been routed: the router chooses a worker when the request is admitted.

mod admission;
mod admission_rate;
mod class;
mod class_queue;
mod drain_rate;
mod home;
mod lease;
mod limit_message;
mod lineup;
mod position;
mod queue;
mod ranked_set;
mod rate_limiter;
mod route_queue;
mod shared_limits;
mod tenant_queue;
mod token_bucket;
mod ttft_budget;
mod typical_answer;

pub use admission::{Admission, Config, RefusalCause, Refused};
pub use class::Class;
pub use drain_rate::DrainRate;
pub use lease::{Lease, LeaseDecision, LeaseRequest};
pub use limit_message::{HeldLease, LimitMessage};
pub use position::AdmissionPosition;
pub use queue::{AdmissionQueue, AdmissionRequest, QueueFull};
pub use rate_limiter::{Exceeded, ExpectedTokens, Limit, Limits, RateLimiter, Reservation, TenantLevel};
pub use shared_limits::SharedLimits;
pub use token_bucket::TokenBucket;
pub use ttft_budget::{ExpectedWait, TooLate, TtftBudget};
