//! What routers tell each other, so that several act as one.
//!
//! Every router keeps a [`Ledger`] of its own requests: which worker has which of them, how far each has come. It alone writes
//! it; the others only merge what they hear of it. So there is nothing to agree on: whatever is lost, repeated or late, merging
//! it again gives the same ledger in the end, and until then everybody goes on with what they know.
//!
//! ```text
//! a decision ──▶ OwnLedger ─▶ Batch 17 ──▶  (lost, repeated, late)  ──▶ Peer: 17 is new ──▶ Effects ──▶ the same booking,
//!                  │                                                   │ 16 is missing                there too
//!                  └── history, open trips ◀───────── Ask 16 ──────────┘
//! ```
//!
//! Whatever may be long (what was missed, all that is presumed, all that is known of an engine) is asked for and pulled in parts
//! ([`Question`]).
//!
//! Engines' events that only one router hears are passed on with the engines' own numbers ([`Report`]): what is missing of those is
//! asked for of whoever has heard more.
//!
//! Pure: messages are bytes, `now` is an argument, and nobody's clock is ever compared with another's. How the bytes travel is
//! the driver's affair, Redis, a mesh or the lab's virtual network.

mod answers;
mod batches;
mod clock;
mod codec;
mod effect;
mod events;
mod fetches;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod history;
mod ledger;
mod message;
mod named;
mod own_ledger;
mod parts;
mod peer;
mod peers;
mod question;
mod questions;
mod relay;
mod report;
mod round_trip;
mod trip;
mod trips;
mod view;
mod views;

pub use codec::BadMessage;
pub use effect::Effect;
pub use events::{pack, unpack};
pub use ledger::{Advice, Health, Ledger};
pub use message::{MESSAGE_MAX, Message};
pub use own_ledger::{News, OwnLedger};
pub use parts::Part;
pub use peer::PeerView;
pub use peers::{Config, Letter, Peers};
pub use question::{Question, Want, Wanted};
pub use relay::Relayed;
pub use report::{Reach, Report, ReportKind};
pub use trip::{Booked, Over, Prompt, Trip};
pub use view::{After, Presumed, Sizes, VIEW_BYTES_MAX, ViewReader, ViewWriter};
