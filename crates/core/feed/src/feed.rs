//! The stream of one worker: what to apply, when to ask again, when to forget, what it is worth.
//!
//! Laws, each with a test: a batch is applied once and in order. A hole is asked for; if it stays, the view is kept and
//! marked uncertain. A batch that the same process cannot have sent is a restart: exactly this worker is forgotten. A
//! reconnect asks for the last batch we know, so the same process is recognised and another one is not. A replay that
//! begins later than asked for at the first connection leaves a *floor*: what is known is true, what the engine held
//! before is missing, so the view is reported and errs only towards too little.

use warmroute_types::{CacheEvent, EventBatch, Micros};

use crate::config::Config;
use crate::counters::Counters;
use crate::groups::Groups;
use crate::held::{Held, Room};
use crate::prints::PRINTS_MAX;
use crate::silence::Silence;
use crate::state::{Known, Line, Rebuild, Replay, Standing, Way, Whose, Why};
use crate::step::{Moment, ReplayEnd, Step, View};

/// One worker's event stream.
#[derive(Debug)]
pub struct Feed {
    config: Config,
    line: Line,
    standing: Standing,
    /// The batch that is to be applied next.
    next: Option<u64>,
    /// The highest number that came live over this connection.
    live_max: u64,
    replay: Option<Replay>,
    held: Held,
    known: Known,
    groups: Groups,
    silence: Silence,
    rebuild: Rebuild,
    counters: Counters,
    told: View,
}

impl Feed {
    /// A feed that has heard nothing.
    pub fn new(config: Config) -> Feed {
        Feed {
            config,
            line: Line::Down,
            standing: Standing::Unknown,
            next: None,
            live_max: 0,
            replay: None,
            held: Held::default(),
            known: Known::default(),
            groups: Groups::default(),
            silence: Silence::default(),
            rebuild: Rebuild::default(),
            counters: Counters::default(),
            told: View::default(),
        }
    }

    /// What the view is worth, as last told.
    pub fn view(&self) -> View {
        self.told
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        Counters { next_seq: self.next, ..self.counters }
    }

    /// The stream is connected; live batches follow.
    pub fn connected(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.line = Line::Unproven;
        self.silence.up();
        self.held.clear();
        self.live_max = 0;
        match self.known.prints.last_seq() {
            Some(last) => self.ask(Why::Reconnect, last, steps),
            None => {
                // Whoever was there had published nothing; whoever is there now may have.
                (self.next, self.counters.floor_seq) = (None, None);
                self.standing = Standing::Unknown;
                self.ask(Why::Join, 0, steps);
            }
        }
        self.tell_view(now, steps);
    }

    /// Begins anew where the driver knows that another process speaks, or that all is told again. The driver has seen to it
    /// that the worker is forgotten.
    pub fn begin(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.reset();
        self.connected(now, steps);
    }

    /// The connection is gone. What is held would be asked for again anyway.
    pub fn disconnected(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.line = Line::Down;
        self.silence.down(now);
        self.replay = None;
        self.held.clear();
        self.tell_view(now, steps);
    }

    /// A live batch.
    pub fn heard(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        self.counters.lag_s = (at.unix_s - batch.at_unix_s).max(0.0);
        self.arrived(&batch);
        self.silence.heard();
        match self.replay.map(|replay| replay.why) {
            Some(Why::Join | Why::Reconnect | Why::Rebuild) => self.hold(seq, batch),
            Some(Why::Gap) | None => self.take(seq, batch, Way::Live, steps),
        }
        self.live_max = self.live_max.max(seq);
        self.tell_view(at.now, steps);
    }

    /// A batch of the replay that was asked for last, in the order in which the engine sends them.
    pub fn replayed(&mut self, seq: u64, batch: EventBatch, now: Micros, steps: &mut Vec<Step>) {
        self.arrived(&batch);
        let Some(replay) = &mut self.replay else {
            self.counters.duplicates += 1;
            return;
        };
        let is_first = !std::mem::replace(&mut replay.has_begun, true);
        let why = replay.why;
        if is_first {
            self.replay_begins(why, seq, steps);
        }
        self.take(seq, batch, Way::Replayed, steps);
        self.tell_view(now, steps);
    }

