//! The routing core: `route`, `observe`, `apply`.
//!
//! ```text
//!   request ──▶ route ──▶ Decision (worker, reason, expected cached tokens, booking, presumption)
//!                           │
//!   outcome ──▶ observe(decision) ──▶ Observed   first token, end with the engine's token counts, refusal: compared with the
//!                                                prediction; dropping the decision = failed, or client gone
//!   change ──▶ apply                             workers join and leave, probes, load reports, events, settings, time
//!
//!   peering()                                    messages to and from other routers
//!   inspect()                                    read-only: previews, workers, statistics, the state to save
//! ```
//!
//! Pure: no clock, sockets or randomness of its own. The gateway drives it in real time, the lab in virtual
//! time.
//!
//! The invariant of this crate: scoring and booking happen in one critical section per model, so k concurrent
//! requests are placed as if they had come one after another. Nothing in that section waits, and only storing
//! a new prompt in the index allocates.

mod adapter_names;
mod assessment;
mod awaited_answers;
mod candidate_input;
mod candidate_record;
mod change;
mod conversation_length;
mod decision;
mod decision_state;
mod demand;
mod estimate;
mod family;
mod feed_check;
mod feedback;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod group_cache;
mod group_rule;
mod group_table;
mod matching;
mod media;
mod model_rules;
mod outcome;
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
mod request;
mod router;
mod sampled_reuse;
mod saved_media;
mod saved_state;
mod scratch;
mod sharing;
mod speculation;
mod split_map;
mod stored_responses;
mod token_rate;
mod trust;
mod unclaimed_state;
mod unit;
mod unpropagated_load;
mod waiting_assignments;
mod worker_group;
mod worker_ingest;

pub use candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord, Preview};
pub use change::Change;
pub use decision::{Decision, NoRoute};
pub use family::Family;
pub use feedback::Feedback;
pub use matching::Matching;
pub use media::{KnownMedium, UnknownMedia};
pub use model_rules::{ModelRuleTable, ModelRules};
pub use outcome::{Answered, Observed, Outcome};
pub use policies::PolicyComparison;
pub use pool::Vacancy;
pub use prompt::{PromptChunks, PromptText};
pub use reported::FeedReport;
#[doc(hidden)]
pub use reported_view::ReportedView;
pub use request::{Content, Request, Silence, Usable};
pub use router::{Config, HeldHead, Inspect, Peering, Router};
pub use saved_state::{BadSavedState, SavedState};
pub use scratch::{KeptCandidates, Scratch};
pub use sharing::{PeerTask, Received, SharingView};
pub use unit::Unit;
pub use worker_group::WorkerGroup;
pub use worker_ingest::Ingested;
