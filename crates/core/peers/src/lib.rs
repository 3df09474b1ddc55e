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
//! Engines' events that only one router hears are passed on with the engines' own numbers ([`Report`]): what is missing of those is
//! asked for of whoever has heard more.
//!
//! Pure: messages are bytes, `now` is an argument, and nobody's clock is ever compared with another's. How the bytes travel is
//! the driver's affair, Redis, a mesh or the lab's virtual network.

mod batches;
mod clock;
mod codec;
mod effect;
mod events;
mod fetches;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ledger;
mod message;
mod own_ledger;
mod parts;
mod peer;
mod peers;
mod relay;
mod report;
mod trip;
mod views;

pub use codec::BadMessage;
pub use effect::Effect;
pub use events::{pack, unpack};
pub use fetches::Wanted;
pub use ledger::{Advice, Health, Ledger};
pub use message::{MESSAGE_MAX, Message};
pub use own_ledger::OwnLedger;
pub use parts::Part;
pub use peer::PeerView;
pub use peers::{Config, Letter, Peers};
pub use relay::Relayed;
pub use report::{Reach, Report, ReportKind};
pub use trip::{Booked, Over, Prompt, Trip};
