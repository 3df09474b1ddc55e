//! Where routers are: what we tell of ourselves, and what names stand for.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::link::Ends;
use crate::mesh::book::Place;
use crate::mesh::config::{MeshConfig, MeshPace, parse_place};
use crate::mesh::hub::Event;

/// What others are told to dial.
pub(crate) fn advertised(config: &MeshConfig, listening: SocketAddr) -> String {
    let own = || match listening.ip() {
        ip if ip.is_unspecified() => SocketAddr::new(own_ip(), listening.port()).to_string(),
        _ => listening.to_string(),
    };
    config.advertise.clone().unwrap_or_else(own)
}

/// The address that this machine uses towards others. Nothing is sent: a datagram socket only looks up its route, to an address kept for
/// documentation.
fn own_ip() -> IpAddr {
    let towards = |local: &str, other: &str| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9"));
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Asks the system's resolver again and again. Where it does not answer, what it said before stands.
pub(crate) async fn resolve(
    entry: usize,
    name: String,
    pace: MeshPace,
    ends: Ends,
    events: mpsc::Sender<Event>,
) {
    let Ok((host, port)) = parse_place(&name) else { return };
    let began = Instant::now();
    loop {
        match tokio::net::lookup_host((host, port)).await {
            Ok(found) => {
                let place = |found: SocketAddr| Place { address: found.to_string(), host: host.to_owned() };
                let places = found.map(place).collect();
                _ = events.send(Event::Resolved { entry, places }).await;
            }
            // A service that is made together with its routers has a name a moment later.
            Err(error) if began.elapsed() < pace.settle => tracing::debug!(%error, host, "not resolved yet"),
            Err(error) => ends.status.troubled(format!("cannot resolve {host}: {error}")),
        }
        tokio::time::sleep(pace.resolve_every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn what_is_advertised_can_be_dialed() {
        let config = |listen: &str| MeshConfig::new(listen.parse().unwrap(), Vec::new(), Secret::new(""));
        let told = |listen: &str, port| {
            let listening = SocketAddr::new(listen.parse::<SocketAddr>().unwrap().ip(), port);
            advertised(&config(listen), listening)
        };
        assert_eq!(told("10.0.0.7:0", 7946), "10.0.0.7:7946");
        let everywhere: SocketAddr = told("0.0.0.0:0", 7946).parse().unwrap();
        assert!(!everywhere.ip().is_unspecified() && everywhere.port() == 7946, "{everywhere}");
        let named = MeshConfig { advertise: Some("router-1.example:1".into()), ..config("0.0.0.0:0") };
        assert_eq!(advertised(&named, "0.0.0.0:7946".parse().unwrap()), "router-1.example:1");
    }
}
