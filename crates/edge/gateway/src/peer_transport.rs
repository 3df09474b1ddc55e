//! What carries messages between routers, as far as the gateway has to do with it.

use warmroute_types::RouterId;

/// A transport between routers. The gateway tells about it, and says when there is something to carry.
pub trait PeerTransport: Send + Sync {
    /// There is something that the others should know soon. Costs next to nothing: it is said with every request.
    fn notify(&self);

    /// How it goes now.
    fn stats(&self) -> TransportStats;
}

/// A transport in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransportStats {
    /// `mesh` or `redis`.
    pub transport: &'static str,
    /// Where others reach us, for a mesh.
    pub listening: Option<String>,
    /// Who is connected, and where.
    pub connected: Vec<(RouterId, String)>,
    /// Messages of others, and to others.
    pub messages: TrafficCounts,
    /// The same in bytes, with all that the transport adds.
    pub bytes: TrafficCounts,
    /// Messages that were dropped because there was no room, or nobody to take them.
    pub dropped: TrafficCounts,
    /// Strangers, forgeries, repetitions, and what was too large.
    pub refused: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// What was wrong, and how many seconds ago; the last one last.
    pub troubles: Vec<(String, f64)>,
}

/// A count of both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// To us.
    pub inward: u64,
    /// From us.
    pub outward: u64,
}
