//! Settings that sharing rejects.

use std::io;
use std::path::PathBuf;

use warmroute_wire::BadTls;

/// Shortest secret in bytes. A shorter one could be guessed from a recorded handshake.
pub(crate) const SECRET_BYTES_MIN: usize = 16;

/// Why sharing cannot start with these settings. The texts never contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum BadShare {
    /// No secret, or one that can be guessed.
    #[error("routers need a shared secret of at least {} bytes (create one with `openssl rand -hex 32`){}", SECRET_BYTES_MIN, .0)]
    NoSecret(&'static str),
    /// The secret file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// The path as configured.
        file: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Not a URL of a Redis server. The text does not repeat the URL, because it may contain a password.
    #[error("not a Redis URL: {0}; expected redis://HOST:PORT or rediss://HOST:PORT")]
    BadUrl(&'static str),
    /// Not an address of a router.
    #[error("invalid address `{0}`: expected HOST:PORT of one machine")]
    BadPeer(String),
    /// Certificates that cannot be used.
    #[error(transparent)]
    BadTls(#[from] BadTls),
    /// The listening port cannot be opened.
    #[error("cannot listen on {address}: {error}")]
    CannotListen {
        /// The address of `mesh-listen`.
        address: String,
        /// The error of the operating system.
        error: io::Error,
    },
}
