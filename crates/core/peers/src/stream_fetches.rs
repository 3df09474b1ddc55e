//! Fetches missing parts of engines' event streams from peers.
//!
//! Each worker has at most one fetch, the last one that its feed requested. Late batches get a moment to
//! arrive; then the peer that is known to have more is queried, and another one if it does not answer. Few
//! fetches run at a time, because answers may be large.

use std::collections::BTreeMap;

use warmroute_types::{Micros, RouterId};

use crate::RelayedBatch;
use crate::pending_queries::PendingQueries;
use crate::query::{QueryKind, StreamRange};
use crate::round_trip::RoundTripEstimate;

/// Workers whose streams are fetched at the same time.
const CONCURRENT_MAX: usize = 8;

/// Without a part of the answer for this long, another peer is queried. Peers that are known to be slow get
/// twice their retry time.
const ANSWER_TIMEOUT: Micros = Micros::from_millis(500);

/// Queries per fetch.
const TRIES_MAX: u32 = 3;

/// Fetches by worker.
#[derive(Debug, Default)]
pub(crate) struct StreamFetches {
    open: BTreeMap<u64, Fetch>,
}

#[derive(Debug)]
struct Fetch {
    range: StreamRange,
    from: Option<RouterId>,
    /// When the first query is due.
    due: Micros,
    tries: u32,
    /// The last queried peer and the query's id.
    query: Option<(RouterId, u64)>,
}

/// The connected peers with their answer times, and the current time.
pub(crate) struct PeersNow<'a> {
    pub answer_times: &'a BTreeMap<RouterId, RoundTripEstimate>,
    pub now: Micros,
}

impl StreamFetches {
    /// Starts a fetch; it replaces an earlier one of the same worker.
    pub fn start(
        &mut self,
        range: StreamRange,
        from: Option<RouterId>,
        due: Micros,
        queries: &mut PendingQueries,
    ) {
        self.cancel(range.worker, queries);
        self.open.insert(range.worker, Fetch { range, from, due, tries: 0, query: None });
    }

    /// Cancels a fetch, because the events arrived or are no longer needed.
    pub fn cancel(&mut self, worker: u64, queries: &mut PendingQueries) {
        let query = self.open.remove(&worker).and_then(|fetch| fetch.query);
        query.into_iter().for_each(|(_, query_id)| queries.cancel(query_id));
    }

    /// Sends the queries that are due; returns their number.
    pub fn query_due(&mut self, peers_now: &PeersNow<'_>, queries: &mut PendingQueries) -> u64 {
        let is_running = |fetch: &&Fetch| fetch.query.is_some() && !fetch.is_due(peers_now, queries);
        let mut room = CONCURRENT_MAX.saturating_sub(self.open.values().filter(is_running).count());
        let mut opened = 0;
        for fetch in self.open.values_mut() {
            let has_failed = fetch.tries >= TRIES_MAX || peers_now.answer_times.is_empty();
            if room > 0 && !has_failed && fetch.is_due(peers_now, queries) {
                fetch.query_next(peers_now, queries);
                (room, opened) = (room - 1, opened + 1);
            }
        }
        opened
    }

    /// Removes and returns the workers whose fetches no peer answered.
    pub fn take_failed(&mut self, peers_now: &PeersNow<'_>, queries: &mut PendingQueries) -> Vec<u64> {
        let is_last = |fetch: &Fetch| fetch.tries >= TRIES_MAX || peers_now.answer_times.is_empty();
        let has_failed = |fetch: &Fetch| is_last(fetch) && fetch.is_due(peers_now, queries);
        let failed: Vec<u64> =
            self.open.iter().filter(|(_, fetch)| has_failed(fetch)).map(|(&id, _)| id).collect();
        failed.iter().for_each(|worker| self.cancel(*worker, queries));
        failed
    }

    /// Accepts an answer. If it is empty, another peer is queried.
    pub fn accept(
        &mut self,
        worker: u64,
        bytes: &[u8],
        queries: &mut PendingQueries,
    ) -> Option<Vec<RelayedBatch>> {
        let fetch = self.open.get(&worker)?;
        let batches = RelayedBatch::read_all(bytes).unwrap_or_default();
        if batches.is_empty() && fetch.tries < TRIES_MAX {
            return None;
        }
        self.cancel(worker, queries);
        Some(batches)
    }
}

impl Fetch {
    fn is_due(&self, peers_now: &PeersNow<'_>, queries: &PendingQueries) -> bool {
        let Some((from, query_id)) = self.query else { return peers_now.now >= self.due };
        let is_stalled = |estimate: &RoundTripEstimate| {
            let timeout = ANSWER_TIMEOUT.max(Micros(2 * estimate.retry_after(0).0));
            queries.is_stalled(query_id, timeout, peers_now.now)
        };
        peers_now.answer_times.get(&from).is_none_or(is_stalled)
    }

