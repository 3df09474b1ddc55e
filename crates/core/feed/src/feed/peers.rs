//! A peer's knowledge of the same stream, for when the engine cannot be asked.
//!
//! A peer router is one more source of a replay. It has the last batches, or a complete state up to one of them. From
//! there the stream continues by the same rules as after any replay.

use warmroute_types::{CacheEvent, EventBatch, Micros};

use super::Feed;
use crate::state::{ConnectionState, Replay, ReplayReason, StreamState};
use crate::step::{Extent, ReplayEnd, Step, View};

impl Feed {
    /// Whether the feed is connected.
    pub fn is_up(&self) -> bool {
        self.connection != ConnectionState::Down
    }

    /// Whether a replay is awaited.
    pub fn is_awaiting_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The latest timestamp of an applied batch, by the engine's clock.
    pub fn at_unix_s(&self) -> f64 {
        self.applied.at_unix_s
    }

    /// How far everything known is true; `None` while it may not be.
    pub fn extent(&self) -> Option<Extent> {
        let seq = self.applied.recent.last_seq().filter(|_| self.published == View::Reported)?;
        Some(Extent {
            seq,
            print: self.applied.recent.get(seq)?,
            at_unix_s: self.applied.at_unix_s,
            floor_seq: self.counters.floor_seq?,
            group: self.groups.followed(),
        })
    }

    /// A peer has received more: requests the missing batches.
    pub fn request_missing(&mut self, steps: &mut Vec<Step>) {
        if let (Some(next), None) = (self.next, self.replay) {
            self.counters.gaps += 1;
            self.request_replay(ReplayReason::Gap, next, steps);
        }
    }

    /// A peer has what was lost here: requests everything.
    pub fn request_everything(&mut self, steps: &mut Vec<Step>) {
        if self.is_up() && self.replay.is_none() {
            self.request_replay(ReplayReason::Rebuild, 0, steps);
        }
    }

    /// A peer may know what the engine held before the first known batch: requests everything. What is known stays,
    /// and live batches wait.
    pub fn request_history(&mut self, steps: &mut Vec<Step>) {
        let is_shallow = self.counters.floor_seq.is_none_or(|floor| floor > 0);
        if is_shallow {
            self.request_everything(steps);
        }
    }

    /// Whether later batches have filled a requested gap.
    pub fn is_filled(&self) -> bool {
        self.replay.is_some_and(|replay| replay.reason == ReplayReason::Gap) && self.held.first().is_none()
    }

    /// Handles a peer's complete state up to one batch, in reply to a request. Held live batches continue from there.
    /// Returns false where the state adds nothing.
    pub fn restored(&mut self, seq: u64, batch: EventBatch, now: Micros, steps: &mut Vec<Step>) -> bool {
        let floor_seq = batch.events.iter().find_map(|event| match event {
            CacheEvent::Restored(known) => Some(known.floor_seq),
            _ => None,
        });
        match self.replay {
            None => {
                self.counters.duplicates += 1;
                return false;
            }
            Some(replay) => {
                // A state closes a gap only if it lies beyond it.
                let before = u64::from(replay.reason == ReplayReason::Gap);
                let is_stale = self.next.is_some_and(|next| seq.saturating_add(1) < next + before);
                if is_stale || replay.reason == ReplayReason::Rebuild && !self.is_deeper(floor_seq) {
                    self.replay_ended(ReplayEnd::Failed, now, steps);
                    return false;
                }
                self.replay = None;
            }
        }
        self.reset();
        self.apply(seq, batch, steps);
        self.counters.floor_seq = floor_seq.or(Some(seq));
        self.connection = ConnectionState::Verified;
        self.silence.up();
        self.apply_held(steps);
        let over = Replay { reason: ReplayReason::Gap, covers: None, has_begun: true };
        self.handle_gap(over, ReplayEnd::Complete, now, steps);
        self.publish_view(now, steps);
        true
    }

    /// Whether a state that begins at this batch reaches further back than what is known.
    fn is_deeper(&self, floor_seq: Option<u64>) -> bool {
        let is_lower = |known: u64| floor_seq.is_some_and(|floor| floor < known);
        self.stream_state != StreamState::Complete || self.counters.floor_seq.is_none_or(is_lower)
    }
}
