//! Sockets, below HTTP: how workers are reached and what they are shown, how clients are taken, plain or with TLS.
//!
//! The gateway sends requests to workers, the probe asks them how they are, and whoever follows their events asks where those
//! are. All three reach them the same way, so that way is here, and so is how routers reach one another. An operator who replaces a certificate or a key replaces it for
//! all, from the next connection on: dialers and acceptors are handles that can be told to follow another. A process that takes
//! another's place is passed its listeners.

mod acceptor;
mod dialer;
pub mod passing;
mod pem;
mod spoken;
mod stream;
mod target;

pub use acceptor::Acceptor;
pub use dialer::{Dialer, WorkerTls};
pub use pem::{BadTls, Identity};
pub use spoken::{is_plain, speaks_tls, spoken};
pub use stream::Stream;
pub use target::{Scheme, Target};

/// What is spoken inside TLS. Both ends name it when they shake hands (ALPN), so that a listener of one kind is never taken for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speech {
    /// HTTP/1.1.
    #[default]
    Http,
    /// Routers among themselves.
    Mesh,
    /// Something that has no name for this, as Redis.
    Unnamed,
}

impl Speech {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Speech::Http => vec![b"http/1.1".to_vec()],
            Speech::Mesh => vec![b"warmroute-mesh".to_vec()],
            Speech::Unnamed => Vec::new(),
        }
    }
}
