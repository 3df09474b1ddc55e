//! The routing core: `route`, `observe`, `apply`.
//!
//! ```text
//!   request ──▶ route ──▶ Decision (worker, reason, expected cached tokens, booking, presumption)
//!                           │
//!   request ──▶ preview                    the same without effects: what would be decided, and among which candidates
//!   outcome ──▶ observe(decision)          first token, end; dropping the decision = failed, or client gone
//!   usage ──▶ feedback(decision)           cached tokens that the engine reports, against the prediction
//!   change ──▶ apply(change)               workers join and leave, probes, load reports, capacities
//!   peers ──▶ receive, compose_messages    assignments of other routers; see `sharing.rs`
//!   save ──▶ SavedState ──▶ restore        what was learned, from one process to the next
//! ```
//!
//! Pure: no clock, sockets or randomness of its own. The gateway drives it in real time, the lab in virtual
//! time.
//!
//! The invariant of this crate: scoring and booking happen in one critical section per model, so k concurrent
//! requests are placed as if they had come one after another. Nothing in that section waits, and only storing
//! a new prompt in the index allocates.

mod candidate_record;
mod change;
mod estimate;
mod family;
mod feed_check;
mod feedback;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod peer_snapshot;
mod policies;
mod pool;
mod pools;
mod presumed_shortfall;
mod presumption_guard;
mod prompt;
mod reported;
mod reported_overlap;
mod reported_view;
mod router;
mod sampled_reuse;
mod saved_state;
mod scratch;
mod sharing;
mod speculation;
mod token_rate;
mod trust;
mod unclaimed_state;
mod unpropagated_load;
mod waiting_assignments;

pub use candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, Preview};
pub use change::{Change, Outcome};
pub use family::Family;
pub use feedback::{Answered, Content, Feedback, Silence};
pub use policies::PolicyComparison;
pub use pool::Vacancy;
pub use prompt::{PromptChunks, PromptText};
pub use reported::{FeedReport, Ingested, Matching, Unit};
pub use router::{Config, Decision, NoRoute, Request, Router};
pub use saved_state::{BadSavedState, SavedState};
pub use scratch::Scratch;
pub use sharing::{PeerTask, Received, SharingView};
