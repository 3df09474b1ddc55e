//! Workers that a peer uses, and how many of them are not in the local fleet.
//!
//! Routers identify a worker by a hash of its configured address. If two routers write the address
//! differently, they share nothing about that worker and no error shows it; so such workers are counted. A
//! worker that joins a few seconds later here than there is not counted.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::Micros;

/// A worker counts as unknown after this time; until then it may still join.
const JOIN_GRACE: Micros = Micros::from_secs(5);

/// A worker that the peer has not used for this long is forgotten.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(60);

/// Workers that are kept of one peer.
const WORKERS_MAX: usize = 4_096;

/// Workers that one peer uses.
#[derive(Debug, Default)]
pub(crate) struct PeerWorkers {
    workers: BTreeMap<u64, Mention>,
}

#[derive(Debug)]
struct Mention {
    last: Micros,
    /// Since when the local fleet lacks this worker.
    unknown_since: Option<Micros>,
}

impl PeerWorkers {
    /// Records that the peer sent a request to this worker.
    pub fn record(&mut self, worker: u64, now: Micros) {
        if let Some(mention) = self.workers.get_mut(&worker) {
            mention.last = now;
        } else if self.workers.len() < WORKERS_MAX {
            self.workers.insert(worker, Mention { last: now, unknown_since: None });
        }
    }

    /// Compares with the members of the local fleet.
    pub fn compare(&mut self, members: &BTreeSet<u64>, now: Micros) {
        self.workers.retain(|_, mention| now.since(mention.last) < FORGOTTEN_AFTER);
        for (worker, mention) in &mut self.workers {
            let since = mention.unknown_since.unwrap_or(now);
            mention.unknown_since = (!members.contains(worker)).then_some(since);
        }
    }

    /// Number of workers that are not in the local fleet.
    pub fn count_unknown(&self, now: Micros) -> usize {
        let is_unknown = |since: Micros| now.since(since) >= JOIN_GRACE;
        self.workers.values().filter(|mention| mention.unknown_since.is_some_and(is_unknown)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_worker_is_counted_until_it_joins_or_is_no_longer_used() {
        let mut workers = PeerWorkers::default();
        let at = Micros::from_secs;
        (1..=3).for_each(|worker| workers.record(worker, at(1)));
        workers.compare(&[1].into(), at(1));
        assert_eq!(workers.count_unknown(at(5)), 0, "they may be late");
        workers.compare(&[1, 2].into(), at(5));
        assert_eq!(workers.count_unknown(at(6)), 1, "one joined late");
        workers.compare(&[2].into(), at(7));
        assert_eq!(workers.count_unknown(at(8)), 1, "one has just left");
        assert_eq!(workers.count_unknown(at(12)), 2);
        workers.record(3, at(30));
        workers.compare(&[2].into(), at(61));
        assert_eq!(workers.count_unknown(at(61)), 1, "only one is still used");
    }
}
