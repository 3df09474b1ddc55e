//! Events of engines that only one router receives, relayed to all peers.
//!
//! Relayed batches carry the engine's own sequence numbers. A router notices a missing batch by the next one,
//! or by the stream positions that peers report, and requests it from any of them. A peer answers with
//! retained batches or with a snapshot of what it knows. All memory is bounded: what is dropped here can be
//! requested.

use std::collections::VecDeque;

use warmroute_types::{Micros, RouterId};

use crate::stream_fetches::StreamFetches;
use crate::{Envelope, PeerMessage, RelayedBatch, RelayedBatchKind, StreamPosition};

/// Bytes of batches that wait to be sent.
const UNSENT_BYTES_MAX: usize = 4 << 20;

/// Bytes of batches that are retained for peers that missed them.
const RETAINED_BYTES_MAX: usize = 4 << 20;

/// A larger batch is not sent. Peers notice the gap and fetch it in parts.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// Approximate size of a message.
const MESSAGE_BYTES: usize = 256 << 10;

/// Stream positions are sent at this interval.
const POSITIONS_INTERVAL: Micros = Micros::from_millis(500);

/// Stream positions in one message.
const POSITIONS_PER_MESSAGE: usize = 256;

/// Batches to relay, and requests for missing ones.
#[derive(Debug, Default)]
pub(crate) struct EventRelay {
    unsent: VecDeque<RelayedBatch>,
    unsent_bytes: usize,
    retained: VecDeque<RelayedBatch>,
    retained_bytes: usize,
    /// How far this router received each stream.
    positions: Vec<StreamPosition>,
    positions_sent_at: Option<Micros>,
    next_position: usize,
    pub fetches: StreamFetches,
    pub counts: RelayCounts,
}

/// Counters of relayed events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Batches sent to peers.
    pub sent: u64,
    /// Batches received from peers.
    pub received: u64,
    /// Batches not sent because they were too large or too many.
    pub dropped: u64,
    /// Requests to peers for a missing part of a stream.
    pub replays_requested: u64,
    /// Requests that no peer answered with events.
    pub replays_failed: u64,
    /// Requests of peers that were answered with events.
    pub replays_answered: u64,
    /// Relayed streams that are received without a gap.
    pub streams: u64,
}

impl EventRelay {
    /// Queues a batch for all peers.
    pub fn enqueue(&mut self, batch: RelayedBatch) {
        self.retain(batch.clone());
        if batch.bytes.len() > BATCH_BYTES_MAX {
            self.counts.dropped += 1;
            return;
        }
        self.unsent_bytes += batch.weight();
        self.unsent.push_back(batch);
        while self.unsent_bytes > UNSENT_BYTES_MAX
            && let Some(batch) = self.unsent.pop_front()
        {
            self.unsent_bytes -= batch.weight();
            self.counts.dropped += 1;
        }
    }

    /// Retains a batch for peers that missed it.
    pub fn retain(&mut self, batch: RelayedBatch) {
        self.retained_bytes += batch.weight();
        self.retained.push_back(batch);
        while self.retained_bytes > RETAINED_BYTES_MAX
            && let Some(batch) = self.retained.pop_front()
        {
            self.retained_bytes -= batch.weight();
        }
    }

    /// The batches of a stream from this sequence number on; `None` unless all of them are retained.
    pub fn retained_from(&self, worker: u64, source: u64, from_seq: u64) -> Option<Vec<RelayedBatch>> {
        let is_of = |batch: &&RelayedBatch| (batch.worker, batch.source) == (worker, source);
        let mut batches: Vec<RelayedBatch> =
            self.retained.iter().filter(is_of).filter(|batch| batch.seq >= from_seq).cloned().collect();
        batches.sort_by_key(|batch| batch.seq);
        batches.dedup_by_key(|batch| batch.seq);
        let is_complete = (0..).zip(&batches).all(|(at, batch)| batch.seq - from_seq == at);
        (is_complete && !batches.is_empty()).then_some(batches)
    }

    pub fn set_positions(&mut self, positions: Vec<StreamPosition>) {
        self.counts.streams = positions.len() as u64;
        self.positions = positions;
    }