    /// The replay that was asked for last has ended.
    pub fn replay_ended(&mut self, end: ReplayEnd, now: Micros, steps: &mut Vec<Step>) {
        let Some(replay) = self.replay.take() else { return };
        // Only a process that never published the batch we know has nothing to say about it.
        if (replay.why, end, replay.has_begun) == (Why::Reconnect, ReplayEnd::Complete, false) {
            self.forget(steps);
            self.ask(Why::Join, 0, steps);
            return self.tell_view(now, steps);
        }
        self.conclude(replay, end, now);
        self.take_held(steps);
        self.face_hole(replay, end, now, steps);
        self.tell_view(now, steps);
    }

    /// An answer came from this worker that must have filled a block: more new tokens than a block has.
    pub fn worked(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.silence.worked(now);
        self.tell_view(now, steps);
    }

    /// Answers contradict what was reported: the view is discounted until it is cleared, rebuilt or vouched for.
    pub fn doubt(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if self.standing == Standing::Sound {
            self.standing = Standing::Doubted;
            self.plan_rebuild(now);
        }
        self.tell_view(now, steps);
    }

    /// Answers agree with what was reported, again and again.
    pub fn vouch(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if self.standing == Standing::Doubted {
            self.standing = Standing::Sound;
            self.rebuild = Rebuild::default();
        }
        self.tell_view(now, steps);
    }

    /// Time has passed. To be called about once a second.
    pub fn tick(&mut self, now: Micros, steps: &mut Vec<Step>) {
        let is_due = self.rebuild.due.is_some_and(|due| due <= now);
        if is_due && self.line == Line::Proven && self.replay.is_none() {
            self.plan_rebuild(now);
            self.ask(Why::Rebuild, 0, steps);
        }
        self.tell_view(now, steps);
    }

    fn arrived(&mut self, batch: &EventBatch) {
        self.counters.batches += 1;
        self.counters.unreadable += u64::from(batch.unreadable);
    }

    fn hold(&mut self, seq: u64, batch: EventBatch) {
        let room = self.held.insert(seq, batch, self.config.held_batches_max, self.config.held_blocks_max);
        match room {
            Room::Found => {}
            Room::Known => self.counters.duplicates += 1,
            Room::Full => self.counters.dropped += 1,
        }
    }

    fn ask(&mut self, why: Why, from_seq: u64, steps: &mut Vec<Step>) {
        self.replay = Some(Replay { why, covers: self.held.last(), has_begun: false });
        self.counters.replays += 1;
        steps.push(Step::AskReplay { from_seq });
    }

    /// The first batch of a replay tells where the engine's memory begins.
    fn replay_begins(&mut self, why: Why, seq: u64, steps: &mut Vec<Step>) {
        match why {
            // The engine does not remember the batch we know. Whether it is the process we knew cannot be told any more,
            // and its own memory is the better beginning.
            Why::Reconnect if self.next.is_some_and(|next| seq >= next) => self.start_over(steps),
            Why::Rebuild if self.counters.floor_seq.is_some_and(|floor| seq <= floor) => {
                self.start_over(steps);
            }
            // It will never be possible again: memories only move on.
            Why::Rebuild => self.rebuild = Rebuild::default(),
            Why::Join | Why::Reconnect | Why::Gap => {}
        }
    }

    /// Where a batch belongs.
    fn take(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
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
        if self.replay.is_none_or(|replay| replay.why == Why::Gap) {
            self.take_held(steps);
        }
    }

    fn take_early(&mut self, seq: u64, next: u64, batch: EventBatch, steps: &mut Vec<Step>) {
        self.hold(seq, batch);
        if self.replay.is_none() {
            self.counters.gaps += 1;
            self.ask(Why::Gap, next, steps);
        }
    }

    /// A number below the one expected: known, or too late, or of another process.
    fn take_old(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
        match self.whose(seq, &batch, way) {
            Whose::SameProcess => self.counters.duplicates += 1,
            Whose::NewProcess => self.restart(seq, batch, way, steps),
        }
    }

    fn whose(&self, seq: u64, batch: &EventBatch, way: Way) -> Whose {
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

    /// Another process speaks: begins with it. What is held may be of either, so all of it is asked for.
    fn restart(&mut self, seq: u64, batch: EventBatch, way: Way, steps: &mut Vec<Step>) {
        self.forget(steps);
        self.live_max = 0;
        if way != Way::Replayed {
            self.hold(seq, batch);
        }
        self.ask(Why::Join, 0, steps);
    }

    fn forget(&mut self, steps: &mut Vec<Step>) {
        self.counters.restarts += 1;
        self.held.clear();
        self.start_over(steps);
    }

    /// Nothing is known any more, here and in the index.
    fn start_over(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::Forget);
        self.reset();
    }

