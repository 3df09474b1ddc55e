//! Workers that a peer sends to, and which of them are not here.
//!
//! Routers know a worker by a hash of its address as it is written. Where two write it differently, nothing that one tells of it counts for
//! the other, and nobody would see why; so it is counted. A worker that joins a moment later here than there is none of those.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::Micros;

/// One that is not here for so long is not just late.
const LATE_MAX: Micros = Micros::from_secs(5);

/// One that was not named for so long is forgotten.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(60);

/// Workers of one peer that are remembered.
const NAMED_MAX: usize = 4_096;

/// What one peer names.
#[derive(Debug, Default)]
pub(crate) struct Named {
    workers: BTreeMap<u64, Naming>,
}

#[derive(Debug)]
struct Naming {
    last: Micros,
    /// Since when it has been missed here.
    missed_since: Option<Micros>,
}

impl Named {
    /// The peer has sent something to this worker.
    pub fn note(&mut self, worker: u64, now: Micros) {
        if let Some(naming) = self.workers.get_mut(&worker) {
            naming.last = now;
        } else if self.workers.len() < NAMED_MAX {
            self.workers.insert(worker, Naming { last: now, missed_since: None });
        }
    }

    /// These are here.
    pub fn compare(&mut self, members: &BTreeSet<u64>, now: Micros) {
        self.workers.retain(|_, naming| now.since(naming.last) < FORGOTTEN_AFTER);
        for (worker, naming) in &mut self.workers {
            let since = naming.missed_since.unwrap_or(now);
            naming.missed_since = (!members.contains(worker)).then_some(since);
        }
    }

    /// How many are not.
    pub fn unknown(&self, now: Micros) -> usize {
        let is_unknown = |since: Micros| now.since(since) >= LATE_MAX;
        self.workers.values().filter(|naming| naming.missed_since.is_some_and(is_unknown)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stays_away_is_counted_until_it_comes_or_is_not_named_any_more() {
        let mut named = Named::default();
        let at = Micros::from_secs;
        (1..=3).for_each(|worker| named.note(worker, at(1)));
        named.compare(&[1].into(), at(1));
        assert_eq!(named.unknown(at(5)), 0, "they may be late");
        named.compare(&[1, 2].into(), at(5));
        assert_eq!(named.unknown(at(6)), 1, "one was");
        named.compare(&[2].into(), at(7));
        assert_eq!(named.unknown(at(8)), 1, "one has just left");
        assert_eq!(named.unknown(at(12)), 2);
        named.note(3, at(30));
        named.compare(&[2].into(), at(61));
        assert_eq!(named.unknown(at(61)), 1, "only one is still sent to");
    }
}
