//! Fetches the presumed cache contents of a peer, after a start or after a gap that batches no longer cover.
//!
//! A snapshot may take many megabytes and is useful but not required. So one peer is queried a few times, and
//! another one if the first leaves, stalls or has nothing. The peer that sent most batches goes first:
//! routers that start together know little.

use std::cmp::Reverse;

use warmroute_types::{Micros, RouterId};

use crate::answer_cache::SNAPSHOT_SHARED_FOR;
use crate::pending_queries::PendingQueries;
use crate::query::QueryKind;

/// Without a part of the answer for this long, the next peer is queried.
const ANSWER_TIMEOUT: Micros = Micros::from_secs(3);

/// Queries in all.
const TRIES_MAX: u32 = 5;

/// Peers that are remembered as possible sources.
const SOURCES_MAX: usize = 8;

/// After a snapshot arrived, no other is fetched for this time.
const FRESH_FOR: Micros = Micros::from_secs(10);

/// Exception: a peer that sent this many times as many batches as the last source.
const FAR_MORE_FACTOR: u64 = 2;

/// The search for a snapshot, and the last one that arrived.
#[derive(Debug, Default)]
pub(crate) struct SnapshotFetch {
    search: Option<Search>,
    /// When the last snapshot arrived, and how many batches its source had sent.
    last_received: Option<(Micros, u64)>,
}

#[derive(Debug, Default)]
struct Search {
    /// Peers that have a history, in the order in which they were met.
    sources: Vec<SnapshotSource>,
    query: Option<SnapshotQuery>,
    tries: u32,
}

#[derive(Clone, Copy, Debug)]
struct SnapshotSource {
    router: RouterId,
    /// Batches that it had sent when it was met.
    batches_sent: u64,
    tries: u32,
}

/// The open query.
#[derive(Clone, Copy, Debug)]
struct SnapshotQuery {
    from: RouterId,
    query_id: u64,
    at: Micros,
}

impl SnapshotFetch {
    /// Adds a peer that has a history of this many batches. One source is enough, because long-running peers
    /// share their state; the others are kept in case it leaves or stalls.
    pub fn add_source(&mut self, from: RouterId, batches_sent: u64, now: Micros) {
        let is_fresh = |&(at, least): &(Micros, u64)| {
            now.since(at) < FRESH_FOR && batches_sent <= least.saturating_mul(FAR_MORE_FACTOR)
        };
        if self.last_received.as_ref().is_some_and(is_fresh) {
            return;
        }
        let sources = &mut self.search.get_or_insert_default().sources;
        sources.retain(|source| source.router != from);
        sources.push(SnapshotSource { router: from, batches_sent, tries: 0 });
        if sources.len() > SOURCES_MAX
            && let Some((least, _)) = sources.iter().enumerate().min_by_key(|(_, source)| source.batches_sent)
        {
            sources.remove(least);
        }
    }

    /// Queries the next source if none is answering.
    pub fn query_next(
        &mut self,
        is_connected: impl Fn(RouterId) -> bool,
        now: Micros,
        queries: &mut PendingQueries,
    ) {
        let Some(search) = &mut self.search else { return };
        let is_answering = |query: &SnapshotQuery| {
            is_connected(query.from) && !queries.is_stalled(query.query_id, ANSWER_TIMEOUT, now)
        };
        if search.query.as_ref().is_some_and(is_answering) {
            return;
        }
        search.query.take().into_iter().for_each(|query| queries.cancel(query.query_id));
        search.sources.retain(|source| is_connected(source.router));
        match search.next().filter(|_| search.tries < TRIES_MAX) {
            Some(from) => {
                let query_id = queries.open(from, QueryKind::Snapshot, now);
                search.query = Some(SnapshotQuery { from, query_id, at: now });
                search.note_try(from);
            }
            // A peer that joins later starts a new search.
            None => self.search = None,
        }
    }

    /// Accepts an answer; returns it with an upper bound of its age. If it is empty, the next source is
    /// queried.
    pub fn accept(&mut self, bytes: Vec<u8>, now: Micros) -> Option<(Vec<u8>, Micros)> {
        let search = self.search.as_mut()?;
        let query = search.query.take()?;
        let batches_sent = search
            .sources
            .iter()
            .find(|source| source.router == query.from)
            .map_or(0, |source| source.batches_sent);
        let least = if bytes.is_empty() { 0 } else { batches_sent.saturating_mul(FAR_MORE_FACTOR) };
        search.sources.retain(|source| source.router != query.from && source.batches_sent > least);
        if search.sources.is_empty() {
            self.search = None;
        }
        if bytes.is_empty() {
            return None;
        }
        self.last_received = Some((now, batches_sent));
        // The snapshot may have been composed for an earlier query of another router.
        Some((bytes, now.since(query.at) + SNAPSHOT_SHARED_FOR))
    }
}

impl Search {
    /// The least queried source; among equals the one that sent most batches.
    fn next(&self) -> Option<RouterId> {
        let first = self.sources.iter().min_by_key(|source| (source.tries, Reverse(source.batches_sent)));
        first.map(|source| source.router)
    }

