//! Dials one router: connection and handshake, each with a timeout.

use std::time::Duration;

use tokio::net::TcpStream;
use warmroute_types::RouterId;

use crate::TransportStatus;
use crate::mesh::config::{MeshConfig, MeshTimings};
use crate::mesh::handshake::{self, LocalIdentity, MeshFailure, Session};
use crate::mesh::handshake_message::Purpose;

/// Settings for dialing routers.
#[derive(Clone)]
pub(crate) struct PeerDialer {
    pub identity: LocalIdentity,
    pub timings: MeshTimings,
}

impl PeerDialer {
    /// `address` is the one that this router advertises.
    pub(crate) fn new(config: &MeshConfig, me: RouterId, address: String) -> PeerDialer {
        let secrets = config.secret.keys();
        let identity =
            LocalIdentity { me, address, versions: config.versions, secrets, purpose: Purpose::Join };
        PeerDialer { identity, timings: config.timings }
    }

    pub(crate) async fn connect(
        self,
        address: String,
        status: &TransportStatus,
    ) -> Result<(Session, TcpStream), MeshFailure> {
        let mut stream = with_timeout(self.timings.connect, open_stream(&address)).await?;
        let is_connected = |router| status.peers().contains_key(&router);
        let handshake = handshake::dial(&mut stream, &self.identity, is_connected);
        let session = with_timeout(self.timings.handshake, handshake).await?;
        Ok((session, stream))
    }
}

async fn open_stream(address: &str) -> Result<TcpStream, MeshFailure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, MeshFailure>>,
) -> Result<T, MeshFailure> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(MeshFailure::TimedOut(limit)))
}
