//! Settings of a mesh.

use std::net::SocketAddr;
use std::time::Duration;

use crate::mesh::peer_address::{advertised_address, bracketed, parse_address};
use crate::{BadShare, Secrets, Versions};

/// Settings of this router in a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Listening address (`--mesh-listen`, `0.0.0.0:7946`).
    pub listen: SocketAddr,
    /// Address that peers dial, `HOST:PORT` (`--mesh-advertise`). An IPv6 address may be without
    /// brackets. Default: the listening address; if that is unspecified, the address that this machine uses to reach others.
    pub advertise: Option<String>,
    /// Addresses of routers, `HOST:PORT` each (`--mesh-peers a:7946,b:7946`). Names are resolved every few
    /// seconds, and every address behind a name is a router: a Kubernetes headless service is one entry. The
    /// list may contain this router; one router that answers is enough to find the others.
    pub peers: Vec<String>,
    /// The secrets that all routers share (`--share-secret-file`). They authenticate and seal connections,
    /// without forward secrecy.
    pub secret: Secrets,
    /// Transport versions of this build.
    pub versions: Versions,
    /// Intervals and timeouts. Not configurable: the defaults fit one data centre.
    pub timings: MeshTimings,
}

/// Intervals and timeouts of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshTimings {
    /// Interval of heartbeats on an idle connection.
    pub alive_every: Duration,
    /// A connection that delivers or accepts nothing for this long is closed.
    pub dead_after: Duration,
    /// Timeout for connecting. It is short, because only the next attempt notices that a
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
            secret: secret.into(),
            versions: Versions::OURS,
            timings: MeshTimings::default(),
        }
    }

    /// Checks the settings without opening files or sockets.
    pub fn validate(&self) -> Result<(), BadShare> {
        self.secret.validate()?;
        if let Some(advertise) = &self.advertise {
            parse_address(&bracketed(advertise))?;
        }
        self.peers.iter().try_for_each(|address| parse_address(address).map(|_| ()))
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
    fn a_mesh_with_a_weak_secret_is_rejected() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = MeshConfig::new(listen, vec!["a:1".into()], Secret::new("0123456789abcdef"));
        assert!(config.validate().is_ok());
        config.secret = Secret::new("short").into();
        assert!(config.validate().unwrap_err().to_string().contains("16 bytes"));
    }
}