    fn note_try(&mut self, from: RouterId) {
        self.tries += 1;
        self.sources.iter_mut().filter(|source| source.router == from).for_each(|source| source.tries += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnswerPart;
    use crate::round_trip::RoundTripEstimate;

    /// Router and query id of a new query, if one is opened.
    fn opened_query(
        fetch: &mut SnapshotFetch,
        queries: &mut PendingQueries,
        disconnected: u64,
        at_ms: u64,
    ) -> Option<(u64, u64)> {
        let now = Micros::from_millis(at_ms);
        let query_id =
            |fetch: &SnapshotFetch| fetch.search.as_ref()?.query.map(|query| (query.from.0, query.query_id));
        let before = query_id(fetch);
        fetch.query_next(|router| router != RouterId(disconnected), now, queries);
        queries.compose(|_| RoundTripEstimate::default(), now);
        query_id(fetch).filter(|after| before != Some(*after))
    }

    #[test]
    fn queries_are_limited_and_skip_disconnected_peers() {
        let (mut fetch, mut queries, at) =
            (SnapshotFetch::default(), PendingQueries::default(), Micros::from_secs);
        fetch.add_source(RouterId(2), 9, Micros(1));
        let times =
            (0..100).filter(|at| opened_query(&mut fetch, &mut queries, 0, at * 1_000).is_some()).count();
        assert_eq!(times, TRIES_MAX as usize);
        fetch.add_source(RouterId(2), 9, at(200));
        assert_eq!(opened_query(&mut fetch, &mut queries, 2, 200_000), None);
        fetch.add_source(RouterId(3), 9, at(201));
        assert_eq!(opened_query(&mut fetch, &mut queries, 2, 201_000).map(|(from, _)| from), Some(3));
        assert_eq!(fetch.accept(vec![9], at(203)), Some((vec![9], at(2) + SNAPSHOT_SHARED_FOR)));
        fetch.add_source(RouterId(3), 9, at(204));
        assert_eq!(opened_query(&mut fetch, &mut queries, 2, 204_000), None, "it is fresh");
        fetch.add_source(RouterId(3), 9, at(213));
        assert!(opened_query(&mut fetch, &mut queries, 2, 213_000).is_some());
    }

    #[test]
    fn the_next_source_is_queried_when_one_leaves_or_stalls() {
        let (mut fetch, mut queries) = (SnapshotFetch::default(), PendingQueries::default());
        (2..=4).for_each(|id| fetch.add_source(RouterId(id), 9, Micros(id)));
        assert_eq!(
            opened_query(&mut fetch, &mut queries, 0, 10).map(|(from, _)| from),
            Some(2),
            "the first met"
        );
        let (from, query_id) = opened_query(&mut fetch, &mut queries, 2, 20).unwrap();
        assert_eq!(from, 3, "router 2 left");
        let first = AnswerPart { query_id, asked_at_us: 0, answer_id: 7, index: 0, count: 3 };
        assert_eq!(queries.accept_part(RouterId(3), first, vec![1], Micros::from_millis(3_000)), None);
        assert_eq!(opened_query(&mut fetch, &mut queries, 2, 5_900), None, "it is answering");
        assert_eq!(
            opened_query(&mut fetch, &mut queries, 2, 6_000).map(|(from, _)| from),
            Some(4),
            "it stalled"
        );
    }

    #[test]
    fn the_peer_with_most_batches_is_queried_although_another_was_met_first() {
        let (mut fetch, mut queries, at) =
            (SnapshotFetch::default(), PendingQueries::default(), Micros::from_millis);
        fetch.add_source(RouterId(2), 2, at(1));
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 2).map(|(from, _)| from), Some(2));
        fetch.add_source(RouterId(3), 5_000, at(3));
        fetch.add_source(RouterId(4), 6_000, at(3));
        assert!(fetch.accept(vec![9], at(4)).is_some(), "a small snapshot");
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 5).map(|(from, _)| from), Some(4));
        assert!(fetch.accept(vec![9], at(6)).is_some());
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 7), None, "the remaining sources have the same");
        fetch.add_source(RouterId(5), 20_000, at(8));
        assert_eq!(
            opened_query(&mut fetch, &mut queries, 0, 9).map(|(from, _)| from),
            Some(5),
            "it sent far more batches"
        );
    }

    #[test]
    fn an_empty_answer_leads_to_the_next_source() {
        let (mut fetch, mut queries, at) =
            (SnapshotFetch::default(), PendingQueries::default(), Micros::from_millis);
        (2..=3).for_each(|id| fetch.add_source(RouterId(id), 9, at(1)));
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 2).map(|(from, _)| from), Some(2));
        assert_eq!(fetch.accept(Vec::new(), at(3)), None);
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 4).map(|(from, _)| from), Some(3));
        assert_eq!(fetch.accept(Vec::new(), at(5)), None);
        assert_eq!(
            opened_query(&mut fetch, &mut queries, 0, 6),
            None,
            "no source is queried again after an empty answer"
        );
        fetch.add_source(RouterId(4), 2, at(7));
        assert_eq!(opened_query(&mut fetch, &mut queries, 0, 8).map(|(from, _)| from), Some(4));
    }
}
