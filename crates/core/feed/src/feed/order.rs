//! Ordering: a batch is applied once and in order, however it arrived.
//!
//! The expected batch is applied. An early batch waits while its gap is requested. A late batch is a duplicate, or
//! shows that a new process is sending.

use warmroute_types::{CacheEvent, EventBatch};

use super::Feed;
use crate::recent_batches::RECENT_MAX;
use crate::state::{BatchOrigin, ConnectionState, Doubt, ReplayReason, Sender, StreamState};
use crate::step::Step;

impl Feed {
    /// Applies, holds or drops a batch.
    pub(super) fn accept(&mut self, seq: u64, batch: EventBatch, origin: BatchOrigin, steps: &mut Vec<Step>) {
        match self.next {
            None => self.apply(seq, batch, steps),
            Some(next) if seq == next => self.apply(seq, batch, steps),
            Some(next) if seq < next => self.accept_old(seq, batch, origin, steps),
            Some(next) => match origin {
                BatchOrigin::Live | BatchOrigin::Held => self.accept_early(seq, next, batch, steps),
                BatchOrigin::Replayed => {
                    self.skip_to(seq, steps);
                    self.apply(seq, batch, steps);
                }
            },
        }
        if self.replay.is_none_or(|replay| !replay.reason.holds_live()) {
            self.apply_held(steps);
        }
    }

    pub(super) fn accept_early(&mut self, seq: u64, next: u64, batch: EventBatch, steps: &mut Vec<Step>) {
        self.hold(seq, batch);
        if self.replay.is_none() {
            self.counters.gaps += 1;
            self.request_replay(ReplayReason::Gap, next, steps);
        }
    }

    /// A number below the expected one: a duplicate, too late, or of a new process.
    pub(super) fn accept_old(
        &mut self,
        seq: u64,
        batch: EventBatch,
        origin: BatchOrigin,
        steps: &mut Vec<Step>,
    ) {
        match self.sender_of(seq, &batch, origin) {
            Sender::SameProcess => self.counters.duplicates += 1,
            Sender::NewProcess => self.restart(seq, batch, origin, steps),
        }
    }

    pub(super) fn sender_of(&self, seq: u64, batch: &EventBatch, origin: BatchOrigin) -> Sender {
        let is_same = match self.applied.recent.get(seq) {
            Some(print) => print == batch.print,
            // One process numbers its batches in the order of time. A clock may step back, but a live stream does not
            // repeat a batch far behind itself (although it may be far behind a replay).
            None => {
                let distance = self.live_max.saturating_sub(seq);
                let is_far = origin == BatchOrigin::Live && distance > RECENT_MAX as u64;
                batch.at_unix_s <= self.applied.at_unix_s && !is_far
            }
        };
        if is_same { Sender::SameProcess } else { Sender::NewProcess }
    }

    pub(super) fn apply(&mut self, seq: u64, mut batch: EventBatch, steps: &mut Vec<Step>) {
        self.counters.floor_seq.get_or_insert(seq);
        self.next = Some(seq.saturating_add(1));
        self.applied.recent.push(seq, batch.print);
        self.applied.at_unix_s = self.applied.at_unix_s.max(batch.at_unix_s);
        self.counters.skipped_blocks += self.groups.filter(&mut batch.events);
        let (stored, removed) = batch.blocks();
        self.counters.blocks_stored += stored;
        self.counters.blocks_removed += removed;
        self.update_state(&batch.events);
        if batch.unreadable > 0 && self.stream_state == StreamState::Complete {
            // The unreadable event may have been a removal. A replay would repeat it.
            self.stream_state = StreamState::Doubted(Doubt::Unreadable);
        }
        if !batch.events.is_empty() {
            steps.push(Step::Apply(batch.events));
        }
    }

    /// Updates the state after an applied batch. A cleared cache is known exactly, but that does not restore the
    /// trust in a stream that answers contradict.
    pub(super) fn update_state(&mut self, events: &[CacheEvent]) {
        if self.replay.is_none() {
            self.connection = ConnectionState::Verified;
        }
        if events.contains(&CacheEvent::Cleared) {
            self.stream_state = StreamState::Complete;
            self.rebuild.cancel();
        } else if self.stream_state == StreamState::Unknown {
            self.stream_state = StreamState::Complete;
        }
    }

    /// Applies every held batch whose turn has come.
    pub(super) fn apply_held(&mut self, steps: &mut Vec<Step>) {
        while let Some(due) = self.next.or_else(|| self.held.first())
            && let Some((seq, batch)) = self.held.pop_up_to(due)
        {
            match self.next {
                Some(next) if seq < next => self.accept_old(seq, batch, BatchOrigin::Held, steps),
                _ => self.apply(seq, batch, steps),
            }
            if self.replay.is_some_and(|replay| replay.reason.holds_live()) {
                return;
            }
        }
    }

    /// Gives up the missing batches before `seq`, and applies the held ones among them.
    pub(super) fn skip_to(&mut self, seq: u64, steps: &mut Vec<Step>) {
        while let Some((held, batch)) = self.held.pop_up_to(seq.saturating_sub(1)) {
            self.record_loss_up_to(held);
            self.apply(held, batch, steps);
        }
        self.record_loss_up_to(seq);
    }

    pub(super) fn record_loss_up_to(&mut self, seq: u64) {
        if let Some(next) = self.next {
            self.record_loss(next, seq);
        }
    }

    pub(super) fn record_loss(&mut self, from: u64, to: u64) {
        if self.applied.recent.last_seq().is_none() {
            // Nothing is known yet that could be wrong: the stream begins here.
            self.counters.floor_seq = Some(to);
            return;
        }
        self.counters.lost += to.saturating_sub(from);
        if self.stream_state == StreamState::Complete {
            self.stream_state = StreamState::Doubted(Doubt::Lost);
        }
    }
}
