//! Resolves the entries of the operator's list of peers.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::link::TransportEnd;
use crate::mesh::config::MeshTimings;
use crate::mesh::event::Event;
use crate::mesh::peer_address::parse_address;

/// Resolves a name repeatedly. If the resolver fails, the previous addresses stay.
pub(crate) async fn resolve_repeatedly(
    entry: usize,
    name: String,
    timings: MeshTimings,
    transport: TransportEnd,
    events: mpsc::Sender<Event>,
) {
    let Ok((host, port)) = parse_address(&name) else { return };
    let began = Instant::now();
    loop {
        match tokio::net::lookup_host((host, port)).await {
            Ok(found) => {
                let addresses = found.map(|address: SocketAddr| address.to_string()).collect();
                _ = events.send(Event::Resolved { entry, addresses }).await;
            }
            // A service that is created together with its routers gets its name a moment later.
            Err(error) if began.elapsed() < timings.settle => {
                tracing::debug!(%error, host, "not resolved yet")
            }
            Err(error) => transport.status.report_problem(format!("cannot resolve {host}: {error}")),
        }
        tokio::time::sleep(timings.resolve_every).await;
    }
}
