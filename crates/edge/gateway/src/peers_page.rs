//! `GET /peers`: the peer routers and the state of sharing.

use serde_json::{Value, json};
use warmroute_peers::PeerStatus;
use warmroute_policy::Standard;
use warmroute_router::Router;
use warmroute_types::Micros;

use crate::peer_link::PeerLink;
use crate::peer_transport::{TrafficCounts, TransportStats};

/// The page.
pub(crate) fn peers_page(router: &Router<Standard>, now: Micros, peers: &PeerLink) -> Value {
    let (Some(sharing), Some(stats)) = (router.peering().view(now), peers.stats()) else {
        return json!({"sharing": false, "peers": []});
    };
    json!({
        "sharing": true,
        "router": sharing.me.to_string(),
        "open_requests": sharing.open,
        "peers": sharing.peers.iter().map(|peer| peer_json(peer, &stats)).collect::<Vec<_>>(),
        "dropped_prompts": sharing.dropped_prompts,
        "forgotten_prompts": sharing.forgotten_prompts,
        "bad_messages": sharing.bad_messages,
        "asked_again": sharing.asked,
        "lost_peers": sharing.lost_peers,
        "cut_answers": sharing.cut_answers,
        "transport": transport(&stats),
    })
}

fn peer_json(peer: &PeerStatus, stats: &TransportStats) -> Value {
    let place = stats.connected.iter().find(|(id, _)| *id == peer.id);
    json!({
        "router": peer.id.to_string(),
        "address": place.map(|(_, address)| address),
        "known_for_s": peer.known_for.as_secs_f64(),
        "silent_for_s": peer.silent_for.as_secs_f64(),
        "missing_batches": peer.missing,
        "missing_for_s": peer.missing_for.as_secs_f64(),
        "open_requests": peer.open,
        "failing_workers": peer.failing,
        "unknown_workers": peer.unknown_workers,
        "round_trip_ms": peer.round_trip.map(Micros::as_millis_f64),
        "language": peer.protocol_version,
    })
}

fn transport(stats: &TransportStats) -> Value {
    let ways = |ways: TrafficCounts| json!({"in": ways.inward, "out": ways.outward});
    json!({
        "kind": stats.transport,
        "listening": stats.listening,
        "connected": stats.connected.len(),
        "messages": ways(stats.messages),
        "bytes": ways(stats.bytes),
        "dropped": ways(stats.dropped),
        "refused": stats.refused,
        "reconnects": stats.reconnects,
        "last_trouble": stats.troubles.last().map(trouble),
        "troubles": stats.troubles.iter().map(trouble).collect::<Vec<_>>(),
    })
}

fn trouble((text, ago_s): &(String, f64)) -> Value {
    json!({"text": text, "ago_s": ago_s})
}
