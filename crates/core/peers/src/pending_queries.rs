//! Queries to peers, and the parts of their answers that have arrived.
//!
//! ```text
//! Query 7: part 0         ──▶          the answer time is unknown: one part is enough to measure it
//!                         ◀── part 0 of 60
//! Query 7: parts 1 to 8   ──▶          from now on 8 parts are in flight, and each that arrives requests the next
//! ```
//!
//! A peer sends only requested parts, and a part is requested again only after the answer is overdue. So a long answer
//! fills no queue, and batches pass between its parts. Urgent queries go first.

use std::collections::BTreeMap;

use warmroute_types::{Micros, RouterId};

use crate::answer_parts::{AnswerPart, PartialAnswer, Progress};
use crate::query::{PARTS_IN_FLIGHT_MAX, Query, QueryKind};
use crate::round_trip::RoundTripEstimate;

/// Queries that are not answered completely.
#[derive(Debug, Default)]
pub(crate) struct PendingQueries {
    last_id: u64,
    open: BTreeMap<u64, OpenQuery>,
}

#[derive(Debug)]
struct OpenQuery {
    peer: RouterId,
    kind: QueryKind,
    parts: PartialAnswer,
    /// Requested parts, and when they were requested.
    in_flight: BTreeMap<u32, Micros>,
    /// When a part last arrived, or when the query was opened.
    last_received: Micros,
    /// Timeouts since the last part arrived.
    timeouts: u32,
}

impl PendingQueries {
    /// Opens a query and returns its id.
    pub fn open(&mut self, peer: RouterId, kind: QueryKind, now: Micros) -> u64 {
        self.last_id += 1;
        let (parts, in_flight) = (PartialAnswer::default(), BTreeMap::new());
        self.open.insert(
            self.last_id,
            OpenQuery { peer, kind, parts, in_flight, last_received: now, timeouts: 0 },
        );
        self.last_id
    }

    /// Whether no query is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Forgets a query: a late answer is ignored.
    pub fn cancel(&mut self, query_id: u64) {
        self.open.remove(&query_id);
    }

    /// Whether no part arrived within `timeout`, or the query is no longer open.
    pub fn is_stalled(&self, query_id: u64, timeout: Micros, now: Micros) -> bool {
        self.open.get(&query_id).is_none_or(|open| now.since(open.last_received) >= timeout)
    }

    /// Queries to send now, with their receivers.
    pub fn compose(
        &mut self,
        estimate_of: impl Fn(RouterId) -> RoundTripEstimate,
        now: Micros,
    ) -> Vec<(RouterId, Query)> {
        self.open.values_mut().for_each(|open| open.expire_late(estimate_of(open.peer), now));
        let mut in_order: Vec<(&u64, &mut OpenQuery)> = self.open.iter_mut().collect();
        in_order.sort_by_key(|(_, open)| open.kind.rank());
        // Parts in flight to each peer for more urgent queries.
        let mut busy = BTreeMap::<RouterId, usize>::new();
        let mut due = Vec::new();
        for (&query_id, open) in in_order {
            let busy = busy.entry(open.peer).or_default();
            let room = PARTS_IN_FLIGHT_MAX.saturating_sub(*busy + open.in_flight.len());
            let parts = open.next_parts(estimate_of(open.peer), room, now);
            *busy += open.in_flight.len();
            if !parts.is_empty() {
                let kind = open.kind.clone();
                due.push((open.peer, Query { id: query_id, asked_at_us: now.0, kind, parts }));
            }
        }
        due
    }

    /// Accepts a part; returns the complete answer when it was the last one.
    pub fn accept_part(
        &mut self,
        from: RouterId,
        part: AnswerPart,
        bytes: Vec<u8>,
        now: Micros,
    ) -> Option<(QueryKind, Vec<u8>)> {
        let open = self.open.get_mut(&part.query_id).filter(|open| open.peer == from)?;
        let progress = open.add_part(part, bytes, now);
        match progress {
            Progress::Incomplete => None,
            // An answer that is too large counts as empty, because it would be the same if queried again.
            Progress::TooLarge => self.open.remove(&part.query_id).map(|open| (open.kind, Vec::new())),
            Progress::Complete(bytes) => self.open.remove(&part.query_id).map(|open| (open.kind, bytes)),
        }
    }
}

impl OpenQuery {
    /// Parts that are overdue are no longer in flight.
    fn expire_late(&mut self, estimate: RoundTripEstimate, now: Micros) {
        let (timeout, before) = (estimate.retry_after(self.timeouts), self.in_flight.len());
        self.in_flight.retain(|_, requested| now.since(*requested) < timeout);
        self.timeouts += u32::from(self.in_flight.len() < before);
    }

