//! How a transport goes: who is there, what went through, what was wrong last.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use warmroute_types::RouterId;

/// Another router that is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it says that it can be reached; by Redis, that server.
    pub address: String,
    /// Since when it has been heard without a break.
    pub since: Instant,
    /// The version of the wire that it is spoken to in.
    pub version: u8,
}

/// What went wrong last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In plain words.
    pub text: String,
    /// When it was last so.
    pub at: Instant,
}

/// What went through since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages handed on to whoever shares.
    pub messages_in: u64,
    /// Messages sent, counted once for each router (mesh) or once for all (Redis).
    pub messages_out: u64,
    /// Bytes read, with all that the transport adds, without TLS.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Messages that came and were dropped, the oldest first, because nobody took them.
    pub dropped_in: u64,
    /// Messages that were to go out and were dropped: buffers were full, the oldest first, or their router was not there.
    pub dropped_out: u64,
    /// Connections and messages of strangers, forgeries, repetitions, and what was too large.
    pub refused: u64,
    /// Connections that were made again after they had been lost.
    pub reconnects: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub messages_in: AtomicU64,
    pub messages_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub dropped_in: AtomicU64,
    pub dropped_out: AtomicU64,
    pub refused: AtomicU64,
    pub reconnects: AtomicU64,
}

/// How a transport goes. Reading it costs the transport nothing.
#[derive(Debug)]
pub struct Status {
    me: RouterId,
    listening: Option<SocketAddr>,
    counts: Counts,
    peers: watch::Sender<Arc<BTreeMap<RouterId, Peer>>>,
    troubles: Mutex<VecDeque<Told>>,
}

/// A trouble, and when it was logged.
#[derive(Debug)]
struct Told {
    trouble: Trouble,
    logged_at: Instant,
}

/// So many are told apart; others are logged as if they were new.
const TROUBLES_MAX: usize = 32;

/// The same trouble is logged so often.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl Status {
    pub(crate) fn new(me: RouterId, listening: Option<SocketAddr>) -> Status {
        let peers = watch::Sender::new(Arc::default());
        Status { me, listening, counts: Counts::default(), peers, troubles: Mutex::default() }
    }

    /// Our own number.
    pub fn me(&self) -> RouterId {
        self.me
    }

    /// Where we listen, for a mesh.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listening
    }

    /// Who is there now.
    pub fn peers(&self) -> Arc<BTreeMap<RouterId, Peer>> {
        Arc::clone(&self.peers.borrow())
    }

    /// The same, and to be told when it changes.
    pub fn watch_peers(&self) -> watch::Receiver<Arc<BTreeMap<RouterId, Peer>>> {
        self.peers.subscribe()
    }

    /// What went through.
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

    /// What was wrong last, be it over or not.
    pub fn trouble(&self) -> Option<Trouble> {
        self.troubles.lock().back().map(|told| told.trouble.clone())
    }

    /// What was wrong lately, each once, the last at the end; a few dozen at most.
    pub fn troubles(&self) -> Vec<Trouble> {
        self.troubles.lock().iter().map(|told| told.trouble.clone()).collect()
    }

    pub(crate) fn count(&self, which: impl Fn(&Counts) -> &AtomicU64, by: u64) {
        if by > 0 {
            which(&self.counts).fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn present(&self, router: RouterId, peer: Peer) {
        tracing::info!(%router, address = peer.address, version = peer.version, "a router is there");
        self.peers.send_modify(|peers| _ = Arc::make_mut(peers).insert(router, peer));
    }

    pub(crate) fn gone(&self, router: RouterId, why: &str) {
        let removed =
            |peers: &mut Arc<BTreeMap<RouterId, Peer>>| Arc::make_mut(peers).remove(&router).is_some();
        if self.peers.send_if_modified(removed) {
            tracing::info!(%router, why, "a router is gone");
        }
    }

    /// Remembered as the last one, and logged when it is new, not each time that a try fails the same way.
    pub(crate) fn troubled(&self, text: String) {
        let now = Instant::now();
        let mut troubles = self.troubles.lock();
        let known = troubles.iter().position(|told| told.trouble.text == text);
        let logged_at = known.and_then(|place| troubles.remove(place)).map(|told| told.logged_at);
        let logged_at = logged_at.filter(|at| now.duration_since(*at) < TELL_AGAIN_AFTER);
        if logged_at.is_none() {
            tracing::warn!(trouble = text, "sharing with other routers");
        }
        troubles.push_back(Told { trouble: Trouble { text, at: now }, logged_at: logged_at.unwrap_or(now) });
        if troubles.len() > TROUBLES_MAX {
            troubles.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_trouble_is_told_and_many_do_not_pile_up() {
        let status = Status::new(RouterId(1), None);
        for number in 0..TROUBLES_MAX * 3 {
            status.troubled(format!("trouble {number}"));
        }
        status.troubled("trouble 90".to_owned());
        assert_eq!(status.trouble().unwrap().text, "trouble 90");
        assert_eq!(status.troubles.lock().len(), TROUBLES_MAX);
    }
}
