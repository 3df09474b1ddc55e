//! Answers to peers' queries, kept while the peers pull them part by part.
//!
//! An answer is composed once, and each part is sent when the peer asks for it. So a peer receives no more
//! than it can take, and a lost part is sent again alone. The presumed cache contents are the same for all
//! peers and may be large, so they are composed once for all peers that ask within a few seconds. Memory is
//! bounded, but an answer that is being pulled is never evicted, because its reader would have to start again
//! and again. A peer that finds no room asks again.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId};

use crate::answer_parts::{ANSWER_BYTES_MAX, AnswerPart, PART_BYTES};
use crate::query::{PARTS_IN_FLIGHT_MAX, Query, QueryKind};
use crate::{Envelope, PeerMessage};

/// An answer that no peer asked for during this time is dropped.
const RETAINED_FOR: Micros = Micros::from_secs(10);

/// An answer that no peer asked for during this time is evicted when another one needs room. Active readers
/// ask more often.
const IDLE_AFTER: Micros = Micros::from_secs(3);

/// An answer that the driver has not composed after this time is considered lost; the next query requests it
/// again.
const COMPOSE_TIMEOUT: Micros = Micros::from_secs(2);

/// The same limit for the presumed cache contents, which take longer.
const SNAPSHOT_COMPOSE_TIMEOUT: Micros = Micros::from_secs(10);

/// The presumed cache contents are shared by all peers that ask within this time. Later changes are in the
/// retained batches.
pub(crate) const SNAPSHOT_SHARED_FOR: Micros = Micros::from_secs(5);

/// Answers that are kept at the same time.
const ANSWERS_MAX: usize = 256;

/// Answers by peer and query.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    me: RouterId,
    /// Answers composed so far.
    count: u64,
    open: BTreeMap<(RouterId, u64), CachedAnswer>,
    /// The last snapshot, shared by all peers that ask for one.
    snapshot: Option<SharedSnapshot>,
    /// Size of the last snapshot, as an estimate for the next one.
    last_snapshot_bytes: usize,
    /// First parts of answers that have just been composed.
    ready: Vec<Envelope>,
}

#[derive(Debug)]
struct CachedAnswer {
    /// The most recent query.
    query: Query,
    last_queried: Micros,
    /// `None` while the driver composes it.
    answer: Option<Answer>,
}

/// An answer and its id. Peers that share an answer see the same id, so a peer that returns continues where
/// it stopped.
#[derive(Clone, Debug)]
struct Answer {
    id: u64,
    bytes: Arc<[u8]>,
}

#[derive(Debug)]
struct SharedSnapshot {
    since: Micros,
    /// `None` while the driver composes it.
    answer: Option<Answer>,
}

impl CachedAnswer {
    fn is_overdue(&self, now: Micros) -> bool {
        let timeout = if self.is_snapshot() { SNAPSHOT_COMPOSE_TIMEOUT } else { COMPOSE_TIMEOUT };
        self.answer.is_none() && now.since(self.last_queried) >= timeout
    }

    fn is_snapshot(&self) -> bool {
        self.query.kind == QueryKind::Snapshot
    }

    fn bytes(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.bytes.len())
    }
}

impl SharedSnapshot {
    fn is_usable(&self, now: Micros) -> bool {
        let lifetime = if self.answer.is_some() { SNAPSHOT_SHARED_FOR } else { SNAPSHOT_COMPOSE_TIMEOUT };
        now.since(self.since) < lifetime
    }
}

impl AnswerCache {
    pub fn new(me: RouterId) -> AnswerCache {
        AnswerCache {
            me,
            count: 0,
            open: BTreeMap::new(),
            snapshot: None,
            last_snapshot_bytes: 0,
            ready: Vec::new(),
        }
    }

