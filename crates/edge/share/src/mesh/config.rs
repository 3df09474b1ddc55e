//! Settings of a mesh.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use warmroute_wire::{Acceptor, AppProtocol, Dialer, Identity, WorkerTls};

use crate::mesh::peer_address::{advertised_address, parse_address};
use crate::{BadShare, Secrets, Versions};

/// Settings of this router in a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Listening address (`--mesh-listen`, `0.0.0.0:7946`).
    pub listen: SocketAddr,
    /// Address that peers dial, `HOST:PORT` (`--mesh-advertise`). Default: the listening address; if that is
    /// unspecified, the address that this machine uses to reach others.
    pub advertise: Option<String>,
    /// Addresses of routers, `HOST:PORT` each (`--mesh-peers a:7946,b:7946`). Names are resolved every few
    /// seconds, and every address behind a name is a router: a Kubernetes headless service is one entry. The
    /// list may contain this router; one router that answers is enough to find the others.
    pub peers: Vec<String>,
    /// The secrets that all routers share (`--share-secret-file`). Optional only with `tls`.
    pub secret: Option<Secrets>,
    /// Certificates (`--mesh-tls-cert`, `--mesh-tls-key`, `--mesh-tls-ca`, `--mesh-tls-name`). Without them
    /// the secret authenticates and seals connections, without forward secrecy.
    pub tls: Option<MeshTls>,
    /// Transport versions of this build.
    pub versions: Versions,
    /// Intervals and timeouts. Not configurable: the defaults fit one data centre.
    pub timings: MeshTimings,
}

/// Certificates for mutual TLS: both sides present one of the same authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTls {
    /// Certificate and key of this router.
    pub identity: Identity,
    /// The authority that signs routers' certificates and nothing else: a valid certificate identifies a
    /// router.
    pub ca: PathBuf,
    /// The name in all routers' certificates. Default: the host that is dialed.
    pub server_name: Option<String>,
}

/// Intervals and timeouts of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshTimings {
    /// Interval of heartbeats on an idle connection.
    pub alive_every: Duration,
    /// A connection that delivers or accepts nothing for this long is closed.
    pub dead_after: Duration,
    /// Timeout for connecting, including TLS. It is short, because only the next attempt notices that a
    /// network has healed.
    pub connect: Duration,
    /// Timeout for the handshake. It is short, because a proxy may accept connections for a router that is
    /// cut off.
    pub handshake: Duration,
    /// Longest pause before a lost router is dialed again. A partition heals within this time plus one
    /// attempt.
    pub redial: Duration,
    /// Pause after a permanent refusal: wrong secret, or no common version.
    pub refused: Duration,
    /// Interval at which names are resolved.
    pub resolve_every: Duration,
    /// Interval of SWIM probes.
    pub probe_every: Duration,
    /// SWIM declares a router gone when no router has reached it for this long.
    pub gone_after: Duration,
    /// Routers that start together find each other within this time; until then an unreachable router is not
    /// a problem.
    pub settle: Duration,
    /// The address of a router that disappeared is dialed for this long, because the network may be
    /// partitioned.
    pub remember: Duration,
}

impl Default for MeshTimings {
    fn default() -> MeshTimings {
        MeshTimings {
            alive_every: Duration::from_millis(500),
            dead_after: Duration::from_secs(3),
            connect: Duration::from_secs(1),
            handshake: Duration::from_millis(1_500),
            redial: Duration::from_millis(500),
            refused: Duration::from_secs(30),
            resolve_every: Duration::from_secs(5),
            probe_every: Duration::from_secs(1),
            gone_after: Duration::from_secs(3),
            settle: Duration::from_secs(5),
            remember: Duration::from_secs(600),
        }
    }
}

impl MeshConfig {
    /// A mesh of these routers, authenticated by a secret.
    pub fn new(listen: SocketAddr, peers: Vec<String>, secret: impl Into<Secrets>) -> MeshConfig {
        MeshConfig {
            listen,
            advertise: None,
            peers,
            secret: Some(secret.into()),
            tls: None,
            versions: Versions::OURS,
            timings: MeshTimings::default(),
        }
    }

    /// Checks the settings without opening files or sockets.
    pub fn validate(&self) -> Result<(), BadShare> {
        match &self.secret {
            Some(secret) => secret.validate()?,
            None if self.tls.is_none() => return Err(BadShare::NoSecret(", or certificates")),
            None => {}
        }
        self.peers.iter().chain(&self.advertise).try_for_each(|address| parse_address(address).map(|_| ()))
    }

    /// Checks the certificates, if there are any.
    pub fn read_certificates(&self) -> Result<(), BadShare> {
        self.tls_endpoints().map(|_| ())
    }

    /// Dialer and acceptor with the configured certificates.
    pub(crate) fn tls_endpoints(&self) -> Result<(Dialer, Acceptor), BadShare> {
        let Some(tls) = &self.tls else { return Ok((Dialer::default(), Acceptor::default())) };
        let client = WorkerTls { ca: Some(tls.ca.clone()), identity: Some(tls.identity.clone()) };
        let dialer = Dialer::with_protocol(AppProtocol::Mesh, client)?;
        Ok((dialer, Acceptor::with_protocol(AppProtocol::Mesh, &tls.identity, Some(&tls.ca))?))
    }

    /// The address that peers dial.
    pub fn advertised(&self) -> String {
        advertised_address(self.advertise.as_deref(), self.listen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn a_mesh_without_authentication_is_rejected() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = MeshConfig::new(listen, vec!["a:1".into()], Secret::new("0123456789abcdef"));
        assert!(config.validate().is_ok());
        config.secret = Some(Secret::new("short").into());
        assert!(config.validate().unwrap_err().to_string().contains("16 bytes"));
        config.secret = None;
        assert!(config.validate().unwrap_err().to_string().contains("or certificates"));
    }
}
