//! What replays prove, and how a feed begins again.
//!
//! A replay's first batch tells where the engine's memory begins, its end whether anything is still missing. A new
//! process begins with nothing; a view that is rebuilt begins with nothing too, but what answers have shown about its
//! stream stays: the same lies told again are no truth.

use warmroute_types::{EventBatch, Micros};

use super::Feed;
use crate::groups::Groups;
use crate::rebuild::Rebuild;
use crate::state::{Credit, Doubt, Known, Line, Replay, Standing, Way, Why};
use crate::step::{ReplayEnd, Step};

impl Feed {
    /// The first batch of a replay tells where the engine's memory begins.
    pub(super) fn replay_begins(&mut self, why: Why, seq: u64, steps: &mut Vec<Step>) {
        match why {
            // The engine does not remember the batch we know. Whether it is the process we knew cannot be told any more,
            // and its own memory is the better beginning.
            Why::Reconnect if self.next.is_some_and(|next| seq >= next) => self.start_over(steps),
            Why::Rebuild if self.counters.floor_seq.is_some_and(|floor| seq <= floor) => {
                self.start_over(steps);
            }
            // It will never be possible again: memories only move on.
            Why::Rebuild => self.rebuild.call_off(),
            Why::Join | Why::Reconnect | Why::Gap | Why::Hush => {}
        }
    }

    /// What the end of a replay proves.
    pub(super) fn conclude(&mut self, replay: Replay, end: ReplayEnd, now: Micros) {
        let is_complete = end == ReplayEnd::Complete;
        match (replay.why, end) {
            // Whether the same process is there, and what we missed, nobody has said.
            (Why::Reconnect, ReplayEnd::Failed) => {
                self.standing = Standing::Doubted(Doubt::Lost);
                self.plan_rebuild(now);
            }
            // What the engine held before may yet be learned.
            (Why::Join, ReplayEnd::Failed) => self.plan_rebuild(now),
            // All that was told is known, by whichever way it came.
            (Why::Hush, ReplayEnd::Complete) => self.silence.heard(),
            _ => {}
        }
        match (end, replay.has_begun) {
            (ReplayEnd::Complete, _) => self.line = Line::Proven,
            // It broke off: what comes next must show that it follows.
            (ReplayEnd::Failed, true) => self.line = Line::Unproven,
            (ReplayEnd::Failed, false) => {}
        }
        if replay.why == Why::Join && self.next.is_none() && is_complete {
            // It has published nothing yet, so its first batch is number 0.
            (self.next, self.counters.floor_seq) = (Some(0), Some(0));
            self.standing = Standing::Sound;
        }
    }

    /// A hole that a replay has left is asked for, unless it was just asked for: then it stays.
    pub(super) fn face_hole(&mut self, replay: Replay, end: ReplayEnd, now: Micros, steps: &mut Vec<Step>) {
        let (Some(next), Some(first), None) = (self.next, self.held.first(), self.replay) else { return };
        if first <= next {
            return;
        }
        let is_new = replay.covers.is_none_or(|covers| next > covers);
        if end == ReplayEnd::Complete && is_new {
            self.counters.gaps += 1;
            return self.ask(Why::Gap, next, steps);
        }
        self.lose(next, first);
        if end == ReplayEnd::Failed {
            self.plan_rebuild(now);
        }
        self.next = Some(first);
        self.take_held(steps);
        // What is left has a hole of its own.
        if let (Some(next), Some(_), None) = (self.next, self.held.first(), self.replay) {
            self.counters.gaps += 1;
            self.ask(Why::Gap, next, steps);
        }
    }

    /// Another process speaks: begins with it. What is held may be of either, so all of it is asked for.
    pub(super) fn restart(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
        self.forget(steps);
        self.live_max = 0;
        if way != Way::Replayed {
            self.hold(seq, batch);
        }
        self.ask(Why::Join, 0, steps);
    }

    /// A new process is judged by its own deeds.
    pub(super) fn forget(&mut self, steps: &mut Vec<Step>) {
        self.counters.restarts += 1;
        self.held.clear();
        self.credit = Credit::Given;
        self.start_over(steps);
    }

    /// Nothing is known any more, here and in the index.
    pub(super) fn start_over(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::Forget);
        self.reset();
    }

    /// A stream that is told from its beginning is whole again; one that answers contradict may tell the same again.
    pub(super) fn reset(&mut self) {
        self.next = None;
        self.counters.floor_seq = None;
        self.known = Known::default();
        self.groups = Groups::default();
        self.standing = Standing::Unknown;
        if self.credit == Credit::Given {
            self.rebuild = Rebuild::default();
        }
    }
}