    /// The requested parts. `None` if the driver must compose the answer first and pass it to
    /// [`AnswerCache::store`] or [`AnswerCache::store_snapshot`].
    pub fn parts_for(&mut self, from: RouterId, query: Query, now: Micros) -> Option<Vec<Envelope>> {
        let key = (from, query.id);
        if self.open.get(&key).is_some_and(|open| open.is_overdue(now)) {
            self.open.remove(&key);
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.query = query;
            if open.answer.is_some() {
                open.last_queried = now;
            }
            return Some(self.parts(key));
        }
        while self.open.len() >= ANSWERS_MAX {
            if !self.evict_idle(now) {
                return Some(Vec::new());
            }
        }
        let shared = self
            .snapshot
            .as_ref()
            .filter(|snapshot| query.kind == QueryKind::Snapshot && snapshot.is_usable(now));
        if let Some(answer) = shared.map(|snapshot| snapshot.answer.clone()) {
            self.open.insert(key, CachedAnswer { query, last_queried: now, answer });
            return Some(self.parts(key));
        }
        if query.kind == QueryKind::Snapshot {
            if !self.has_room_for_snapshot(now) {
                return Some(Vec::new());
            }
            self.snapshot = Some(SharedSnapshot { since: now, answer: None });
        }
        self.open.insert(key, CachedAnswer { query, last_queried: now, answer: None });
        None
    }

    /// Whether another snapshot fits beside those that are being pulled.
    fn has_room_for_snapshot(&mut self, now: Micros) -> bool {
        while self.snapshot_bytes() + self.last_snapshot_bytes > ANSWER_BYTES_MAX {
            if !self.evict_idle(now) {
                return false;
            }
        }
        true
    }

    /// Stores the snapshot for all peers that wait for it. Empty bytes are an answer, too; one above the size
    /// limit is stored as empty.
    pub fn store_snapshot(&mut self, bytes: Arc<[u8]>, now: Micros) {
        let answer = self.numbered(bytes);
        self.last_snapshot_bytes = answer.bytes.len();
        let since = self.snapshot.as_ref().map_or(now, |snapshot| snapshot.since);
        self.snapshot = Some(SharedSnapshot { since, answer: Some(answer.clone()) });
        let is_waiting =
            |(_, open): &(&(RouterId, u64), &mut CachedAnswer)| open.is_snapshot() && open.answer.is_none();
        let mut keys = Vec::new();
        for (key, open) in self.open.iter_mut().filter(is_waiting) {
            (open.answer, open.last_queried) = (Some(answer.clone()), now);
            keys.push(*key);
        }
        let parts: Vec<Envelope> = keys.into_iter().flat_map(|key| self.parts(key)).collect();
        self.ready.extend(parts);
    }

    /// Stores the answer to one query. Empty bytes are an answer, too; one above the size limit is stored as
    /// empty.
    pub fn store(&mut self, to: RouterId, query_id: u64, bytes: Vec<u8>, now: Micros) {
        let (key, answer) = ((to, query_id), self.numbered(bytes.into()));
        let Some(open) = self.open.get_mut(&key) else { return };
        (open.answer, open.last_queried) = (Some(answer), now);
        while self.bytes() > ANSWER_BYTES_MAX {
            if !self.evict_idle(now) {
                self.open.remove(&key);
            }
        }
        let parts = self.parts(key);
        self.ready.extend(parts);
    }

    fn numbered(&mut self, bytes: Arc<[u8]>) -> Answer {
        self.count += 1;
        let fits = bytes.len() <= ANSWER_BYTES_MAX;
        Answer { id: self.count, bytes: if fits { bytes } else { Arc::default() } }
    }

    /// The queries of a peer whose answers are not composed yet.
    pub fn unanswered(&self, peer: RouterId) -> Vec<(u64, QueryKind)> {
        let answers = self.open.range((peer, 0)..=(peer, u64::MAX)).map(|(_, open)| open);
        let queries = answers.filter(|open| open.answer.is_none()).map(|open| &open.query);
        queries.map(|query| (query.id, query.kind.clone())).collect()
    }

