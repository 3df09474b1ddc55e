//! Status of a transport: connected peers, traffic and recent problems.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use warmroute_types::RouterId;

/// A connected router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedPeer {
    /// The address that it advertises; by Redis, the server's.
    pub address: String,
    /// Since when it has been connected without a break.
    pub since: Instant,
    /// The transport version that both sides use.
    pub version: u8,
}

/// A problem of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What happened, why, and what to do.
    pub text: String,
    /// When it last occurred.
    pub at: Instant,
}

/// Traffic since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages delivered to the sharing router.
    pub messages_in: u64,
    /// Messages sent, counted once per router (mesh) or once for all (Redis).
    pub messages_out: u64,
    /// Bytes read, including the transport's overhead but not TLS.
    pub bytes_in: u64,
    /// Bytes written, counted in the same way.
    pub bytes_out: u64,
    /// Received messages that were dropped, oldest first, because the inbox was full.
    pub dropped_in: u64,
    /// Outgoing messages that were dropped: the queue was full (oldest first), or the receiver was not
    /// connected.
    pub dropped_out: u64,
    /// Rejected connections and messages: unauthenticated, forged, repeated or too large.
    pub refused: u64,
    /// Connections that were restored after a loss.
    pub reconnects: u64,
}

#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    pub messages_in: AtomicU64,
    pub messages_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub dropped_in: AtomicU64,
    pub dropped_out: AtomicU64,
    pub refused: AtomicU64,
    pub reconnects: AtomicU64,
}

/// Status of a transport. Reading it does not block the transport.
#[derive(Debug)]
pub struct TransportStatus {
    me: RouterId,
    listening: Option<SocketAddr>,
    counts: TrafficCounters,
    peers: watch::Sender<Arc<BTreeMap<RouterId, ConnectedPeer>>>,
    problems: Mutex<VecDeque<LoggedProblem>>,
}

/// A problem and when it was last logged.
#[derive(Debug)]
struct LoggedProblem {
    problem: Problem,
    logged_at: Instant,
}

/// Problems that are remembered; a forgotten one is logged again.
const PROBLEMS_MAX: usize = 32;

/// The same problem is logged again after this time.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl TransportStatus {
    pub(crate) fn new(me: RouterId, listening: Option<SocketAddr>) -> TransportStatus {
        let peers = watch::Sender::new(Arc::default());
        TransportStatus {
            me,
            listening,
            counts: TrafficCounters::default(),
            peers,
            problems: Mutex::default(),
        }
    }

    /// This router's id.
    pub fn me(&self) -> RouterId {
        self.me
    }

    /// The listening address of a mesh.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listening
    }

    /// Peers whose connection has passed the handshake.
    pub fn peers(&self) -> Arc<BTreeMap<RouterId, ConnectedPeer>> {
        Arc::clone(&self.peers.borrow())
    }

    /// The connected peers, with notification of changes.
    pub fn watch_peers(&self) -> watch::Receiver<Arc<BTreeMap<RouterId, ConnectedPeer>>> {
        self.peers.subscribe()
    }

    /// Traffic counters.
    pub fn traffic(&self) -> Traffic {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        Traffic {
            messages_in: read(&counts.messages_in),
            messages_out: read(&counts.messages_out),
            bytes_in: read(&counts.bytes_in),
            bytes_out: read(&counts.bytes_out),
            dropped_in: read(&counts.dropped_in),
            dropped_out: read(&counts.dropped_out),
            refused: read(&counts.refused),
            reconnects: read(&counts.reconnects),
        }
    }

    /// The last problem, whether or not it persists.
    pub fn problem(&self) -> Option<Problem> {
        self.problems.lock().back().map(|logged| logged.problem.clone())
    }

    /// Recent problems, each once, the last at the end; at most a few dozen.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().iter().map(|logged| logged.problem.clone()).collect()
    }

    pub(crate) fn count(&self, which: impl Fn(&TrafficCounters) -> &AtomicU64, by: u64) {
        if by > 0 {
            which(&self.counts).fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_peer(&self, router: RouterId, peer: ConnectedPeer) {
        tracing::info!(%router, address = peer.address, version = peer.version, "router connected");
        self.peers.send_modify(|peers| _ = Arc::make_mut(peers).insert(router, peer));
    }

    pub(crate) fn remove_peer(&self, router: RouterId, why: &str) {
        let removed = |peers: &mut Arc<BTreeMap<RouterId, ConnectedPeer>>| {
            Arc::make_mut(peers).remove(&router).is_some()
        };
        if self.peers.send_if_modified(removed) {
            tracing::info!(%router, why, "router disconnected");
        }
    }

    /// Records a problem. It is logged when it is new, not at each attempt that fails in the same way.
    pub(crate) fn report_problem(&self, text: String) {
        let now = Instant::now();
        let mut problems = self.problems.lock();
        let known = problems.iter().position(|logged| logged.problem.text == text);
        let logged_at = known.and_then(|place| problems.remove(place)).map(|logged| logged.logged_at);
        let logged_at = logged_at.filter(|at| now.duration_since(*at) < LOG_AGAIN_AFTER);
        if logged_at.is_none() {
            tracing::warn!(trouble = text, "sharing with other routers");
        }
        problems.push_back(LoggedProblem {
            problem: Problem { text, at: now },
            logged_at: logged_at.unwrap_or(now),
        });
        if problems.len() > PROBLEMS_MAX {
            problems.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_problem_is_shown_and_memory_is_bounded() {
        let status = TransportStatus::new(RouterId(1), None);
        for number in 0..PROBLEMS_MAX * 3 {
            status.report_problem(format!("trouble {number}"));
        }
        status.report_problem("trouble 90".to_owned());
        assert_eq!(status.problem().unwrap().text, "trouble 90");
        assert_eq!(status.problems.lock().len(), PROBLEMS_MAX);
    }
}
