//! The exchange between routers: which messages to send when, and which changes a received message causes.
//!
//! Each router sends its changes to all peers in numbered batches: new assignments and first tokens at once, or
//! 20 ms after the batch before; ends of assignments with them, or within 100 ms. A router that misses a batch
//! asks for it; if the sender no longer retains it, it answers with all open assignments. A peer that is
//! silent for too long is suspended and its assignments end. If it speaks again within minutes, the missed
//! batches are fetched and its open assignments are booked again. From a new peer the router fetches the open
//! assignments, and from one peer the presumed cache contents. It never fetches assignments that had ended before
//! the two met.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId, To};

use crate::answer_cache::AnswerCache;
use crate::answer_parts::ANSWER_BYTES_MAX;
use crate::clock::Clock;
use crate::message::VERSION_LIMITS;
use crate::peer::Peer;
use crate::peer_assignments::Timeliness;
use crate::pending_queries::PendingQueries;
use crate::round_trip::RoundTripEstimate;
use crate::sent_batches::{Evicted, GAPS_MAX, SentBatches};
use crate::snapshot_fetch::SnapshotFetch;
use crate::{
    AnswerPart, BadMessage, Effect, Envelope, Ledger, LedgerUpdates, PeerMessage, PeerStatus, Query,
    QueryKind,
};

/// A batch query without any answer for this long is replaced by a new one, which names all batches that are
/// missing by then.
const BATCH_QUERY_TIMEOUT: Micros = Micros::from_secs(5);

/// The state of a silent peer is kept this long, for at most `SUSPENDED_MAX` peers. The time is shorter than
/// presumed entries usually live, because missed batches are applied as if they were current.
const SUSPENDED_FOR: Micros = Micros::from_secs(300);
const SUSPENDED_MAX: usize = 64;

/// Messages of further peers are ignored.
const PEERS_MAX: usize = 256;

/// Answer id of a ping. Other answers count from 1.
const PING_ANSWER_ID: u64 = 0;

/// Interval at which the round trip to a peer is measured.
const PING_INTERVAL: Micros = Micros::from_secs(1);

/// Intervals and timeouts of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// New assignments and first tokens are sent at once, but not sooner than this after the batch before.
    pub batch_interval: Micros,
    /// Other changes are sent with the next of them, or at this interval.
    pub idle_interval: Micros,
    /// Without changes, an empty batch is sent at this interval.
    pub heartbeat_interval: Micros,
    /// A batch that is still missing this long after a later one arrived is requested.
    pub gap_timeout: Micros,
    /// A peer that is silent for this long is suspended.
    pub silence_timeout: Micros,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            batch_interval: Micros::from_millis(20),
            idle_interval: Micros::from_millis(100),
            heartbeat_interval: Micros::from_millis(200),
            gap_timeout: Micros::from_millis(100),
            silence_timeout: Micros::from_millis(1_500),
        }
    }
}

/// The peers of this router, and the state of the exchange with each.
#[derive(Debug)]
pub struct Peers {
    me: RouterId,
    config: Config,
    clock: Clock,
    sent_batches: SentBatches,
    last_sent: Option<Micros>,
    /// A change that is sent at once waits for the end of the batch interval.
    is_waiting: bool,
    peers: BTreeMap<RouterId, Peer>,
    /// Peers that fell silent, up to `SUSPENDED_FOR` ago.
    suspended: BTreeMap<RouterId, Peer>,
    /// Queries to peers that wait for an answer; below, the answers to their queries.
    queries: PendingQueries,
    answers: AnswerCache,
    /// The search for a peer that answers with its presumed cache contents.
    snapshot_fetch: SnapshotFetch,
    /// Messages that could not be decoded.
    pub bad_messages: u64,
    /// Gaps in peers' batches that were queried.
    pub batches_requested: u64,
    /// Peers that fell silent.
    pub lost_peers: u64,
    /// Answers that were shortened to fit the size limit.
    pub truncated_answers: u64,
    /// Prompts of peers' open assignments that were dropped to save memory.
    pub dropped_prompts: u64,
}