    /// Queries the peer that is known to have the events first, then the others in turn.
    fn query_next(&mut self, peers_now: &PeersNow<'_>, queries: &mut PendingQueries) {
        let peers: Vec<RouterId> = peers_now.answer_times.keys().copied().collect();
        let last = self.query.take();
        last.iter().for_each(|(_, query_id)| queries.cancel(*query_id));
        let known = self.from.take().filter(|from| peers_now.answer_times.contains_key(from));
        let turn = (self.range.worker as usize).wrapping_add(self.tries as usize) % peers.len();
        let is_another = |other: &&RouterId| last.is_none_or(|(from, _)| from != **other);
        let next = peers.iter().cycle().skip(turn).take(2).find(is_another);
        let from = known.or(next.copied()).unwrap_or(peers[turn]);
        self.query = Some((from, queries.open(from, QueryKind::Replay(self.range), peers_now.now)));
        self.tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_parts::AnswerPart;
    use crate::{Query, RelayedBatchKind};

    const RANGE: StreamRange = StreamRange { worker: 5, source: 1, from_seq: 3 };

    fn routers(count: u64) -> BTreeMap<RouterId, RoundTripEstimate> {
        (1..=count).map(|id| (RouterId(id), RoundTripEstimate::default())).collect()
    }

    /// Queries that are due, with their receivers.
    fn query_due(
        fetches: &mut StreamFetches,
        queries: &mut PendingQueries,
        peers: &BTreeMap<RouterId, RoundTripEstimate>,
        now: u64,
    ) -> Vec<(u64, Query)> {
        let peers_now = PeersNow { answer_times: peers, now: Micros(now) };
        fetches.query_due(&peers_now, queries);
        let due = queries.compose(|_| RoundTripEstimate::default(), Micros(now));
        due.into_iter().map(|(from, query)| (from.0, query)).collect()
    }

    #[test]
    fn the_known_holder_is_queried_first_then_others_up_to_a_limit() {
        let (mut fetches, mut queries, peers) =
            (StreamFetches::default(), PendingQueries::default(), routers(3));
        fetches.start(RANGE, Some(RouterId(3)), Micros(100), &mut queries);
        assert_eq!(query_due(&mut fetches, &mut queries, &peers, 99), [], "it may only be late");
        let (mut queried, mut now) = (Vec::new(), 100);
        while fetches
            .take_failed(&PeersNow { answer_times: &peers, now: Micros(now) }, &mut queries)
            .is_empty()
        {
            queried
                .extend(query_due(&mut fetches, &mut queries, &peers, now).into_iter().map(|(from, _)| from));
            now += ANSWER_TIMEOUT.0;
        }
        assert_eq!((queried.len(), queried[0]), (TRIES_MAX as usize, 3));
        assert!(queried.windows(2).all(|pair| pair[0] != pair[1]), "{queried:?}");
        assert!(
            queries.compose(|_| RoundTripEstimate::default(), Micros(now)).is_empty(),
            "no query is left"
        );
    }

    #[test]
    fn a_slow_peer_gets_more_time_and_a_lost_peer_none() {
        let (mut fetches, mut queries, mut peers) =
            (StreamFetches::default(), PendingQueries::default(), routers(2));
        peers.get_mut(&RouterId(1)).unwrap().record(Micros::from_millis(900));
        fetches.start(RANGE, Some(RouterId(1)), Micros(0), &mut queries);
        assert_eq!(query_due(&mut fetches, &mut queries, &peers, 1)[0].0, 1);
        let queried = query_due(&mut fetches, &mut queries, &peers, 1_400_000);
        assert!(queried.iter().all(|(from, _)| *from == 1), "still the same peer");
        peers.remove(&RouterId(1));
        assert_eq!(query_due(&mut fetches, &mut queries, &peers, 1_400_001)[0].0, 2);
    }

    #[test]
    fn an_empty_answer_leads_to_another_peer() {
        let batch = RelayedBatch {
            worker: 5,
            source: 1,
            seq: 3,
            kind: RelayedBatchKind::Snapshot,
            bytes: [7; 99].into(),
        };
        let bytes = RelayedBatch::write_all(std::slice::from_ref(&batch));
        let (mut fetches, mut queries, peers) =
            (StreamFetches::default(), PendingQueries::default(), routers(2));
        fetches.start(RANGE, Some(RouterId(1)), Micros(0), &mut queries);
        let (from, query) = query_due(&mut fetches, &mut queries, &peers, 1).remove(0);
        assert_eq!((from, &query.kind), (1, &QueryKind::Replay(RANGE)));
        let part = AnswerPart { query_id: query.id, asked_at_us: 1, answer_id: 1, index: 0, count: 1 };
        assert!(queries.accept_part(RouterId(1), part, Vec::new(), Micros(2)).is_some());
        assert_eq!(fetches.accept(5, &[], &mut queries), None);
        assert_eq!(query_due(&mut fetches, &mut queries, &peers, 3)[0].0, 2);
        assert_eq!(fetches.accept(5, &bytes, &mut queries), Some(vec![batch]));
        assert!(fetches.open.is_empty());
    }

    #[test]
    fn concurrent_fetches_are_limited() {
        let (mut fetches, mut queries, peers) =
            (StreamFetches::default(), PendingQueries::default(), routers(2));
        let range = |worker| StreamRange { worker, ..RANGE };
        (0..20).for_each(|worker| fetches.start(range(worker), None, Micros(0), &mut queries));
        let mut query =
            |now| fetches.query_due(&PeersNow { answer_times: &peers, now: Micros(now) }, &mut queries);
        assert_eq!((query(1), query(2)), (CONCURRENT_MAX as u64, 0));
        let no_peers = PeersNow { answer_times: &BTreeMap::new(), now: Micros(3) };
        assert_eq!(fetches.take_failed(&no_peers, &mut queries).len(), 20, "no peers");
    }
}
