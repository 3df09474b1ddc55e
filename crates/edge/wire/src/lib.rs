//! Sockets: connecting to workers and accepting clients, plain or with TLS; and an HTTP client for one server.
//!
//! The gateway, the probes and the event feeds connect to workers in the same way, and so do routers to a Redis server.
//! Dialers and acceptors are handles that can follow another: replacing a certificate or a key takes effect everywhere,
//! from the next connection on. `socket_passing` hands listeners to a successor process.

mod acceptor;
mod dialer;
mod http_client;
mod long_work;
mod own_shortage;
mod pem;
mod percent;
mod retry_after;
mod scheme_detection;
pub mod socket_passing;
mod stream;
mod target;

pub use acceptor::Acceptor;
pub use dialer::Dialer;
pub use http_client::{HttpClient, HttpClientError};
pub use long_work::long_work;
pub use own_shortage::is_own_shortage;
pub use pem::{BadTls, PemTexts, TlsFiles};
pub use percent::{percent_decoded, percent_decoded_bytes};
pub use retry_after::retry_after;
pub use scheme_detection::{detect_scheme, speaks_tls};
pub use stream::Stream;
pub use target::{Scheme, Target};

/// The protocol inside TLS. Both ends name it in the handshake (ALPN), so that listeners cannot be confused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2, as gRPC needs it.
    Http2,
    /// A protocol without an ALPN name, such as Redis.
    None,
}

impl AppProtocol {
    fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            AppProtocol::Http => vec![b"http/1.1".to_vec()],
            AppProtocol::Http2 => vec![b"h2".to_vec()],
            AppProtocol::None => Vec::new(),
        }
    }
}