impl Peers {
    /// A router without peers.
    pub fn new(me: RouterId, config: Config) -> Peers {
        Peers {
            me,
            config,
            // A longer step means that this process was stopped, not that its peers were silent.
            clock: Clock::new(config.batch_interval, Micros(config.silence_timeout.0 / 2)),
            sent_batches: SentBatches::default(),
            last_sent: None,
            is_waiting: false,
            peers: BTreeMap::new(),
            suspended: BTreeMap::new(),
            queries: PendingQueries::default(),
            answers: AnswerCache::new(me),
            snapshot_fetch: SnapshotFetch::default(),
            bad_messages: 0,
            batches_requested: 0,
            lost_peers: 0,
            truncated_answers: 0,
            dropped_prompts: 0,
        }
    }

    /// Messages to send now, including the given changes. Call it again after [`Peers::next_compose_in`].
    pub fn compose(&mut self, mut updates: LedgerUpdates, now: Micros) -> Vec<Envelope> {
        let now = self.clock.tick(now);
        self.is_waiting = false;
        let mut envelopes = Vec::new();
        while let Some(batch) = updates.next_batch() {
            self.sent_batches.count += 1;
            let (number, low_water) = (self.sent_batches.count, batch.low_water);
            let bytes = self.encode_batch(number, batch);
            self.sent_batches.push(number, low_water, Arc::clone(&bytes));
            envelopes.push(Envelope { to: To::Everyone, bytes });
        }
        let is_due = self.last_sent.is_none_or(|sent| now.since(sent) >= self.config.heartbeat_interval);
        if envelopes.is_empty() && is_due {
            // A heartbeat repeats the number of the last batch; it may be lost.
            envelopes.push(Envelope {
                to: To::Everyone,
                bytes: self.encode_batch(self.sent_batches.count, updates.empty_batch()),
            });
        }
        if !envelopes.is_empty() {
            self.last_sent = Some(now);
        }
        envelopes.extend(self.answers.take_ready());
        envelopes.extend(self.compose_queries(now));
        envelopes.extend(self.compose_pings(now));
        envelopes
    }

    /// Whether a change may be sent at once, because nothing was sent for a batch interval. Otherwise it
    /// waits for the next batch, which is due sooner then.
    pub fn may_send_now(&mut self, now: Micros) -> bool {
        self.is_waiting = self.next_batch_in(now) > Micros::ZERO;
        !self.is_waiting
    }

    /// When to call [`Peers::compose`] next: soon if a change waits or something is missing, otherwise after the idle
    /// interval.
    pub fn next_compose_in(&self, now: Micros) -> Micros {
        if self.is_waiting {
            return self.next_batch_in(now);
        }
        let is_missing = self.peers.values().any(|peer| peer.missing_since.is_some());
        if is_missing || !self.queries.is_empty() {
            self.config.batch_interval
        } else {
            self.config.idle_interval
        }
    }

    fn next_batch_in(&self, now: Micros) -> Micros {
        let elapsed = self.clock.read(now);
        self.last_sent.map_or(Micros::ZERO, |sent| self.config.batch_interval.since(elapsed.since(sent)))
    }

    /// Answers all waiting peers with the presumed cache contents. Empty bytes make them ask another router.
    pub fn answer_snapshot(&mut self, bytes: Arc<[u8]>) {
        self.answers.store_snapshot(bytes, self.clock.elapsed());
    }

    /// Answers a peer whose missing batches are no longer retained with all open assignments. An answer above
    /// the size limit leaves out the prompts.
    pub fn answer_ledger(&mut self, to: RouterId, up_to: u64, state: Ledger) {
        let (now, from) = (self.clock.elapsed(), self.me);
        for (query_id, kind) in self.answers.unanswered(to) {
            let QueryKind::Batches(missing) = kind else { continue };
            let write =
                |state| self.sent_batches.encode(&missing, Some(&PeerMessage::State { from, up_to, state }));
            let mut answer = write(state.clone());
            if answer.len() > ANSWER_BYTES_MAX {
                self.truncated_answers += 1;
                answer = write(state.clone().without_prompts());
            }
            self.answers.store(to, query_id, answer, now);
        }
    }

    /// Ids of the connected peers.
    pub fn ids(&self) -> impl Iterator<Item = RouterId> {
        self.peers.keys().copied()
    }

    /// Connected peers that share limits.
    pub fn limit_sharers(&self) -> impl Iterator<Item = RouterId> {
        let shares = |peer: &Peer| peer.protocol_version >= VERSION_LIMITS;
        self.peers.iter().filter(move |(_, peer)| shares(peer)).map(|(&id, _)| id)
    }

