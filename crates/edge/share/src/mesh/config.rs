//! What an operator says of a mesh.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use warmroute_wire::Identity;

use crate::mesh::hub::encryption;
use crate::mesh::places::advertised;
use crate::{BadShare, Secrets, Versions};

/// How this router joins a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Where others reach us (`--mesh-listen`, `0.0.0.0:7946`).
    pub listen: SocketAddr,
    /// What others are told to dial, `HOST:PORT` (`--mesh-advertise`). Left out: the address listened on, and where that is
    /// every address, the one that this machine uses to reach others.
    pub advertise: Option<String>,
    /// Where routers may be found, `HOST:PORT` each (`--mesh-peers a:7946,b:7946`). A name is resolved again every few seconds, and every
    /// address behind it is a router: a Kubernetes headless service is one entry. Oneself among them does no harm; one that answers
    /// is enough to find the others.
    pub peers: Vec<String>,
    /// What all routers know and nobody else (`--share-secret-file`). May be left out only with `tls`.
    pub secret: Option<Secrets>,
    /// Certificates (`--mesh-tls-cert`, `--mesh-tls-key`, `--mesh-tls-ca`, `--mesh-tls-name`). Without, connections are authenticated
    /// and sealed by the secret, with no forward secrecy.
    pub tls: Option<MeshTls>,
    /// What this build speaks.
    pub versions: Versions,
    /// How patient it is. Not for operators: the defaults fit one data centre.
    pub pace: MeshPace,
}

/// Certificates, both ways: whoever dials and whoever is dialed show one, of the same authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTls {
    /// What we show.
    pub identity: Identity,
    /// The authority of all routers, and of nothing else: whoever has its certificate is a router.
    pub ca: PathBuf,
    /// The name that all routers' certificates carry; left out, each must carry the host that it is dialed by.
    pub server_name: Option<String>,
}

/// Times of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshPace {
    /// A connection that has nothing to say says so this often.
    pub alive_every: Duration,
    /// A connection that said nothing for so long is dead, and so is one that takes nothing for so long.
    pub dead_after: Duration,
    /// Making a connection, with TLS where that is used, may take so long. Short, because a network that is healed is noticed only by the next try.
    pub connect: Duration,
    /// Proving to each other who we are may take so long. Short for the same reason: what stands between routers may accept for one that is
    /// cut off.
    pub handshake: Duration,
    /// The longest pause before a lost router is dialed again. Healing takes this long at most, and what a try may take that began before.
    pub redial: Duration,
    /// The pause after a refusal that time does not mend: another secret, no version in common.
    pub refused: Duration,
    /// Names are resolved again this often.
    pub resolve_every: Duration,
    /// One router is asked this often whether it is there, by SWIM.
    pub probe_every: Duration,
    /// A router that nobody reaches is believed to be gone after so long, by SWIM.
    pub gone_after: Duration,
    /// Routers that are started together find each other within so long: that one of them is not there yet is no trouble before.
    pub settle: Duration,
    /// Where a router was is remembered so long after it went: it may be a network that was cut.
    pub remember: Duration,
}

impl Default for MeshPace {
    fn default() -> MeshPace {
        MeshPace {
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
    /// A mesh with these routers, known to each other by a secret.
    pub fn new(listen: SocketAddr, peers: Vec<String>, secret: impl Into<Secrets>) -> MeshConfig {
        MeshConfig {
            listen,
            advertise: None,
            peers,
            secret: Some(secret.into()),
            tls: None,
            versions: Versions::OURS,
            pace: MeshPace::default(),
        }
    }

    /// Whether it can work, without opening anything.
    pub fn validate(&self) -> Result<(), BadShare> {
        match &self.secret {
            Some(secret) => secret.keep_out()?,
            None if self.tls.is_none() => return Err(BadShare::NoSecret(", or certificates")),
            None => {}
        }
        self.peers.iter().chain(&self.advertise).try_for_each(|place| parse_place(place).map(|_| ()))
    }

    /// Whether the certificates can be used, where there are any.
    pub fn read_certificates(&self) -> Result<(), BadShare> {
        encryption(self).map(|_| ())
    }

    /// What others would be told to dial.
    pub fn advertised(&self) -> String {
        advertised(self, self.listen)
    }
}

/// Host, without brackets, and port.
pub(crate) fn parse_place(place: &str) -> Result<(&str, u16), BadShare> {
    let bad = || BadShare::BadPeer(place.to_owned());
    let (host, port) = place.rsplit_once(':').ok_or_else(bad)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if place.len() > ADDRESS_BYTES_MAX
        || host.is_empty()
        || host.contains(['/', '@'])
        || (bare.is_none() && host.contains(':'))
    {
        return Err(bad());
    }
    let host = bare.unwrap_or(host);
    // "Every address of this machine" is nothing to dial.
    let is_nowhere = host.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
    let port = port.parse().ok().filter(|_| !is_nowhere);
    Ok((host, port.ok_or_else(bad)?))
}

/// DNS allows no longer names.
pub(crate) const ADDRESS_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn places_are_taken_apart() {
        for (place, expected) in
            [("a:1", ("a", 1)), ("[::1]:70", ("::1", 70)), ("routers.svc:7946", ("routers.svc", 7946))]
        {
            assert_eq!(parse_place(place).unwrap(), expected);
        }
        for bad in ["", "a", ":1", "a:b", "::1:7", "http://a:1", "a:70000", "0.0.0.0:7946", "[::]:7946"] {
            assert!(parse_place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mesh_that_anybody_could_join_is_refused() {
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = MeshConfig::new(listen, vec!["a:1".into()], Secret::new("0123456789abcdef"));
        assert!(config.validate().is_ok());
        config.secret = Some(Secret::new("short").into());
        assert!(config.validate().unwrap_err().to_string().contains("16 bytes"));
        config.secret = None;
        assert!(config.validate().unwrap_err().to_string().contains("or certificates"));
    }
}
