//! Tests whether routers can share through a server, without joining them: connects like a router, checks
//! that published messages come back, and listens for announcements.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::StreamExt;
use tokio::time::timeout_at;
use warmroute_types::RouterId;

use crate::link::TransportEnd;
use crate::redis::config::{RedisConfig, Server};
use crate::redis::envelope::EnvelopeKind;
use crate::redis::failure::RedisFailure;
use crate::redis::peer_table::PeerEvent;
use crate::redis::publisher::{RedisConnections, RedisPublisher};
use crate::{BadShare, TransportStatus, Versions, random_router_id, seal};

/// Result for one server.
#[derive(Debug)]
pub struct RedisProbe {
    /// `HOST:PORT`.
    pub server: String,
    /// The other routers, if the server can be used.
    pub found: Result<AnnouncedRouters, RedisFailure>,
}

/// Routers that announced themselves during the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedRouters {
    /// Routers with the same secret and a common version.
    pub routers: BTreeSet<RouterId>,
    /// Routers with the same secret and no common version.
    pub incompatible: BTreeMap<RouterId, Versions>,
    /// Announcements with another secret.
    pub unreadable: u64,
}

/// Probes every server. The routers do not count the probe as a peer.
pub async fn probe_redis(config: &RedisConfig) -> Result<Vec<RedisProbe>, BadShare> {
    config.validate()?;
    let (me, mut probes) = (random_router_id(), Vec::new());
    for server in config.servers()? {
        let publisher = RedisPublisher::new(
            config,
            me,
            config.dialer()?,
            TransportEnd::new(TransportStatus::new(me, None)),
        );
        let found = probe(&publisher, &server, config, me).await;
        probes.push(RedisProbe { server: server.name(), found });
    }
    Ok(probes)
}

async fn probe(
    publisher: &RedisPublisher,
    server: &Server,
    config: &RedisConfig,
    me: RouterId,
) -> Result<AnnouncedRouters, RedisFailure> {
    let mut connections = publisher.connect_or_diagnose(server).await?;
    // A goodbye of an unknown router is ignored by the others, and comes back to us.
    let channels = [None, Some(me)];
    for to in channels {
        let envelope = publisher.writer.lock().write(EnvelopeKind::Goodbye, config.versions.newest, to, &[]);
        publisher.publish(&mut connections.publish, &[(publisher.channel(to), envelope)]).await?;
    }
    match listen(publisher, &mut connections, config).await? {
        (announced, echoed) if echoed == channels.len() => Ok(announced),
        _ => Err(RedisFailure::NoEcho(config.timings.announce_interval * 2)),
    }
}

/// Listens for two announcement intervals; also counts our own envelopes that came back.
async fn listen(
    publisher: &RedisPublisher,
    connections: &mut RedisConnections,
    config: &RedisConfig,
) -> Result<(AnnouncedRouters, usize), RedisFailure> {
    let (mut announced, mut echoed) = (AnnouncedRouters::default(), 0);
    let until = Instant::now() + config.timings.announce_interval * 2;
    while let Ok(message) = timeout_at(until.into(), connections.messages.next()).await {
        let message = message.ok_or(RedisFailure::Closed)?;
        let events = publisher.peers.lock().read(message.get_payload_bytes(), Instant::now(), seal::random());
        for event in events {
            match event {
                PeerEvent::Echo => echoed += 1,
                PeerEvent::Challenge(router, _) => _ = announced.routers.insert(router),
                PeerEvent::Incompatible(router, versions) => {
                    _ = announced.incompatible.insert(router, versions)
                }
                PeerEvent::OtherSecret => announced.unreadable += 1,
                _ => {}
            }
        }
    }
    Ok((announced, echoed))
}
