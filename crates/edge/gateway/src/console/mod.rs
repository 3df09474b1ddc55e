//! The live console at `/ui`: what open pages are told, and what that costs.
//!
//! ```text
//!   decisions ──sampled──> rows ─┐
//!   first tokens ────────> counts ├─ publisher, twice a second ──> one frame ──> every open page
//!   router, admission ───────────┘   (exists while a page is open)
//! ```
//!
//! Without an open page a request pays one relaxed load. With pages, one task builds one frame for all of them. It rests
//! for at least 200 times as long as the frame took, so its share of a core stays below half a percent also with a
//! large fleet, whose frames get rarer, up to one a minute. Rows are a sample of the requests, so that a busy gateway does not flood the
//! page.

mod body;
mod frame;
mod latency_counts;
mod page;
mod pages;
mod publisher;
mod request_row;
mod rounding;
pub(crate) mod state;
mod worker_row;

pub(crate) use body::AdminBody;
pub(crate) use page::page;
pub(crate) use publisher::{TooManyPages, subscribe};
