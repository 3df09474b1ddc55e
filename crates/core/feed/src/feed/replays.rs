//! What replays prove, and how a feed starts over.
//!
//! A replay's first batch shows where the engine's memory begins; its end shows whether anything is still missing. A
//! new process starts with nothing. A rebuilt view starts with nothing too, but keeps what answers have shown about
//! its stream: repeating false events does not make them true.

use warmroute_types::{EventBatch, Micros};

use super::Feed;
use crate::groups::Groups;
use crate::replay_schedule::ReplaySchedule;
use crate::state::{
    Applied, BatchOrigin, ConnectionState, Credibility, Doubt, Replay, ReplayReason, StreamState,
};
use crate::step::{ReplayEnd, Step};

impl Feed {
    /// Handles the first batch of a replay, which shows where the engine's memory begins.
    pub(super) fn replay_begins(&mut self, reason: ReplayReason, seq: u64, steps: &mut Vec<Step>) {
        match reason {
            // The engine no longer has the known batch. Whether it is the known process cannot be decided, and its
            // own memory is the better start.
            ReplayReason::Reconnect if self.next.is_some_and(|next| seq >= next) => self.start_over(steps),
            ReplayReason::Rebuild if self.counters.floor_seq.is_some_and(|floor| seq <= floor) => {
                self.start_over(steps);
            }
            // It never becomes possible: the engine's memory only moves on.
            ReplayReason::Rebuild => self.rebuild.cancel(),
            ReplayReason::Join | ReplayReason::Reconnect | ReplayReason::Gap | ReplayReason::Silence => {}
        }
    }

    /// Updates the state at the end of a replay.
    pub(super) fn conclude_replay(&mut self, replay: Replay, end: ReplayEnd, now: Micros) {
        let is_complete = end == ReplayEnd::Complete;
        match (replay.reason, end) {
            // Whether the same process is there, and what was missed, stays unknown.
            (ReplayReason::Reconnect, ReplayEnd::Failed) => {
                self.stream_state = StreamState::Doubted(Doubt::Lost);
                self.plan_rebuild(now);
            }
            // A later replay may still bring what the engine held before. What an interrupted one has brought is
            // continued.
            (ReplayReason::Join, ReplayEnd::Failed) if !replay.has_begun => self.plan_rebuild(now),
            // Everything published has arrived, one way or another.
            (ReplayReason::Silence, ReplayEnd::Complete) => self.silence.reset(),
            _ => {}
        }
        match (end, replay.has_begun) {
            (ReplayEnd::Complete, _) => {
                self.connection = ConnectionState::Verified;
                self.retry.cancel();
            }
            // The replay was interrupted: the next batch must show that it follows.
            (ReplayEnd::Failed, true) => self.connection = ConnectionState::Unverified,
            (ReplayEnd::Failed, false) => {}
        }
        if end == ReplayEnd::Failed {
            self.retry.plan(self.config.rebuild_after, now);
        }
        if replay.reason == ReplayReason::Join && self.next.is_none() && is_complete {
            // The engine has published nothing yet, so its first batch has number 0.
            (self.next, self.counters.floor_seq) = (Some(0), Some(0));
            self.stream_state = StreamState::Complete;
        }
    }

    /// Requests a gap that a replay left, unless it was just requested: then it stays.
    pub(super) fn handle_gap(&mut self, replay: Replay, end: ReplayEnd, now: Micros, steps: &mut Vec<Step>) {
        let (Some(next), Some(first), None) = (self.next, self.held.first(), self.replay) else { return };
        if first <= next {
            return;
        }
        let is_new = replay.covers.is_none_or(|covers| next > covers);
        if end == ReplayEnd::Complete && is_new {
            self.counters.gaps += 1;
            return self.request_replay(ReplayReason::Gap, next, steps);
        }
        self.record_loss(next, first);
        if end == ReplayEnd::Failed {
            self.plan_rebuild(now);
        }
        self.next = Some(first);
        self.apply_held(steps);
        // The rest has a gap of its own.
        if let (Some(next), Some(_), None) = (self.next, self.held.first(), self.replay) {
            self.counters.gaps += 1;
            self.request_replay(ReplayReason::Gap, next, steps);
        }
    }

    /// A new process is sending: starts over with it. Held batches may be of either process, so everything is
    /// requested.
    pub(super) fn restart(
        &mut self,
        seq: u64,
        batch: EventBatch,
        origin: BatchOrigin,
        steps: &mut Vec<Step>,
    ) {
        self.forget(steps);
        self.live_max = 0;
        if origin != BatchOrigin::Replayed {
            self.hold(seq, batch);
        }
        self.request_replay(ReplayReason::Join, 0, steps);
    }

    /// Forgets the worker. A new process starts with full trust.
    pub(super) fn forget(&mut self, steps: &mut Vec<Step>) {
        self.counters.restarts += 1;
        self.held.clear();
        self.credibility = Credibility::Trusted;
        self.start_over(steps);
    }

    /// Clears what is known, here and in the index.
    pub(super) fn start_over(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::Forget);
        self.reset();
    }

    /// Clears the state. A stream replayed from its beginning is complete again; one that answers contradict may
    /// repeat itself.
    pub(super) fn reset(&mut self) {
        self.next = None;
        self.counters.floor_seq = None;
        self.applied = Applied::default();
        self.groups = Groups::default();
        self.stream_state = StreamState::Unknown;
        if self.credibility == Credibility::Trusted {
            self.rebuild = ReplaySchedule::default();
        }
    }
}
