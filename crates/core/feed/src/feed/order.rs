//! Where a batch belongs: it is applied once and in order, whichever way it came.
//!
//! The one that is expected is applied, one that is too early waits and has the gap asked for, one that is too late is
//! known already or tells that another process speaks.

use warmroute_types::{CacheEvent, EventBatch};

use super::Feed;
use crate::prints::PRINTS_MAX;
use crate::state::{Doubt, Line, Standing, Way, Whose, Why};
use crate::step::Step;

impl Feed {
    /// Where a batch belongs.
    pub(super) fn take(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
        match self.next {
            None => self.apply(seq, batch, steps),
            Some(next) if seq == next => self.apply(seq, batch, steps),
            Some(next) if seq < next => self.take_old(seq, batch, way, steps),
            Some(next) => match way {
                Way::Live | Way::Held => self.take_early(seq, next, batch, steps),
                Way::Replayed => {
                    self.skip_to(seq, steps);
                    self.apply(seq, batch, steps);
                }
            },
        }
        if self.replay.is_none_or(|replay| !replay.why.holds_live()) {
            self.take_held(steps);
        }
    }

    pub(super) fn take_early(&mut self, seq: u64, next: u64, batch: EventBatch, steps: &mut Vec<Step>) {
        self.hold(seq, batch);
        if self.replay.is_none() {
            self.counters.gaps += 1;
            self.ask(Why::Gap, next, steps);
        }
    }

    /// A number below the one expected: known, or too late, or of another process.
    pub(super) fn take_old(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
        match self.whose(seq, &batch, way) {
            Whose::SameProcess => self.counters.duplicates += 1,
            Whose::NewProcess => self.restart(seq, batch, way, steps),
        }
    }

    pub(super) fn whose(&self, seq: u64, batch: &EventBatch, way: Way) -> Whose {
        let is_same = match self.known.prints.get(seq) {
            Some(print) => print == batch.print,
            // One process numbers its batches in the order of time. A clock may step back, but a live stream does not
            // repeat what is far behind itself (it may well be far behind a replay).
            None => {
                let behind = self.live_max.saturating_sub(seq);
                let is_far = way == Way::Live && behind > PRINTS_MAX as u64;
                batch.at_unix_s <= self.known.at_unix_s && !is_far
            }
        };
        if is_same { Whose::SameProcess } else { Whose::NewProcess }
    }

    pub(super) fn apply(&mut self, seq: u64, mut batch: EventBatch, steps: &mut Vec<Step>) {
        self.counters.floor_seq.get_or_insert(seq);
        self.next = Some(seq.saturating_add(1));
        self.known.prints.push(seq, batch.print);
        self.known.at_unix_s = self.known.at_unix_s.max(batch.at_unix_s);
        self.counters.skipped_blocks += self.groups.filter(&mut batch.events);
        let (stored, removed) = batch.blocks();
        self.counters.blocks_stored += stored;
        self.counters.blocks_removed += removed;
        self.settle(&batch.events);
        if batch.unreadable > 0 && self.standing == Standing::Sound {
            // What could not be read may have been a removal. A replay would say the same again.
            self.standing = Standing::Doubted(Doubt::Unreadable);
        }
        if !batch.events.is_empty() {
            steps.push(Step::Apply(batch.events));
        }
    }

    /// What a batch that was applied proves. An empty cache is known exactly, but that is no merit of a stream that answers
    /// contradict: its credit stays as it is.
    pub(super) fn settle(&mut self, events: &[CacheEvent]) {
        if self.replay.is_none() {
            self.line = Line::Proven;
        }
        if events.contains(&CacheEvent::Cleared) {
            self.standing = Standing::Sound;
            self.rebuild.call_off();
        } else if self.standing == Standing::Unknown {
            self.standing = Standing::Sound;
        }
    }

    /// Everything that waits and now has its turn.
    pub(super) fn take_held(&mut self, steps: &mut Vec<Step>) {
        while let Some(due) = self.next.or_else(|| self.held.first())
            && let Some((seq, batch)) = self.held.pop_up_to(due)
        {
            match self.next {
                Some(next) if seq < next => self.take_old(seq, batch, Way::Held, steps),
                _ => self.apply(seq, batch, steps),
            }
            if self.replay.is_some_and(|replay| replay.why.holds_live()) {
                return;
            }
        }
    }

    /// Gives up what is missing before `seq`, and takes what is held of it.
    pub(super) fn skip_to(&mut self, seq: u64, steps: &mut Vec<Step>) {
        while let Some((held, batch)) = self.held.pop_up_to(seq.saturating_sub(1)) {
            self.lose_up_to(held);
            self.apply(held, batch, steps);
        }
        self.lose_up_to(seq);
    }

    pub(super) fn lose_up_to(&mut self, seq: u64) {
        if let Some(next) = self.next {
            self.lose(next, seq);
        }
    }

    pub(super) fn lose(&mut self, from: u64, to: u64) {
        if self.known.prints.last_seq().is_none() {
            // Nothing is known yet that could be wrong: this is where it begins.
            self.counters.floor_seq = Some(to);
            return;
        }
        self.counters.lost += to.saturating_sub(from);
        if self.standing == Standing::Sound {
            self.standing = Standing::Doubted(Doubt::Lost);
        }
    }
}