    /// Messages to send now.
    pub fn compose(&mut self, from: RouterId, now: Micros) -> Vec<Envelope> {
        let mut messages = Vec::new();
        while !self.unsent.is_empty() {
            messages.push(PeerMessage::Relay { from, batches: self.take_message() });
        }
        let is_due = self.positions_sent_at.is_none_or(|sent| now.since(sent) >= POSITIONS_INTERVAL);
        if is_due && !self.positions.is_empty() {
            self.positions_sent_at = Some(now);
            messages.push(PeerMessage::Positions { from, positions: self.next_positions() });
        }

        messages.iter().map(Envelope::to_all).collect()
    }

    fn take_message(&mut self) -> Vec<RelayedBatch> {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while bytes < MESSAGE_BYTES
            && let Some(batch) = self.unsent.pop_front()
        {
            bytes += batch.weight();
            batches.push(batch);
        }
        self.unsent_bytes -= bytes;
        self.counts.sent += batches.len() as u64;
        batches
    }

    /// The next positions in turn, limited to one message.
    fn next_positions(&mut self) -> Vec<StreamPosition> {
        let (count, from) = (self.positions.len(), self.next_position);
        self.next_position = (from + POSITIONS_PER_MESSAGE) % count.max(1);
        (0..count.min(POSITIONS_PER_MESSAGE)).map(|i| self.positions[(from + i) % count]).collect()
    }

    /// Counts and retains batches that a peer relayed.
    pub fn receive(&mut self, batches: &[RelayedBatch]) {
        self.counts.received += batches.len() as u64;
        batches
            .iter()
            .filter(|batch| batch.kind != RelayedBatchKind::Snapshot)
            .for_each(|one| self.retain(one.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(seq: u64, bytes: usize) -> RelayedBatch {
        RelayedBatch { worker: 1, source: 2, seq, kind: RelayedBatchKind::Next, bytes: vec![0; bytes].into() }
    }

    fn sent_seqs(relay: &mut EventRelay) -> Vec<u64> {
        let envelopes = relay.compose(RouterId(1), Micros(1));
        let seqs = |envelope: &Envelope| match PeerMessage::decode(&envelope.bytes) {
            Ok(Some(PeerMessage::Relay { batches, .. })) => {
                batches.iter().map(|one| one.seq).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        envelopes.iter().flat_map(seqs).collect()
    }

    #[test]
    fn overflow_drops_the_oldest_and_oversized_batches_are_only_retained() {
        let mut relay = EventRelay::default();
        let many = UNSENT_BYTES_MAX / (100 << 10) + 5;
        (0..many as u64).for_each(|seq| relay.enqueue(batch(seq, 100 << 10)));
        relay.enqueue(batch(many as u64, BATCH_BYTES_MAX + 1));
        let sent_seqs = sent_seqs(&mut relay);
        assert_eq!(sent_seqs.last(), Some(&(many as u64 - 1)));
        assert_eq!(relay.counts.dropped, many as u64 - sent_seqs.len() as u64 + 1);
        assert!(relay.retained_bytes <= RETAINED_BYTES_MAX && relay.unsent_bytes == 0);
        assert!(relay.retained_from(1, 2, 0).is_none(), "the first batches are evicted");
        let retained = relay.retained_from(1, 2, many as u64).unwrap();
        assert_eq!(retained.len(), 1);
        assert!(relay.retained_from(1, 9, many as u64).is_none(), "another source");
    }

    #[test]
    fn retained_batches_are_returned_without_gaps_or_not_at_all() {
        let mut relay = EventRelay::default();
        [7, 5, 6, 6, 9].into_iter().for_each(|seq| relay.retain(batch(seq, 1)));
        let seqs = |from| {
            relay.retained_from(1, 2, from).map(|all| all.iter().map(|one| one.seq).collect::<Vec<_>>())
        };
        assert_eq!((seqs(9), seqs(8), seqs(5)), (Some(vec![9]), None, None));
        assert_eq!(relay.retained_from(1, 2, u64::MAX), None, "nothing retained at this number");
        relay.retain(batch(u64::MAX, 1));
        assert!(relay.retained_from(1, 2, u64::MAX).is_some());
    }

    #[test]
    fn stream_positions_are_sent_in_turn() {
        let mut relay = EventRelay::default();
        let position = |worker| StreamPosition { worker, source: 1, next: 1, at_unix_ms: 1 };
        relay.set_positions((0..600).map(position).collect());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 {
            seen.extend(relay.next_positions().iter().map(|position| position.worker));
        }
        assert_eq!(seen.len(), 600);
    }
}
