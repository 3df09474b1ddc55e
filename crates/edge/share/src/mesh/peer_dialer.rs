//! Dials one router: connection, TLS if configured, and handshake, each with a timeout.

use std::time::Duration;

use warmroute_types::RouterId;
use warmroute_wire::{Dialer, Stream, Target};

use crate::mesh::config::{MeshConfig, MeshTimings};
use crate::mesh::handshake::{self, FrameProtection, LocalIdentity, MeshFailure, Session};
use crate::mesh::handshake_message::Purpose;
use crate::mesh::peer_address::PeerAddress;
use crate::{Secrets, TransportStatus};

/// Settings for dialing routers.
#[derive(Clone)]
pub(crate) struct PeerDialer {
    pub dialer: Dialer,
    pub identity: LocalIdentity,
    pub protection: FrameProtection,
    pub server_name: Option<String>,
    pub timings: MeshTimings,
}

impl PeerDialer {
    /// `address` is the one that this router advertises.
    pub(crate) fn new(config: &MeshConfig, me: RouterId, address: String, dialer: Dialer) -> PeerDialer {
        // Without a secret, certificates alone authenticate; the proofs of the handshake then use an empty secret.
        let secrets = config.secret.as_ref().map_or_else(|| vec![Vec::new()], Secrets::keys);
        let identity =
            LocalIdentity { me, address, versions: config.versions, secrets, purpose: Purpose::Join };
        let protection = if config.tls.is_some() { FrameProtection::Tls } else { FrameProtection::Sealed };
        let server_name = config.tls.as_ref().and_then(|tls| tls.server_name.clone());
        PeerDialer { dialer, identity, protection, server_name, timings: config.timings }
    }

    pub(crate) async fn connect(
        self,
        address: PeerAddress,
        status: &TransportStatus,
    ) -> Result<(Session, Stream), MeshFailure> {
        let mut stream = with_timeout(self.timings.connect, self.open_stream(&address)).await?;
        let is_connected = |router| status.peers().contains_key(&router);
        let handshake = handshake::dial(&mut stream, &self.identity, self.protection, is_connected);
        let session = with_timeout(self.timings.handshake, handshake).await?;
        Ok((session, stream))
    }

    async fn open_stream(&self, address: &PeerAddress) -> Result<Stream, MeshFailure> {
        let scheme = if self.protection == FrameProtection::Tls { "https" } else { "http" };
        let target = format!("{scheme}://{}", address.address);
        let target: Target = target.parse().map_err(|_| MeshFailure::NotARouter)?;
        let name = self.server_name.as_deref().unwrap_or(&address.host);
        Ok(self.dialer.dial_as(&target, name).await?)
    }
}

async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, MeshFailure>>,
) -> Result<T, MeshFailure> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(MeshFailure::TimedOut(limit)))
}
