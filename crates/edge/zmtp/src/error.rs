//! Why a connection ended, or never began.

use std::io;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The network said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A place to listen is taken, or cannot be had.
    #[error("cannot listen on {endpoint}: {error}")]
    Listen {
        /// Where.
        endpoint: String,
        /// Why.
        error: io::Error,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not finish its greeting in time, or could not be reached in time.
    #[error("no greeting within {0:?}")]
    Late(std::time::Duration),
    /// Nothing was heard, not even an answer to a heartbeat.
    #[error("nothing was heard for {0:?}")]
    Dead(std::time::Duration),
    /// It speaks something else.
    #[error("that is not ZMTP 3: {0}")]
    Protocol(&'static str),
    /// It wants to authenticate, or to encrypt.
    #[error("the peer asks for the security mechanism {0:?}; only NULL is supported")]
    Mechanism(String),
    /// The wrong kind of socket is at the other end.
    #[error("a {theirs} socket is no peer for a {ours} socket")]
    Mismatch {
        /// What we are.
        ours: &'static str,
        /// What it is.
        theirs: String,
    },
    /// The peer refuses us.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// A message is larger than allowed.
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
    /// A message has more parts than allowed.
    #[error("a message of more than {0} parts")]
    TooManyParts(usize),
    /// Nobody has this identity any more.
    #[error("that peer is gone")]
    Gone,
}
