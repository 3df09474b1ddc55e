//! Events that the mesh's tasks send to the coordinator.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use warmroute_types::RouterId;

use crate::frame::BadFrame;
use crate::mesh::handshake::{MeshFailure, Session};

/// An event for the coordinator.
#[derive(Debug)]
pub(crate) enum Event {
    /// A router dialed us and proved its identity.
    Accepted(Session, TcpStream),
    /// A dial to this address finished.
    Dialed { address: String, result: Result<(Session, TcpStream), MeshFailure> },
    /// A connection closed. `serial` tells it from a newer connection to the same router.
    Closed { router: RouterId, serial: u64, reason: CloseReason },
    /// Membership gossip arrived.
    Gossip(Vec<u8>),
    /// An entry of the operator's list was resolved.
    Resolved { entry: usize, addresses: Vec<String> },
}

/// Why a connection closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloseReason {
    #[error("it said goodbye")]
    Goodbye,
    #[error("it closed the connection")]
    Closed,
    #[error("it sent nothing for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("it accepted no data for {} ms", .0.as_millis())]
    Stalled(Duration),
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    #[error("{0}")]
    Io(#[from] io::Error),
}
