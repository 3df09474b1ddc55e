//! Settings that cannot work.

use std::io;
use std::path::PathBuf;

use warmroute_wire::BadTls;

/// Why routers cannot be joined as the settings say. No secret is in any of them.
#[derive(Debug, thiserror::Error)]
pub enum BadShare {
    /// Anybody could join.
    #[error("routers need a shared secret of at least {} bytes (`openssl rand -hex 32` makes one){}", crate::secret::BYTES_MIN, .0)]
    NoSecret(&'static str),
    /// A file with a secret that cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Not a URL of a Redis server. The URL is not repeated: it may hold a password.
    #[error("not a Redis URL: {0}; expected redis://HOST:PORT or rediss://HOST:PORT")]
    BadUrl(&'static str),
    /// Not a place to reach a router at.
    #[error("`{0}`: expected HOST:PORT of one machine")]
    BadPeer(String),
    /// Certificates that cannot be used.
    #[error(transparent)]
    BadTls(#[from] BadTls),
    /// The port is taken, or not ours to take.
    #[error("cannot listen on {address}: {error}")]
    CannotListen {
        /// Where.
        address: String,
        /// Why.
        error: io::Error,
    },
}