    fn encode_batch(&self, number: u64, updates: Ledger) -> Arc<[u8]> {
        PeerMessage::Batch { from: self.me, number, updates }.encode().into()
    }

    fn answer_times(&self) -> BTreeMap<RouterId, RoundTripEstimate> {
        self.peers.iter().map(|(&id, peer)| (id, peer.answer_time)).collect()
    }

    /// Queries that are due: missing batches and the presumed cache contents.
    fn compose_queries(&mut self, now: Micros) -> Vec<Envelope> {
        self.query_missing_batches(now);
        let answer_times = self.answer_times();
        self.snapshot_fetch.query_next(|router| answer_times.contains_key(&router), now, &mut self.queries);
        let answer_time_of = |of: RouterId| answer_times.get(&of).copied().unwrap_or_default();
        let queries = self.queries.compose(answer_time_of, now);
        let envelope = |(to, query)| Envelope::to_one(to, &PeerMessage::Query { from: self.me, query });
        queries.into_iter().map(envelope).collect()
    }

    /// Pings that are due. A lost ping is not repeated; the next one replaces it.
    fn compose_pings(&mut self, now: Micros) -> Vec<Envelope> {
        let is_due = |last_ping: Option<Micros>| last_ping.is_none_or(|at| now.since(at) >= PING_INTERVAL);
        let query = Query { id: 0, asked_at_us: now.0, kind: QueryKind::Ping, parts: vec![0] };
        let ping = PeerMessage::Query { from: self.me, query };
        let due = self.peers.iter_mut().filter(|(_, peer)| is_due(peer.last_ping));
        due.map(|(&id, peer)| {
            peer.last_ping = Some(now);
            Envelope::to_one(id, &ping)
        })
        .collect()
    }

    /// Opens a query to each peer whose batches have been missing for too long.
    fn query_missing_batches(&mut self, now: Micros) {
        let gap_timeout = self.config.gap_timeout;
        for (&id, peer) in &mut self.peers {
            let is_late = peer.missing_since.is_some_and(|since| now.since(since) >= gap_timeout);
            let is_stalled = |query_id| self.queries.is_stalled(query_id, BATCH_QUERY_TIMEOUT, now);
            if is_late && peer.batch_query.is_none_or(is_stalled) {
                peer.batch_query.take().into_iter().for_each(|query_id| self.queries.cancel(query_id));
                let missing: Vec<_> = peer.batches.gaps().take(GAPS_MAX).collect();
                self.batches_requested += missing.len() as u64;
                peer.batch_query = Some(self.queries.open(id, QueryKind::Batches(missing), now));
            }
        }
    }

