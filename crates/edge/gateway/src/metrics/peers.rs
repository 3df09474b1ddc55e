//! Metrics of peer routers. Empty for a single router.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_peers::PeerStatus;
use warmroute_policy::Standard;
use warmroute_router::{Router, SharingView};
use warmroute_types::Micros;

use crate::clock::Clock;
use crate::peer_link::PeerLink;
use crate::peer_transport::{TrafficCounts, TransportStats};

/// Collects the peer metrics at each scrape.
pub(super) struct PeerCollector {
    pub router: Arc<Router<Standard>>,
    pub peers: Arc<PeerLink>,
    pub clock: Clock,
}

impl std::fmt::Debug for PeerCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerCollector")
    }
}

/// A gauge of each peer: name, help, and how to read it.
type PeerGauge = (&'static str, &'static str, fn(&PeerStatus) -> f64);

const PEER_GAUGES: [PeerGauge; 7] = [
    ("peer_silence_seconds", "Time since the peer's last message", |peer| peer.silent_for.as_secs_f64()),
    ("peer_missing_batches", "Batches that the peer sent and that have not arrived", |peer| {
        peer.missing as f64
    }),
    ("peer_missing_seconds", "Time since batches have been missing; 0: none", |peer| {
        peer.missing_for.as_secs_f64()
    }),
    ("peer_requests_active", "The peer's requests in flight, as known here", |peer| peer.open as f64),
    ("peer_failing_workers", "Workers that the peer considers failing", |peer| peer.failing as f64),
    ("peer_unknown_workers", "Workers of the peer that are unknown here", |peer| peer.unknown_workers as f64),
    ("peer_round_trip_seconds", "Round-trip time to the peer; 0: unknown", |peer| {
        peer.round_trip.map_or(0.0, Micros::as_secs_f64)
    }),
];

/// A counter of sharing: name, help, and how to read it.
type SharingCount = (&'static str, &'static str, fn(&SharingView, &TransportStats) -> u64);

const SHARING_COUNTS: [SharingCount; 8] = [
    ("sharing_lost_peers", "Peers lost because they fell silent", |sharing, _| sharing.lost_peers),
    ("sharing_asked_again", "Requests for missing batches", |sharing, _| sharing.asked),
    ("sharing_dropped_prompts", "Prompts not shared because the queue was full", |sharing, _| {
        sharing.dropped_prompts
    }),
    (
        "sharing_forgotten_prompts",
        "Prompts of peers' open requests dropped because memory was full",
        |sharing, _| sharing.forgotten_prompts,
    ),
    ("sharing_bad_messages", "Messages that could not be decoded", |sharing, _| sharing.bad_messages),
    (
        "sharing_cut_answers",
        "Snapshots for late joiners that had to omit the oldest entries",
        |sharing, _| sharing.cut_answers,
    ),
    (
        "sharing_refused",
        "Rejected connections and messages: unknown senders, forgeries, duplicates, oversized",
        |_, stats| stats.refused,
    ),
    ("sharing_reconnects", "Reconnects", |_, stats| stats.reconnects),
];

/// A counter for both directions: name, help, and how to read it.
type Flow = (&'static str, &'static str, fn(&TransportStats) -> TrafficCounts);

const FLOWS: [Flow; 3] = [
    ("sharing_messages", "Messages between routers", |stats| stats.messages),
    ("sharing_bytes", "Bytes between routers, including the transport's overhead", |stats| stats.bytes),
    ("sharing_dropped", "Messages dropped because a queue was full or no peer was connected", |stats| {
        stats.dropped
    }),
];

impl Collector for PeerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.clock.now();
        let (Some(sharing), Some(stats)) = (self.router.peering().view(now), self.peers.stats()) else {
            return Ok(());
        };
        let family = encoder.encode_descriptor("peers", "Peer routers", None, MetricType::Gauge)?;
        ConstGauge::new(sharing.peers.len() as i64).encode(family)?;
        for (name, help, read) in PEER_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for peer in &sharing.peers {
                let labels = [("peer", peer.id.to_string())];
                ConstGauge::new(read(peer)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, read) in SHARING_COUNTS {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(read(&sharing, &stats)).encode(family)?;
        }
        for (name, help, read) in FLOWS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            let TrafficCounts { inward, outward } = read(&stats);
            for (direction, count) in [("in", inward), ("out", outward)] {
                ConstCounter::new(count).encode(family.encode_family(&[("direction", direction)])?)?;
            }
        }
        Ok(())
    }
}
