//! Looks whether a mesh could be joined, without joining it: every router of the list is dialed, both prove to each other who they are, and
//! the visitor goes.

use futures_util::future::join_all;
use warmroute_types::RouterId;

use crate::mesh::book::Place;
use crate::mesh::config::{MeshConfig, parse_place};
use crate::mesh::dial::Dial;
use crate::mesh::handshake::Failed;
use crate::mesh::hello::Errand;
use crate::mesh::hub::{dial, encryption};
use crate::{BadShare, Status, draw_router};

/// What was found at one address.
#[derive(Debug)]
pub struct MeshVisit {
    /// As it is listed.
    pub listed: String,
    /// What it stands for, where it could be resolved.
    pub address: Option<String>,
    /// Who is there.
    pub found: Result<Met, Failed>,
}

/// A router that knows the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Its number.
    pub router: RouterId,
    /// Where it says that it can be dialed.
    pub address: String,
    /// The version that it would be spoken to in.
    pub version: u8,
}

/// Visits everybody in the list. The others do not see a router come or go.
pub async fn visit_mesh(config: &MeshConfig) -> Result<Vec<MeshVisit>, BadShare> {
    config.validate()?;
    let (dialer, _) = encryption(config)?;
    let me = draw_router();
    let mut dial = dial(config, me, config.advertised(), dialer);
    dial.card.errand = Errand::Visit;
    let visits = config.peers.iter().map(|listed| visit_all(&dial, me, listed));
    Ok(join_all(visits).await.into_iter().flatten().collect())
}

/// Every address behind a name.
async fn visit_all(dial: &Dial, me: RouterId, listed: &str) -> Vec<MeshVisit> {
    let visit = |address, found| MeshVisit { listed: listed.to_owned(), address, found };
    let Ok((host, port)) = parse_place(listed) else { return Vec::new() };
    let places: Vec<Place> = match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.map(|found| Place { address: found.to_string(), host: host.to_owned() }).collect(),
        Err(error) => return vec![visit(None, Err(Failed::Unresolved(error)))],
    };
    let visits = places.into_iter().map(|place| async move {
        let address = place.address.clone();
        let met = dial.clone().meet(place, &Status::new(me, None)).await;
        let met = met.map(|(session, _)| Met {
            router: session.peer,
            address: session.address,
            version: session.version,
        });
        (address, met)
    });
    join_all(visits).await.into_iter().map(|(address, met)| visit(Some(address), met)).collect()
}
