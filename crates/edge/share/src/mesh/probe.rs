//! Tests whether a mesh can be joined, without joining it: dials every listed router, completes the handshake
//! and disconnects.

use futures_util::future::join_all;
use warmroute_types::RouterId;

use crate::mesh::config::MeshConfig;
use crate::mesh::handshake::MeshFailure;
use crate::mesh::handshake_message::Purpose;
use crate::mesh::peer_address::parse_address;
use crate::mesh::peer_dialer::PeerDialer;
use crate::{BadShare, TransportStatus, random_router_id};

/// Result for one address.
#[derive(Debug)]
pub struct MeshProbe {
    /// The entry of the list.
    pub listed: String,
    /// The resolved address; `None` if the name does not resolve.
    pub address: Option<String>,
    /// The router that answered.
    pub found: Result<ProbedRouter, MeshFailure>,
}

/// A router that accepted the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedRouter {
    /// The id that it chose when it started.
    pub router: RouterId,
    /// The address that it advertises.
    pub address: String,
    /// The newest common version.
    pub version: u8,
}

/// Probes every listed router. The routers do not count the probe as a peer.
pub async fn probe_mesh(config: &MeshConfig) -> Result<Vec<MeshProbe>, BadShare> {
    config.validate()?;
    let me = random_router_id();
    let mut dial = PeerDialer::new(config, me, config.advertised());
    dial.identity.purpose = Purpose::Probe;
    let probes = config.peers.iter().map(|listed| probe_all(&dial, me, listed));
    Ok(join_all(probes).await.into_iter().flatten().collect())
}

/// Probes every address behind a name.
async fn probe_all(dial: &PeerDialer, me: RouterId, listed: &str) -> Vec<MeshProbe> {
    let probe = |address, found| MeshProbe { listed: listed.to_owned(), address, found };
    let Ok((host, port)) = parse_address(listed) else { return Vec::new() };
    let addresses: Vec<String> = match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.map(|found| found.to_string()).collect(),
        Err(error) => return vec![probe(None, Err(MeshFailure::Unresolved(error)))],
    };
    let probes = addresses.into_iter().map(|address| async move {
        let dialed = address.clone();
        let result = dial.clone().connect(address, &TransportStatus::new(me, None)).await;
        let result = result.map(|(session, _)| ProbedRouter {
            router: session.peer,
            address: session.address,
            version: session.version,
        });
        (dialed, result)
    });
    join_all(probes).await.into_iter().map(|(address, result)| probe(Some(address), result)).collect()
}
