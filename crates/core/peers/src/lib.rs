//! Protocol by which several routers act as one.
//!
//! Each router keeps a [`Ledger`] of its own assignments: which worker serves which request, and how far each has come,
//! and of the responses that workers stored for its clients. Only
//! its owner writes a ledger; peers merge the parts that they receive. Merging is idempotent and has no order, so lost,
//! repeated and late messages lead to the same ledger in the end.
//!
//! ```text
//! decision ──▶ OwnLedger ─▶ Batch 17 ──▶  (lost, repeated, late)  ──▶ Peer: 17 is new ──▶ Effects ──▶ the same booking
//!                │                                                  │ 16 is missing               on the peer
//!                └── sent batches, open assignments ◀── Query 16 ───┘
//! ```
//!
//! Routers pull long answers in parts ([`Query`]): missing batches and the presumed cache contents. Engine events are not
//! shared: every router receives them from the engine.
//!
//! This crate is pure: messages are bytes, `now` is an argument, and clocks of two routers are never compared. The driver
//! carries the bytes: Redis, a mesh, or the lab's virtual network.

mod answer_cache;
mod answer_parts;
mod assignment;
mod clock;
mod codec;
mod effect;
mod envelope;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ledger;
mod limit_records;
mod message;
mod own_ledger;
mod peer;
mod peer_assignments;
mod peer_workers;
mod peers;
mod pending_queries;
mod query;
mod received_batches;
mod round_trip;
mod sent_batches;
mod snapshot_fetch;
mod stored_response;

pub use answer_parts::{AnswerPart, SNAPSHOT_BYTES_MAX};
pub use assignment::{Assignment, AssignmentEnd, BookingRecord, PromptDigests};
pub use codec::BadMessage;
pub use effect::Effect;
pub use envelope::Envelope;
pub use ledger::{Ledger, WorkerFinding, WorkerHealth};
pub use message::{MESSAGE_MAX, PeerMessage};
pub use own_ledger::{LedgerUpdates, OwnLedger};
pub use peer::PeerStatus;
pub use peers::{Config, Peers};
pub use query::{Query, QueryKind};
pub use stored_response::StoredResponse;
pub use warmroute_admission::LimitMessage;
