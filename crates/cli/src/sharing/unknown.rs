//! Says once in plain words that another router writes workers' addresses differently: nothing else shows it, but hits that are missed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warmroute_peers::PeerStatus;
use warmroute_types::RouterId;

/// It is looked at this often,
pub const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// and said again of the same router no sooner than after this.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// What was said, of whom.
#[derive(Debug)]
pub struct Unknown {
    looked: Instant,
    said: BTreeMap<RouterId, Instant>,
}

impl Unknown {
    pub fn new(now: Instant) -> Unknown {
        Unknown { looked: now, said: BTreeMap::new() }
    }

    /// Whether it is time to look again.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.looked) >= LOOKED_AT_EVERY;
        if is_due {
            self.looked = now;
        }
        is_due
    }

    /// What is to be said now.
    pub fn warnings(&mut self, peers: &[PeerStatus], now: Instant) -> Vec<String> {
        self.said.retain(|_, said| now.duration_since(*said) < SAID_AGAIN_AFTER);
        let unknown = peers.iter().filter(|peer| peer.unknown_workers > 0);
        let fresh: Vec<&PeerStatus> = unknown.filter(|peer| !self.said.contains_key(&peer.id)).collect();
        self.said.extend(fresh.iter().map(|peer| (peer.id, now)));
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
    fn it_is_said_once_of_every_router_and_again_after_a_while() {
        let now = Instant::now();
        let mut unknown = Unknown::new(now);
        assert!(!unknown.is_due(now) && unknown.is_due(now + LOOKED_AT_EVERY));
        assert!(!unknown.is_due(now + LOOKED_AT_EVERY), "it was looked at");
        let said = unknown.warnings(&[peer(1, 0), peer(2, 3), peer(3, 1)], now);
        assert_eq!(said.len(), 2);
        let begin = "router 0000000000000002 uses 3 workers that are unknown here, ";
        assert!(said[0].starts_with(begin), "{}", said[0]);
        assert!(said[1].contains("1 worker that is unknown"), "{}", said[1]);
        assert_eq!(unknown.warnings(&[peer(2, 4)], now + SAID_AGAIN_AFTER / 2).len(), 0);
        assert_eq!(unknown.warnings(&[peer(2, 4)], now + SAID_AGAIN_AFTER).len(), 1);
    }
}
