//! ZeroMQ's wire protocol, ZMTP 3.1 with the NULL mechanism, as far as event streams need it.
//!
//! Why not a library: `libzmq` is C++ and would have to be built. The crate `zeromq` 0.7, tried against libzmq 4.3.5, ends the
//! connection at the publisher's first heartbeat ("Unknown command received"), and its `connect` does not return while
//! there is no publisher. The protocol is small, so this crate is: a greeting, a READY, frames, five commands.
//!
//! ```text
//!   Sub (connect, or bind and accept)  ◄──  PUB, XPUB          Publisher  ──►  SUB, XSUB     (for the simulated engine)
//!   Dealer                             ◄─►  ROUTER             Router     ◄─►  DEALER, REQ   (for the simulated engine)
//! ```
//!
//! Deliberately absent: reconnecting (only the caller knows what a new connection means), encryption, fair queueing over
//! several peers, and every other kind of socket. Memory is bounded before it is allocated: by bytes of a message, its
//! parts, and the queue to a slow peer.

mod byte_budget;
mod command;
mod connection;
mod dealer;
mod decoder;
mod endpoint;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod greeting;
mod heartbeat;
mod listener;
mod options;
mod peers;
mod publisher;
mod router;
mod sub;

pub use byte_budget::ByteBudget;
pub use dealer::Dealer;
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::Error;
pub use listener::{IncomingConnection, Listener};
pub use options::Options;
pub use publisher::Publisher;
pub use router::{PeerId, Router};
pub use sub::Sub;

/// The parts of a message.
pub type Message = Vec<bytes::Bytes>;
