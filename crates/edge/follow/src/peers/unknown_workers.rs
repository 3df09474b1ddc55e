//! Warns when a peer spells workers' addresses differently. Without the warning, only missed cache hits would show
//! it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_peers::PeerStatus;
use warmroute_types::RouterId;

/// How often peers are checked.
pub const CHECK_EVERY: Duration = Duration::from_secs(5);

/// How long until the warning about the same peer is repeated.
const WARN_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// When each peer was last warned about.
#[derive(Debug)]
pub struct UnknownWorkers {
    checked: Instant,
    warned: BTreeMap<RouterId, Instant>,
}

impl UnknownWorkers {
    pub fn new(now: Instant) -> UnknownWorkers {
        UnknownWorkers { checked: now, warned: BTreeMap::new() }
    }

    /// Whether a check is due.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.checked) >= CHECK_EVERY;
        if is_due {
            self.checked = now;
        }
        is_due
    }

    /// The warnings to log now.
    pub fn warnings(&mut self, peers: &[PeerStatus], now: Instant) -> Vec<String> {
        self.warned.retain(|_, warned| now.duration_since(*warned) < WARN_AGAIN_AFTER);
        let unknown = peers.iter().filter(|peer| peer.unknown_workers > 0);
        let fresh: Vec<&PeerStatus> = unknown.filter(|peer| !self.warned.contains_key(&peer.id)).collect();
        self.warned.extend(fresh.iter().map(|peer| (peer.id, now)));
        fresh.into_iter().map(warning).collect()
    }
}

fn warning(peer: &PeerStatus) -> String {
    let workers = match peer.unknown_workers {
        1 => "1 worker that is".to_owned(),
        count => format!("{count} workers that are"),
    };
    format!(
        "router {} uses {workers} unknown here, so its updates about them are ignored. \
         Configure the same worker URLs, spelled alike, on all routers",
        peer.id
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::Micros;

    fn peer(id: u64, unknown_workers: usize) -> PeerStatus {
        PeerStatus {
            id: RouterId(id),
            known_for: Micros::ZERO,
            silent_for: Micros::ZERO,
            missing: 0,
            missing_for: Micros::ZERO,
            open: 0,
            failing: 0,
            unknown_workers,
            round_trip: None,
            protocol_version: 1,
        }
    }

    #[test]
    fn each_peer_is_warned_about_once_and_again_after_ten_minutes() {
        let now = Instant::now();
        let mut unknown = UnknownWorkers::new(now);
        assert!(!unknown.is_due(now) && unknown.is_due(now + CHECK_EVERY));
        assert!(!unknown.is_due(now + CHECK_EVERY), "it was checked at");
        let warned = unknown.warnings(&[peer(1, 0), peer(2, 3), peer(3, 1)], now);
        assert_eq!(warned.len(), 2);
        let begin = "router 0000000000000002 uses 3 workers that are unknown here, ";
        assert!(warned[0].starts_with(begin), "{}", warned[0]);
        assert!(warned[1].contains("1 worker that is unknown"), "{}", warned[1]);
        assert_eq!(unknown.warnings(&[peer(2, 4)], now + WARN_AGAIN_AFTER / 2).len(), 0);
        assert_eq!(unknown.warnings(&[peer(2, 4)], now + WARN_AGAIN_AFTER).len(), 1);
    }
}
