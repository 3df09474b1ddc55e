//! The routing core: `route`, `observe`, `apply`.
//!
//! ```text
//!  request ──▶ route ──▶ Decision (worker, reason, expected cached tokens, booking, presumption)
//!                          │
//!  request ──▶ preview                     the same without a trace: what would happen, and among whom
//!  what happened ──▶ observe(decision)     first token, end; dropping the decision = failed, or client gone
//!  usage ──▶ feedback(decision)            what the engine found in its cache, against what was expected
//!  news ──▶ apply(change)                  workers come and go, probes, load reports, capacities
//!  other routers ──▶ hear, speak           what they have sent where; see `sharing.rs`
//!  remember ──▶ Memory ──▶ recall        what was learned, from one process to the next
//! ```
//!
//! Pure: no clock, sockets or randomness of its own. The gateway drives it in real time, the lab in virtual time.
//!
//! The law of this crate: scoring and booking happen in one critical section per model, so k concurrent requests are
//! placed as if they had come one after another. Nothing in that section waits, and only remembering a new prompt in the
//! index allocates.

mod change;
mod considered;
mod family;
mod feedback;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod held;
mod memory;
mod plane;
mod policies;
mod pool;
mod pools;
mod presumed;
mod prompt;
mod prospect;
mod recollections;
mod reported;
mod returned;
mod router;
mod scratch;
mod sharing;
mod speculation;
mod streams;
mod token_rate;
mod trust;
mod underpromise;
mod unheard;
mod unproven;
mod unseated;
mod view;

pub use change::{Change, Outcome};
pub use considered::{CONSIDERED_MAX, Considered, Preview};
pub use family::Family;
pub use feedback::{Answered, Content, Feedback, Silence};
pub use memory::{BadMemory, Memory};
pub use policies::Tallied;
pub use pool::Vacancy;
pub use prompt::{PromptChunks, PromptText};
pub use reported::{FeedReport, Ingested, Matching, Unit};
pub use router::{Config, Decision, NoRoute, Request, Router, StreamNews};
pub use scratch::Scratch;
pub use sharing::{Errand, SharingView, Taken};
