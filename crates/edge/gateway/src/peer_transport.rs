//! The transport between peer routers, as the gateway sees it.

use warmroute_peers::Envelope;
use warmroute_types::RouterId;

/// A transport between routers.
pub trait PeerTransport: Send + Sync {
    /// Asks the transport to send soon. It is called for every request, so it must be cheap.
    fn notify(&self);

    /// Sends a message at once. It may be lost.
    fn send(&self, envelope: Envelope);

    /// Current statistics.
    fn stats(&self) -> TransportStats;
}

/// Statistics of a transport.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransportStats {
    /// `mesh` or `redis`.
    pub transport: &'static str,
    /// The address at which peers reach this router (mesh only).
    pub listening: Option<String>,
    /// Connected peers and their addresses.
    pub connected: Vec<(RouterId, String)>,
    /// Messages.
    pub messages: TrafficCounts,
    /// Bytes, including the transport's overhead.
    pub bytes: TrafficCounts,
    /// Messages dropped because a queue was full or no peer was connected.
    pub dropped: TrafficCounts,
    /// Rejected connections and messages: unknown senders, forgeries, duplicates, oversized messages.
    pub refused: u64,
    /// Reconnects.
    pub reconnects: u64,
    /// Recent problems and their age in seconds, the latest last.
    pub troubles: Vec<(String, f64)>,
}

/// A count for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Received.
    pub inward: u64,
    /// Sent.
    pub outward: u64,
}