    /// Parts of the answers that were composed since the last call.
    pub fn take_ready(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.ready)
    }

    /// Drops answers of disconnected peers and answers that are no longer pulled.
    pub fn expire(&mut self, is_connected: impl Fn(RouterId) -> bool, now: Micros) {
        self.open
            .retain(|(peer, _), open| is_connected(*peer) && now.since(open.last_queried) < RETAINED_FOR);
        self.snapshot.take_if(|snapshot| !snapshot.is_usable(now));
    }

    fn parts(&self, key: (RouterId, u64)) -> Vec<Envelope> {
        let Some(CachedAnswer { query, answer: Some(Answer { id, bytes }), .. }) = self.open.get(&key) else {
            return Vec::new();
        };
        let count = bytes.len().div_ceil(PART_BYTES).max(1) as u32;
        let indices = query.parts.iter().take(PARTS_IN_FLIGHT_MAX).copied().filter(|&index| index < count);
        let envelope = |index: u32| {
            let rest = &bytes[index as usize * PART_BYTES..];
            let (query_id, asked_at_us) = (query.id, query.asked_at_us);
            let part = AnswerPart { query_id, asked_at_us, answer_id: *id, index, count };
            let bytes = rest[..rest.len().min(PART_BYTES)].to_vec();
            Envelope::to_one(key.0, &PeerMessage::Answer { from: self.me, part, bytes })
        };
        indices.map(envelope).collect()
    }

    /// Bytes of answers for a single peer.
    fn bytes(&self) -> usize {
        self.open.values().filter(|open| !open.is_snapshot()).map(CachedAnswer::bytes).sum()
    }

    /// Bytes of snapshots; a shared one counts once.
    fn snapshot_bytes(&self) -> usize {
        let answer =
            self.open.values().filter(|open| open.is_snapshot()).filter_map(|open| open.answer.as_ref());
        let sizes: BTreeMap<u64, usize> = answer.map(|answer| (answer.id, answer.bytes.len())).collect();
        sizes.into_values().sum()
    }

    /// Evicts the least recently used answer unless it is being pulled; returns whether one was evicted.
    fn evict_idle(&mut self, now: Micros) -> bool {
        let oldest = self.open.iter().min_by_key(|(_, open)| open.last_queried);
        let idle = oldest.filter(|(_, open)| now.since(open.last_queried) >= IDLE_AFTER).map(|(key, _)| *key);
        idle.is_some_and(|key| self.open.remove(&key).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: RouterId = RouterId(1);
    const OTHER: RouterId = RouterId(2);

    fn missing_batches() -> QueryKind {
        QueryKind::Batches(vec![3..=5])
    }

    fn query(query_id: u64, parts: &[u32]) -> Query {
        Query { id: query_id, asked_at_us: 9, kind: missing_batches(), parts: parts.to_vec() }
    }

    fn snapshot_query(query_id: u64, part: u32) -> Query {
        Query { kind: QueryKind::Snapshot, ..query(query_id, &[part]) }
    }

    fn parts_in(envelopes: &[Envelope]) -> Vec<(u64, u32, u32, usize)> {
        let part = |envelope: &Envelope| match PeerMessage::decode(&envelope.bytes) {
            Ok(Some(PeerMessage::Answer { part, bytes, .. })) => {
                (part.answer_id, part.index, part.count, bytes.len())
            }
            other => panic!("{other:?}"),
        };
        envelopes.iter().map(part).collect()
    }

    #[test]
    fn an_answer_is_composed_once_and_sent_part_by_part() {
        let mut answers = AnswerCache::new(ME);
        assert_eq!(answers.parts_for(OTHER, query(7, &[0]), Micros(1)), None);
        assert_eq!(answers.parts_for(OTHER, query(7, &[0]), Micros(2)), Some(vec![]), "it is being composed");
        assert_eq!(answers.unanswered(OTHER), [(7, missing_batches())]);
        answers.store(OTHER, 7, vec![5; 2 * PART_BYTES + 7], Micros(2));
        assert_eq!(parts_in(&answers.take_ready()), [(1, 0, 3, PART_BYTES)]);
        let more = answers.parts_for(OTHER, query(7, &[1, 2, 3]), Micros(3)).unwrap();
        assert_eq!(parts_in(&more), [(1, 1, 3, PART_BYTES), (1, 2, 3, 7)]);
        let all: Vec<u32> = (0..3).cycle().take(99).collect();
        assert_eq!(answers.parts_for(OTHER, query(7, &all), Micros(4)).unwrap().len(), PARTS_IN_FLIGHT_MAX);
        answers.expire(|_| true, Micros(4) + RETAINED_FOR);
        assert_eq!(
            answers.parts_for(OTHER, query(7, &[1]), Micros(5)),
            None,
            "it expired: a new answer is needed"
        );
        answers.store(OTHER, 7, Vec::new(), Micros(5));
        assert_eq!(parts_in(&answers.take_ready()), [], "the new answer has no such part");
        let nothing = answers.parts_for(OTHER, query(7, &[0]), Micros(6)).unwrap();
        assert_eq!(parts_in(&nothing), [(2, 0, 1, 0)], "an empty answer");
    }

    #[test]
    fn an_answer_that_is_never_composed_is_requested_again() {
        let mut answers = AnswerCache::new(ME);
        let at = Micros::from_secs;
        assert_eq!(answers.parts_for(OTHER, query(7, &[0]), Micros(1)), None);
        assert_eq!(answers.parts_for(OTHER, query(7, &[0]), at(1)), Some(vec![]));
        assert_eq!(answers.parts_for(OTHER, query(7, &[0]), at(3)), None);
        assert_eq!(answers.parts_for(OTHER, snapshot_query(8, 0), Micros(1)), None);
        assert_eq!(
            answers.parts_for(OTHER, snapshot_query(8, 0), at(9)),
            Some(vec![]),
            "snapshots have a longer timeout"
        );
        assert_eq!(answers.parts_for(OTHER, snapshot_query(8, 0), at(11)), None);
    }

    #[test]
    fn a_snapshot_is_composed_and_counted_once_for_all_peers() {
        let (mut answers, at) = (AnswerCache::new(ME), Micros::from_secs);
        assert_eq!(answers.parts_for(RouterId(2), snapshot_query(1, 0), at(1)), None);
        (3..100).for_each(|id| {
            assert_eq!(answers.parts_for(RouterId(id), snapshot_query(1, 0), at(1)), Some(vec![]))
        });
        answers.store_snapshot(vec![0; 24 << 20].into(), at(1));
        assert_eq!(answers.take_ready().len(), 98, "all waiting peers get a part");
        let late = answers.parts_for(RouterId(100), snapshot_query(1, 7), at(4)).unwrap();
        assert_eq!(parts_in(&late), [(1, 7, 192, PART_BYTES)]);
        assert_eq!(answers.snapshot_bytes(), 24 << 20);
    }

    #[test]
    fn new_peers_do_not_interrupt_a_pull() {
        let (mut answers, at) = (AnswerCache::new(ME), Micros::from_secs);
        let (mut composed, mut number) = (0, None);
        for second in 1..60 {
            let by = RouterId(2 + second);
            if answers.parts_for(by, snapshot_query(1, 0), at(second)).is_none() {
                composed += 1;
                answers.store_snapshot(vec![0; 24 << 20].into(), at(second));
            }
            let pulled =
                parts_in(&answers.parts_for(OTHER, snapshot_query(9, second as u32), at(second)).unwrap());
            assert_eq!(*number.get_or_insert(pulled[0].0), pulled[0].0, "at {second} s");
            answers.expire(|_| true, at(second));
            assert!(answers.snapshot_bytes() <= ANSWER_BYTES_MAX);
        }
        assert!((2..=13).contains(&composed), "{composed}");
        answers.store_snapshot(vec![0; 60 << 20].into(), at(60));
        assert_eq!(answers.parts_for(OTHER, snapshot_query(9, 60), at(65)).unwrap().len(), 1);
        assert_eq!(
            answers.parts_for(RouterId(99), snapshot_query(1, 0), at(66)),
            Some(vec![]),
            "no room for another snapshot"
        );
        answers.expire(|_| true, at(600));
        assert!(answers.snapshot.is_none(), "no peer asks for it any more");
    }

    #[test]
    fn answers_are_bounded_and_active_ones_stay() {
        let mut answers = AnswerCache::new(ME);
        let limit = ANSWERS_MAX as u64;
        for query_id in 0..limit {
            assert_eq!(answers.parts_for(OTHER, query(query_id, &[0]), Micros(query_id)), None);
        }
        assert_eq!(answers.parts_for(OTHER, query(limit, &[0]), Micros(limit)), Some(vec![]), "no room");
        assert_eq!(answers.open.len(), ANSWERS_MAX);
        let now = IDLE_AFTER;
        assert_eq!(answers.parts_for(OTHER, query(limit, &[0]), now), None, "an idle answer was evicted");
        answers.store(OTHER, 1, vec![0; ANSWER_BYTES_MAX - 9], now);
        assert_eq!(answers.take_ready().len(), 1);
        answers.store(OTHER, 2, vec![0; 10], now);
        assert!(
            answers.take_ready().is_empty() && !answers.open.contains_key(&(OTHER, 2)),
            "the peer has to ask again"
        );
        assert!(answers.open.contains_key(&(OTHER, 1)), "it is being pulled");
        answers.store(OTHER, limit, vec![0; ANSWER_BYTES_MAX + 1], now);
        let nothing = answers.parts_for(OTHER, query(limit, &[0]), now).unwrap();
        assert_eq!(parts_in(&nothing)[0].3, 0, "an oversized answer is stored as empty");
    }
}
