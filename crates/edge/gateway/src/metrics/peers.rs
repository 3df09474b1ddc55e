//! How several routers act as one, written when somebody asks; nothing for a router on its own.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_peers::PeerView;
use warmroute_policy::Standard;
use warmroute_router::{Router, SharingView};
use warmroute_types::Micros;

use crate::peer_transport::{PeerTransport, TrafficCounts, TransportStats};

/// The conversation, and what carries it.
pub(super) struct PeerCollector {
    pub router: Arc<Router<Standard>>,
    pub transport: Arc<OnceLock<Arc<dyn PeerTransport>>>,
    /// When the router's time began.
    pub start: Instant,
}

impl std::fmt::Debug for PeerCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerCollector")
    }
}

/// One metric of every peer: its name and help, and how it is read.
type Reading = (&'static str, &'static str, fn(&PeerView) -> f64);

const READINGS: [Reading; 7] = [
    ("peer_silence_seconds", "Since the router was last heard", |peer| peer.silent_for.as_secs_f64()),
    ("peer_missing_batches", "Batches of news that it has sent and that have not come", |peer| {
        peer.missing as f64
    }),
    ("peer_missing_seconds", "Since when some have been missing; 0: all is known", |peer| {
        peer.missing_for.as_secs_f64()
    }),
    ("peer_requests_active", "Its requests in flight, as far as known here", |peer| peer.open as f64),
    ("peer_failing_workers", "Workers that it finds failing", |peer| peer.failing as f64),
    (
        "peer_unknown_workers",
        "Workers that it sends to and that are not known here under that name",
        |peer| peer.unknown_workers as f64,
    ),
    ("peer_round_trip_seconds", "How long the way there and back takes; 0: not known yet", |peer| {
        peer.round_trip.map_or(0.0, Micros::as_secs_f64)
    }),
];

/// One count of the conversation.
type Count = (&'static str, &'static str, fn(&SharingView, &TransportStats) -> u64);

const COUNTS: [Count; 15] = [
    ("sharing_lost_peers", "Routers that are heard no more", |sharing, _| sharing.lost_peers),
    ("sharing_asked_again", "Holes in the news of others that were asked for", |sharing, _| sharing.asked),
    (
        "sharing_dropped_prompts",
        "Prompts that were not told because there was too much to tell",
        |sharing, _| sharing.dropped_prompts,
    ),
    (
        "sharing_forgotten_prompts",
        "Prompts of others' open requests that were forgotten for want of room",
        |sharing, _| sharing.forgotten_prompts,
    ),
    ("sharing_bad_messages", "Messages that could not be read", |sharing, _| sharing.bad_messages),
    (
        "sharing_cut_answers",
        "Answers to late joiners of which the oldest was left out because there was too much",
        |sharing, _| sharing.cut_answers,
    ),
    ("relayed_told", "Batches of engines' events that were passed on to others", |sharing, _| {
        sharing.relayed.told
    }),
    ("relayed_heard", "Batches of engines' events that others have passed on", |sharing, _| {
        sharing.relayed.heard
    }),
    ("relayed_dropped", "Batches that were too large or too many to be passed on", |sharing, _| {
        sharing.relayed.dropped
    }),
    (
        "relayed_overrun",
        "News of streams that others passed on and that were dropped because nobody took them in time",
        |sharing, _| sharing.overrun,
    ),
    ("relayed_asked", "Times that another router was asked for a stream", |sharing, _| sharing.relayed.asked),
    ("relayed_unanswered", "Times that no other router had it", |sharing, _| sharing.relayed.unanswered),
    ("relayed_given", "Times that another router was told a stream", |sharing, _| sharing.relayed.given),
    ("sharing_refused", "Strangers, forgeries, repetitions, and what was too large", |_, stats| {
        stats.refused
    }),
    ("sharing_reconnects", "Connections that were made again", |_, stats| stats.reconnects),
];

/// One count of both ways.
type Flow = (&'static str, &'static str, fn(&TransportStats) -> TrafficCounts);

const FLOWS: [Flow; 3] = [
    ("sharing_messages", "Messages between routers", |stats| stats.messages),
    ("sharing_bytes", "Bytes between routers, with all that the transport adds", |stats| stats.bytes),
    ("sharing_dropped", "Messages dropped for want of room, or of a receiver", |stats| stats.dropped),
];

impl Collector for PeerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.start.elapsed().into();
        let (Some(sharing), Some(transport)) = (self.router.sharing(now), self.transport.get()) else {
            return Ok(());
        };
        let stats = transport.stats();
        let family =
            encoder.encode_descriptor("peers", "Other routers that are heard", None, MetricType::Gauge)?;
        ConstGauge::new(sharing.peers.len() as i64).encode(family)?;
        let help = "Workers whose events are passed on, and known here without a hole";
        let family = encoder.encode_descriptor("relayed_streams", help, None, MetricType::Gauge)?;
        ConstGauge::new(sharing.relayed.streams as i64).encode(family)?;
        for (name, help, read) in READINGS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for peer in &sharing.peers {
                let labels = [("peer", peer.id.to_string())];
                ConstGauge::new(read(peer)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, read) in COUNTS {
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
