//! Errors of connections.

use std::io;

/// Why a connection ended or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A network error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The endpoint cannot be bound.
    #[error("cannot listen on {endpoint}: {error}")]
    Listen {
        /// The endpoint as configured.
        endpoint: String,
        /// The system's error.
        error: io::Error,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer did not connect or finish its greeting in time.
    #[error("no greeting within {0:?}; is a ZeroMQ socket listening there?")]
    Late(std::time::Duration),
    /// The peer sent nothing, not even a reply to a heartbeat.
    #[error("the peer sent nothing for {0:?}")]
    Dead(std::time::Duration),
    /// The peer does not follow the protocol.
    #[error("the peer does not follow ZMTP 3: {0}")]
    Protocol(&'static str),
    /// The peer requires authentication or encryption.
    #[error("the peer requires the security mechanism {0:?}; only NULL is supported")]
    Mechanism(String),
    /// The peer's socket type does not fit.
    #[error("the peer is a {theirs} socket, which cannot talk to our {ours} socket; check the endpoint")]
    Mismatch {
        /// Our socket type.
        ours: &'static str,
        /// The peer's socket type.
        theirs: String,
    },
    /// The peer refuses us.
    #[error("the peer refused the connection: {0}")]
    Refused(String),
    /// A message is larger than allowed.
    #[error("a message exceeds the limit of {0} bytes")]
    TooLarge(usize),
    /// Unfinished messages of all connections together exceed their bound.
    #[error("the unfinished messages of all connections exceed their limit")]
    BudgetExceeded,
    /// A message has more parts than allowed.
    #[error("a message exceeds the limit of {0} parts")]
    TooManyParts(usize),
    /// The peer with this identity has disconnected.
    #[error("the peer has disconnected")]
    Gone,
}