    /// Applies a received message: pushes its effects and returns the messages to send in response.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Result<Vec<Envelope>, BadMessage> {
        let now = self.clock.advance(now);
        let message = PeerMessage::decode(bytes).inspect_err(|_| self.bad_messages += 1)?;
        let Some(message) = message.filter(|message| message.from() != self.me) else {
            return Ok(Vec::new());
        };
        let from = message.from();
        let Some(peer) = self.peer_entry(from, now, effects) else { return Ok(Vec::new()) };
        (peer.last_received, peer.protocol_version) = (now, PeerMessage::protocol_version(bytes));
        let answers = match message {
            PeerMessage::Query { query, .. } => self.answer_query(from, query, now, effects),
            PeerMessage::Answer { part, bytes, .. } => {
                self.accept_part(from, part, bytes, now, effects);
                Vec::new()
            }
            PeerMessage::Limits { messages, .. } => {
                effects.push(Effect::LimitsReceived { router: from, messages });
                Vec::new()
            }
            PeerMessage::Report { bytes, .. } => {
                effects.push(Effect::Reported { router: from, bytes });
                Vec::new()
            }
            message => {
                self.apply(from, message, Timeliness::Live, now, effects);
                Vec::new()
            }
        };
        let answered = self.peers.get_mut(&from).and_then(|peer| peer.track_gaps(now));
        answered.into_iter().for_each(|query_id| self.queries.cancel(query_id));
        Ok(answers)
    }

    /// The state of the sender: connected, resumed or new. `None` if there are too many peers.
    fn peer_entry(&mut self, from: RouterId, now: Micros, effects: &mut Vec<Effect>) -> Option<&mut Peer> {
        if !self.peers.contains_key(&from) && self.peers.len() >= PEERS_MAX {
            return None;
        }
        let suspended = &mut self.suspended;
        Some(self.peers.entry(from).or_insert_with(|| match suspended.remove(&from) {
            Some(mut peer) => {
                peer.last_received = now;
                peer.resume(effects);
                peer
            }
            None => Peer::new(from, now),
        }))
    }

    /// Applies a message that carries state, received live or as part of an answer.
    fn apply(
        &mut self,
        from: RouterId,
        message: PeerMessage,
        timeliness: Timeliness,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        match message {
            PeerMessage::Batch { number, updates, .. } => {
                let lacked_history = peer.batches.lacks_history();
                peer.apply_batch(number, updates, timeliness, effects);
                if peer.batches.lacks_history() && !lacked_history {
                    // The peer sent batches before this router met it.
                    self.snapshot_fetch.add_source(from, number, now);
                }
                self.dropped_prompts += std::mem::take(&mut peer.assignments.dropped_prompts);
            }
            PeerMessage::State { up_to, state, .. } => {
                if peer.batches.lacks_any_up_to(up_to) {
                    // Only the presumed cache contents can replace the prompts of those batches.
                    self.snapshot_fetch.add_source(from, up_to, now);
                }
                peer.apply_state(up_to, state, effects);
                self.dropped_prompts += std::mem::take(&mut peer.assignments.dropped_prompts);
            }
            PeerMessage::Query { .. }
            | PeerMessage::Answer { .. }
            | PeerMessage::Limits { .. }
            | PeerMessage::Report { .. } => {}
        }
    }

    /// Parts that answer a query. If the answer is not composed yet, pushes the effect that requests it.
    fn answer_query(
        &mut self,
        by: RouterId,
        query: Query,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) -> Vec<Envelope> {
        let (query_id, kind) = (query.id, query.kind.clone());
        if kind == QueryKind::Ping {
            let part = AnswerPart {
                query_id,
                asked_at_us: query.asked_at_us,
                answer_id: PING_ANSWER_ID,
                index: 0,
                count: 1,
            };
            return vec![Envelope::to_one(
                by,
                &PeerMessage::Answer { from: self.me, part, bytes: Vec::new() },
            )];
        }
        if let Some(parts) = self.answers.parts_for(by, query, now) {
            return parts;
        }
        match kind {
            QueryKind::Batches(missing) => self.answer_batches(by, query_id, &missing, now, effects),
            QueryKind::Snapshot => effects.push(Effect::SnapshotRequested),
            QueryKind::Ping => {}
        }
        self.answers.take_ready()
    }

    /// Answers with the retained batches, or requests all open assignments if some are no longer retained.
    fn answer_batches(
        &mut self,
        by: RouterId,
        query_id: u64,
        missing: &[RangeInclusive<u64>],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        match self.sent_batches.evicted(missing) {
            Some(Evicted { up_to, low_water }) => {
                effects.push(Effect::LedgerRequested { router: by, up_to, low_water });
            }
            None => self.answers.store(by, query_id, self.sent_batches.encode(missing, None), now),
        }
    }

    /// Accepts one part of an answer, and applies the answer when it is complete.
    fn accept_part(
        &mut self,
        from: RouterId,
        part: AnswerPart,
        bytes: Vec<u8>,
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let asked_at = Micros(part.asked_at_us);
        if let Some(peer) = self.peers.get_mut(&from).filter(|_| asked_at <= now) {
            let estimate =
                if part.answer_id == PING_ANSWER_ID { &mut peer.ping_time } else { &mut peer.answer_time };
            estimate.record(now.since(asked_at));
        }
        match self.queries.accept_part(from, part, bytes, now) {
            Some((QueryKind::Batches(missing), bytes)) => {
                self.apply_missing_batches(from, &missing, &bytes, now, effects);
            }
            Some((QueryKind::Snapshot, bytes)) => {
                let view = self.snapshot_fetch.accept(bytes, now);
                effects.extend(view.map(|(bytes, age)| Effect::SnapshotReceived { bytes, age }));
            }
            Some((QueryKind::Ping, _)) | None => {}
        }
    }

    /// Applies the answer to a batch query.
    fn apply_missing_batches(
        &mut self,
        from: RouterId,
        missing: &[RangeInclusive<u64>],
        bytes: &[u8],
        now: Micros,
        effects: &mut Vec<Effect>,
    ) {
        let (messages, bad) = SentBatches::decode(bytes);
        self.bad_messages += bad;
        for message in messages.into_iter().filter(|message| message.from() == from) {
            self.apply(from, message, Timeliness::Late, now, effects);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.batch_query = None;
        // The sender has no more of these batches. A batch that could not be read would come back unchanged,
        // so the rest is given up.
        peer.give_up_missing(missing.last().map_or(0, |last| *last.end()), effects);
    }

    /// Suspends silent peers, and expires answers.
    pub fn expire(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        let now = self.clock.advance(now);
        let silence_timeout = self.config.silence_timeout;
        for (id, mut peer) in
            self.peers.extract_if(.., |_, peer| now.since(peer.last_received) > silence_timeout)
        {
            peer.suspend(effects);
            peer.batch_query.take().into_iter().for_each(|query_id| self.queries.cancel(query_id));
            self.suspended.insert(id, peer);
            self.lost_peers += 1;
        }
        self.suspended.retain(|_, peer| now.since(peer.last_received) < SUSPENDED_FOR);
        while self.suspended.len() > SUSPENDED_MAX
            && let Some(longest) =
                self.suspended.iter().min_by_key(|(_, peer)| peer.last_received).map(|(&id, _)| id)
        {
            self.suspended.remove(&longest);
        }
        self.answers.expire(|router| self.peers.contains_key(&router), now);
    }

    /// Compares the workers that peers use with the members of the local fleet.
    pub fn compare_workers(&mut self, members: &BTreeSet<u64>, now: Micros) {
        let now = self.clock.read(now);
        self.peers.values_mut().for_each(|peer| peer.workers.compare(members, now));
    }

    /// Members of the fleet that peers report as failing.
    pub fn failing_workers<'a>(&'a self, members: &'a BTreeSet<u64>) -> impl Iterator<Item = u64> + 'a {
        self.peers.values().flat_map(move |peer| peer.failing_workers(members))
    }

    /// Status of each connected peer.
    pub fn statuses(&self, now: Micros) -> Vec<PeerStatus> {
        let now = self.clock.read(now);
        self.peers.values().map(|peer| peer.status(now)).collect()
    }

    /// Mean one-way delay of messages: half of the measured round trips. Zero before the first measurement.
    pub fn one_way_delay(&self) -> Micros {
        let estimates: Vec<u64> =
            self.peers.values().filter_map(|peer| Some(peer.ping_time.smoothed()?.0)).collect();
        Micros(estimates.iter().sum::<u64>() / 2 / estimates.len().max(1) as u64)
    }

    /// Number of connected peers with a lower id. Rank 0 does what only one router may do.
    pub fn rank(&self) -> usize {
        self.peers.range(..self.me).count()
    }

    /// This router's id.
    pub fn own_id(&self) -> RouterId {
        self.me
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Writer;
    use crate::{WorkerFinding, WorkerHealth};

    const OTHER: RouterId = RouterId(2);

    fn batch(number: u64, worker: u64) -> Vec<u8> {
        let finding = WorkerFinding { version: number, health: WorkerHealth::Failing, clears: 0 };
        let updates = Ledger { findings: [(worker, finding)].into(), ..Ledger::default() };
        PeerMessage::Batch { from: OTHER, number, updates }.encode()
    }

    /// Queries that are sent within this time.
    fn queries_within(peers: &mut Peers, from: Micros, duration: Micros) -> Vec<Query> {
        let mut queries = Vec::new();
        for step in 0..duration.0 / 20_000 {
            let now = Micros(from.0 + step * 20_000);
            peers.receive(&batch(1, 1), now, &mut Vec::new()).unwrap();
            for envelope in peers.compose(LedgerUpdates::default(), now) {
                if let Ok(Some(PeerMessage::Query { query, .. })) = PeerMessage::decode(&envelope.bytes)
                    && query.kind != QueryKind::Ping
                {
                    queries.push(query);
                }
            }
        }
        queries
    }

    fn answer(peers: &mut Peers, query: &Query, count: u32, bytes: Vec<u8>, now: Micros) {
        let (query_id, asked_at_us) = (query.id, query.asked_at_us);
        let part = AnswerPart { query_id, asked_at_us, answer_id: 1, index: 0, count };
        let message = PeerMessage::Answer { from: OTHER, part, bytes };
        peers.receive(&message.encode(), now, &mut Vec::new()).unwrap();
    }

    #[test]
    fn unreadable_batches_are_given_up_and_readable_ones_applied() {
        let second = Micros::from_secs;
        // One answer holds a batch that needs a later version; another claims 2^30 parts.
        let mut later = batch(2, 2);
        later[0] = 9;
        let mut writer = Writer::default();
        [&later, &batch(3, 3)].into_iter().for_each(|bytes| writer.sized_bytes(bytes));
        for (count, bytes, failing) in [(1, writer.bytes, 3), (1 << 30, Vec::new(), 2), (1, vec![200], 2)] {
            let mut peers = Peers::new(RouterId(1), Config::default());
            for number in [1, 4] {
                peers.receive(&batch(number, number), second(1), &mut Vec::new()).unwrap();
            }
            let query = queries_within(&mut peers, second(1), Micros::from_millis(400)).remove(0);
            assert_eq!(query.kind, QueryKind::Batches(vec![2..=3]));
            answer(&mut peers, &query, count, bytes, second(2));
            assert_eq!(
                queries_within(&mut peers, second(2), second(10)),
                [],
                "a repeated query would get the same answer"
            );
            let view = peers.statuses(second(12))[0];
            assert_eq!((view.missing, view.failing), (0, failing));
        }
    }

    /// Gaps in a peer that sends batches 1 and 2 and, after this silence, batch 5.
    fn gaps_after(silence: Micros) -> Vec<RangeInclusive<u64>> {
        let (mut peers, mut now) = (Peers::new(RouterId(1), Config::default()), Micros::from_secs(1));
        let receive = |peers: &mut Peers, number, now| {
            peers.receive(&batch(number, 7), now, &mut Vec::new()).unwrap();
        };
        [1, 2].into_iter().for_each(|number| receive(&mut peers, number, now));
        while now < Micros::from_secs(1) + silence {
            now = now + Micros::from_millis(20);
            peers.compose(LedgerUpdates::default(), now);
            peers.expire(now, &mut Vec::new());
        }
        receive(&mut peers, 5, now);
        assert_eq!(peers.lost_peers, 1);
        peers.peers[&OTHER].batches.gaps().collect()
    }

    #[test]
    fn a_peer_that_returns_after_minutes_counts_as_new() {
        assert_eq!(gaps_after(Micros::from_secs(10)), [3..=4]);
        assert_eq!(gaps_after(SUSPENDED_FOR + Micros::from_secs(1)), [0..=0]);
    }

    #[test]
    fn urgent_changes_are_sent_soon_and_others_at_the_idle_interval() {
        let (mut peers, ms) = (Peers::new(RouterId(1), Config::default()), Micros::from_millis);
        assert!(peers.may_send_now(ms(1_000)), "nothing was sent before");
        assert_eq!(peers.compose(LedgerUpdates::default(), ms(1_000)).len(), 1);
        assert_eq!(peers.next_compose_in(ms(1_000)), ms(100), "nothing waits");
        assert!(!peers.may_send_now(ms(1_005)));
        assert_eq!(peers.next_compose_in(ms(1_012)), ms(8));
        assert_eq!(peers.next_compose_in(ms(1_030)), Micros::ZERO, "it is late");
        peers.compose(LedgerUpdates::default(), ms(1_030));
        assert_eq!(peers.next_compose_in(ms(1_030)), ms(100));
        [1, 3].into_iter().for_each(|number| {
            peers.receive(&batch(number, 7), ms(1_040), &mut Vec::new()).unwrap();
        });
        assert_eq!(peers.next_compose_in(ms(1_040)), ms(20), "a batch is missing");
    }

    #[test]
    fn the_longest_silent_peers_are_forgotten_above_the_limit() {
        let mut peers = Peers::new(RouterId(1), Config::default());
        for step in 0..400 {
            let now = Micros::from_millis(1_000 + 20 * step);
            let beat = PeerMessage::Batch { from: RouterId(2 + step), number: 1, updates: Ledger::default() };
            peers.receive(&beat.encode(), now, &mut Vec::new()).unwrap();
            peers.compose(LedgerUpdates::default(), now);
            peers.expire(now, &mut Vec::new());
        }
        assert_eq!(peers.suspended.len(), SUSPENDED_MAX);
        assert_eq!(
            peers.suspended.last_key_value().unwrap().0.0 + 1,
            peers.peers.first_key_value().unwrap().0.0
        );
    }
}