    fn reset(&mut self) {
        self.next = None;
        self.counters.floor_seq = None;
        self.known = Known::default();
        self.groups = Groups::default();
        self.rebuild = Rebuild::default();
        self.standing = Standing::Unknown;
    }

    fn apply(&mut self, seq: u64, mut batch: EventBatch, steps: &mut Vec<Step>) {
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
            self.standing = Standing::Doubted;
        }
        if !batch.events.is_empty() {
            steps.push(Step::Apply(batch.events));
        }
    }

    /// What a batch that was applied does to trust.
    fn settle(&mut self, events: &[CacheEvent]) {
        if self.replay.is_none() {
            self.line = Line::Proven;
        }
        if events.contains(&CacheEvent::Cleared) {
            self.standing = Standing::Sound;
            self.rebuild = Rebuild::default();
        } else if self.standing == Standing::Unknown {
            self.standing = Standing::Sound;
        }
    }

    /// Everything that waits and now has its turn.
    fn take_held(&mut self, steps: &mut Vec<Step>) {
        while let Some(due) = self.next.or_else(|| self.held.first())
            && let Some((seq, batch)) = self.held.pop_up_to(due)
        {
            match self.next {
                Some(next) if seq < next => self.take_old(seq, batch, Way::Held, steps),
                _ => self.apply(seq, batch, steps),
            }
            if self.replay.is_some_and(|replay| replay.why != Why::Gap) {
                return;
            }
        }
    }

    /// What the end of a replay proves.
    fn conclude(&mut self, replay: Replay, end: ReplayEnd, now: Micros) {
        let is_complete = end == ReplayEnd::Complete;
        match (replay.why, end) {
            // Whether the same process is there, and what we missed, nobody has said.
            (Why::Reconnect, ReplayEnd::Failed) => {
                self.standing = Standing::Doubted;
                self.plan_rebuild(now);
            }
            // What the engine held before may yet be learned.
            (Why::Join, ReplayEnd::Failed) => self.plan_rebuild(now),
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
    fn face_hole(&mut self, replay: Replay, end: ReplayEnd, now: Micros, steps: &mut Vec<Step>) {
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

    /// Gives up what is missing before `seq`, and takes what is held of it.
    fn skip_to(&mut self, seq: u64, steps: &mut Vec<Step>) {
        while let Some((held, batch)) = self.held.pop_up_to(seq.saturating_sub(1)) {
            self.lose_up_to(held);
            self.apply(held, batch, steps);
        }
        self.lose_up_to(seq);
    }

    fn lose_up_to(&mut self, seq: u64) {
        if let Some(next) = self.next {
            self.lose(next, seq);
        }
    }

    fn lose(&mut self, from: u64, to: u64) {
        if self.known.prints.last_seq().is_none() {
            // Nothing is known yet that could be wrong: this is where it begins.
            self.counters.floor_seq = Some(to);
            return;
        }
        self.counters.lost += to.saturating_sub(from);
        if self.standing == Standing::Sound {
            self.standing = Standing::Doubted;
        }
    }

    fn plan_rebuild(&mut self, now: Micros) {
        self.rebuild.plan(self.config.rebuild_after, now);
    }

    fn tell_view(&mut self, now: Micros, steps: &mut Vec<Step>) {
        let view = self.judge(now);
        if view != self.told {
            self.told = view;
            steps.push(Step::View(view));
        }
    }

    fn judge(&self, now: Micros) -> View {
        let is_joining = self.replay.is_some_and(|replay| matches!(replay.why, Why::Join | Why::Rebuild));
        match (self.standing, self.line) {
            _ if self.silence.is_over(&self.config, now) => View::Silent,
            (Standing::Unknown, _) => View::Silent,
            // The beginning is being told; until its end, half of it is only half the truth.
            _ if is_joining && self.replay.is_some_and(|replay| replay.has_begun) => View::Uncertain,
            (Standing::Sound, Line::Proven) => View::Reported,
            _ => View::Uncertain,
        }
    }
}

#[cfg(test)]
mod tests;