    /// The next parts to request. Only one at a time while the answer time is unknown or parts time out.
    fn next_parts(&mut self, estimate: RoundTripEstimate, room: usize, now: Micros) -> Vec<u32> {
        let is_steady = estimate.smoothed().is_some() && self.timeouts == 0;
        let window = if is_steady { PARTS_IN_FLIGHT_MAX } else { 1 };
        let room = room.min(window.saturating_sub(self.in_flight.len()));
        let is_unrequested = |index: &u32| !self.in_flight.contains_key(index);
        let parts: Vec<u32> = self.parts.missing().filter(is_unrequested).take(room).collect();
        self.in_flight.extend(parts.iter().map(|&index| (index, now)));
        parts
    }

    fn add_part(&mut self, part: AnswerPart, bytes: Vec<u8>, now: Micros) -> Progress {
        (self.last_received, self.timeouts) = (now, 0);
        self.in_flight.remove(&part.index);
        let progress = self.parts.add(part, bytes);
        self.in_flight.retain(|&index, _| self.parts.may_contain(index));
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: RouterId = RouterId(2);

    fn part(index: u32, count: u32) -> AnswerPart {
        AnswerPart { query_id: 1, asked_at_us: 0, answer_id: 1, index, count }
    }

    fn parts(due: &[(RouterId, Query)]) -> Vec<u32> {
        due.iter().flat_map(|(_, query)| query.parts.iter().copied()).collect()
    }

    fn measured() -> RoundTripEstimate {
        let mut estimate = RoundTripEstimate::default();
        (0..40).for_each(|_| estimate.record(Micros::from_millis(100)));
        estimate
    }

    #[test]
    fn one_part_is_queried_first_and_then_a_window() {
        let mut queries = PendingQueries::default();
        let query_id = queries.open(OTHER, QueryKind::Snapshot, Micros(0));
        let query_parts = |queries: &mut PendingQueries, estimate, index| {
            parts(&queries.compose(|_| estimate, Micros(index)))
        };
        assert_eq!(query_parts(&mut queries, RoundTripEstimate::default(), 1), [0]);
        assert_eq!(query_parts(&mut queries, RoundTripEstimate::default(), 2), [0_u32; 0], "it is in flight");
        assert_eq!(queries.accept_part(OTHER, part(0, 20), vec![0], Micros(3)), None);
        assert_eq!(query_parts(&mut queries, measured(), 4), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(queries.accept_part(OTHER, part(2, 20), vec![2], Micros(5)), None);
        assert_eq!(queries.accept_part(OTHER, part(2, 20), vec![2], Micros(5)), None, "repeated");
        assert_eq!(query_parts(&mut queries, measured(), 6), [9], "one arrived, one is queried");
        assert_eq!(query_parts(&mut queries, measured(), 1_000_000), [1], "after timeouts one at a time");
        let is_stalled =
            |queries: &PendingQueries, long| queries.is_stalled(query_id, Micros(long), Micros(9));
        assert!(is_stalled(&queries, 4) && !is_stalled(&queries, 5));
        assert_eq!(
            queries.accept_part(RouterId(3), part(1, 20), vec![1], Micros(7)),
            None,
            "from another peer"
        );
        for index in (0..20).filter(|&index| index != 2 && index != 0 && index != 19) {
            assert_eq!(queries.accept_part(OTHER, part(index, 20), vec![index as u8], Micros(8)), None);
        }
        let whole = queries.accept_part(OTHER, part(19, 20), vec![19], Micros(9));
        assert_eq!(whole, Some((QueryKind::Snapshot, (0..20).collect())));
        assert!(is_stalled(&queries, u64::MAX), "the query is complete");
    }

    #[test]
    fn queries_to_one_peer_share_its_window() {
        let mut queries = PendingQueries::default();
        queries.open(OTHER, QueryKind::Snapshot, Micros(0));
        queries.open(OTHER, QueryKind::Snapshot, Micros(0));
        queries.open(RouterId(3), QueryKind::Snapshot, Micros(0));
        let due = queries.compose(|_| measured(), Micros(1));
        assert_eq!(due.iter().map(|(peer, _)| peer.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(
            queries.accept_part(OTHER, part(0, 1), vec![0], Micros(2)),
            Some((QueryKind::Snapshot, vec![0]))
        );
        let due = queries.compose(|_| measured(), Micros(3));
        assert_eq!((due.len(), due[0].1.id), (1, 2), "now the second query");
        let urgent = queries.open(OTHER, QueryKind::Batches(vec![1..=2]), Micros(4));
        let due = queries.compose(|_| measured(), Micros(5));
        assert_eq!((due.len(), due[0].1.id), (1, urgent), "batches go before snapshots");
    }
}
