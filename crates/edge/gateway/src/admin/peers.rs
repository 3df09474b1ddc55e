//! `GET /peers`: the other routers, and how the conversation goes.

use serde_json::{Value, json};
use warmroute_peers::{PeerStatus, RelayCounts};
use warmroute_types::Micros;

use crate::carrier::{Carried, Ways};
use crate::gateway::Gateway;

/// The page.
pub fn list(gateway: &Gateway) -> Value {
    let now = gateway.now();
    let (Some(sharing), Some(carried)) = (gateway.router.sharing(now), gateway.carried()) else {
        return json!({"sharing": false, "peers": []});
    };
    json!({
        "sharing": true,
        "router": sharing.me.to_string(),
        "open_requests": sharing.open,
        "peers": sharing.peers.iter().map(|peer| peer_json(peer, &carried)).collect::<Vec<_>>(),
        "dropped_prompts": sharing.dropped_prompts,
        "forgotten_prompts": sharing.forgotten_prompts,
        "bad_messages": sharing.bad_messages,
        "asked_again": sharing.asked,
        "lost_peers": sharing.lost_peers,
        "cut_answers": sharing.cut_answers,
        "relayed": relayed(sharing.relayed, sharing.overrun),
        "transport": transport(&carried),
    })
}

/// Engines' events that only one router hears.
fn relayed(counted: RelayCounts, overrun: u64) -> Value {
    json!({
        "streams": counted.streams,
        "told": counted.sent,
        "heard": counted.received,
        "dropped": counted.dropped,
        "overrun": overrun,
        "asked": counted.replays_requested,
        "unanswered": counted.replays_failed,
        "given": counted.replays_answered,
    })
}

fn peer_json(peer: &PeerStatus, carried: &Carried) -> Value {
    let place = carried.neighbours.iter().find(|(id, _)| *id == peer.id);
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

fn transport(carried: &Carried) -> Value {
    let ways = |ways: Ways| json!({"in": ways.inward, "out": ways.outward});
    json!({
        "kind": carried.transport,
        "listening": carried.listening,
        "connected": carried.neighbours.len(),
        "messages": ways(carried.messages),
        "bytes": ways(carried.bytes),
        "dropped": ways(carried.dropped),
        "refused": carried.refused,
        "reconnects": carried.reconnects,
        "last_trouble": carried.troubles.last().map(trouble),
        "troubles": carried.troubles.iter().map(trouble).collect::<Vec<_>>(),
    })
}

fn trouble((text, ago_s): &(String, f64)) -> Value {
    json!({"text": text, "ago_s": ago_s})
}
