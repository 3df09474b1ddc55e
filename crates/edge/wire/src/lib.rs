//! Sockets, below HTTP: how workers are reached and what they are shown, how clients are taken, plain or with TLS.
//!
//! The gateway sends requests to workers, the probe asks them how they are, and whoever follows their events asks where those
//! are. All three reach them the same way, so that way is here. An operator who replaces a certificate or a key replaces it for
//! all, from the next connection on: dialers and acceptors are handles that can be told to follow another.

mod acceptor;
mod dialer;
mod pem;
mod stream;
mod target;

pub use acceptor::Acceptor;
pub use dialer::{Dialer, WorkerTls};
pub use pem::{BadTls, Identity};
pub use stream::Stream;
pub use target::{Scheme, Target};

/// What we speak over TLS.
const ALPN: &[u8] = b"http/1.1";
