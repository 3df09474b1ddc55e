//! What another router knows of the same stream, where the engine cannot be asked, or not any more.
//!
//! A sibling is one more place to ask for a replay. It has the last batches, or all that it knows of the cache up to one of
//! them; from there the stream goes on by the same rules as after any replay.

use warmroute_types::{CacheEvent, EventBatch, Micros};

use super::Feed;
use crate::state::{Line, Replay, Standing, Why};
use crate::step::{Extent, ReplayEnd, Step, View};

impl Feed {
    /// Whether batches are expected to come.
    pub fn is_up(&self) -> bool {
        self.line != Line::Down
    }

    /// Whether a replay is awaited.
    pub fn is_asking(&self) -> bool {
        self.replay.is_some()
    }

    /// The latest moment of a batch that was applied, by the engine's clock.
    pub fn at_unix_s(&self) -> f64 {
        self.known.at_unix_s
    }

    /// Up to where all that is known is true; `None` while it may not be.
    pub fn extent(&self) -> Option<Extent> {
        let seq = self.known.prints.last_seq().filter(|_| self.told == View::Reported)?;
        Some(Extent {
            seq,
            print: self.known.prints.get(seq)?,
            at_unix_s: self.known.at_unix_s,
            floor_seq: self.counters.floor_seq?,
            group: self.groups.followed(),
        })
    }

    /// Somebody has heard more than is known here: what is missing is asked for.
    pub fn behind(&mut self, steps: &mut Vec<Step>) {
        if let (Some(next), None) = (self.next, self.replay) {
            self.counters.gaps += 1;
            self.ask(Why::Gap, next, steps);
        }
    }

    /// Something was lost that somebody else has: all is asked for.
    pub fn mend(&mut self, steps: &mut Vec<Step>) {
        if self.is_up() && self.replay.is_none() {
            self.ask(Why::Rebuild, 0, steps);
        }
    }

    /// What the engine held before the first batch that is known may be known to somebody else: all is asked for. What is known
    /// stays, and what comes live waits.
    pub fn deepen(&mut self, steps: &mut Vec<Step>) {
        let is_shallow = self.counters.floor_seq.is_none_or(|floor| floor > 0);
        if is_shallow {
            self.mend(steps);
        }
    }

    /// Whether a gap that was asked about has been filled by what came meanwhile.
    pub fn is_filled(&self) -> bool {
        self.replay.is_some_and(|replay| replay.why == Why::Gap) && self.held.first().is_none()
    }

    /// The answer to a replay that was asked for: all that a sibling knows, up to one batch. What came live meanwhile goes on from
    /// there. False where it says no more than is known.
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
                // A gap is filled by what is in it.
                let before = u64::from(replay.why == Why::Gap);
                let is_stale = self.next.is_some_and(|next| seq.saturating_add(1) < next + before);
                if is_stale || replay.why == Why::Rebuild && !self.is_deeper(floor_seq) {
                    self.replay_ended(ReplayEnd::Failed, now, steps);
                    return false;
                }
                self.replay = None;
            }
        }
        self.reset();
        self.apply(seq, batch, steps);
        self.counters.floor_seq = floor_seq.or(Some(seq));
        self.line = Line::Proven;
        self.silence.up();
        self.take_held(steps);
        let over = Replay { why: Why::Gap, covers: None, has_begun: true };
        self.face_hole(over, ReplayEnd::Complete, now, steps);
        self.tell_view(now, steps);
        true
    }

    /// Whether something that begins there says more than what is known.
    fn is_deeper(&self, floor_seq: Option<u64>) -> bool {
        let is_lower = |known: u64| floor_seq.is_some_and(|floor| floor < known);
        self.standing != Standing::Sound || self.counters.floor_seq.is_none_or(is_lower)
    }
}
