//! The stream of one worker: what to apply, when to ask again, when to forget, what it is worth.
//!
//! Laws, each with a test: a batch is applied once and in order. A hole is asked for; if it stays, the view is kept and
//! marked uncertain. A batch that the same process cannot have sent is a restart: exactly this worker is forgotten. A
//! reconnect asks for the last batch we know, so the same process is recognised and another one is not. A replay that
//! begins later than asked for at the first connection leaves a *floor*: what is known is true, what the engine held
//! before is missing, so the view is reported and errs only towards too little. What answers contradict is uncertain until
//! answers agree with it again, however often the stream tells it.

mod order;
mod replays;
mod siblings;

use warmroute_types::{EventBatch, Micros};

use crate::config::Config;
use crate::counters::Counters;
use crate::groups::Groups;
use crate::held::{Held, Room};
use crate::rebuild::Rebuild;
use crate::silence::Silence;
use crate::state::{Credit, Doubt, Known, Line, Replay, Standing, Way, Why};
use crate::step::{Moment, ReplayEnd, Step, View};

/// One worker's event stream.
#[derive(Debug)]
pub struct Feed {
    config: Config,
    line: Line,
    standing: Standing,
    credit: Credit,
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
            credit: Credit::Given,
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

    /// Why the view is worth less than it could be, if it is the stream's fault.
    pub fn doubt(&self) -> Option<Doubt> {
        match (self.credit, self.standing) {
            (Credit::Withdrawn, _) => Some(Doubt::Contradicted),
            (Credit::Given, Standing::Doubted(doubt)) => Some(doubt),
            (Credit::Given, Standing::Unknown | Standing::Sound) => None,
        }
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

    /// The driver knows that another process speaks: the worker is forgotten, and this is the beginning.
    pub fn restarted(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.forget(steps);
        self.connected(now, steps);
    }

    /// Begins anew where the driver knows that all is told again. The driver has seen to it that the worker is forgotten.
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
        self.counters.lag_s = lag_s(at.unix_s, batch.at_unix_s);
        self.arrived(&batch);
        self.counters.live += 1;
        self.silence.heard();
        match self.replay.is_some_and(|replay| replay.why.holds_live()) {
            true => self.hold(seq, batch),
            false => self.take(seq, batch, Way::Live, steps),
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
        if why == Why::Hush && self.next == Some(seq) {
            self.counters.unheard += 1;
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

    /// What answers have made of the view since it was told: less than it claims, or more. Told under the same lock as the
    /// steps are taken, it is exact: nothing but answers can have changed it.
    pub fn judged(&mut self, view: View, now: Micros, steps: &mut Vec<Step>) {
        match (self.told, view) {
            (View::Reported, View::Uncertain) => {
                self.credit = Credit::Withdrawn;
                self.plan_rebuild(now);
            }
            (View::Uncertain, View::Reported) => self.vouch(steps),
            _ => {}
        }
        self.tell_view(now, steps);
    }

    /// Answers agree with what was reported, again and again. They are of the past: who is at the other end of a line that
    /// was lost, and what is yet to be told, they do not know.
    fn vouch(&mut self, steps: &mut Vec<Step>) {
        if self.line != Line::Proven || self.replay.is_some_and(|replay| replay.why.holds_live()) {
            return steps.push(Step::View(View::Uncertain));
        }
        self.standing = Standing::Sound;
        self.credit = Credit::Given;
        self.rebuild.call_off();
    }

    /// Time has passed. To be called about once a second.
    pub fn tick(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if self.line == Line::Proven && self.replay.is_none() {
            self.ask_what_is_due(now, steps);
        }
        self.tell_view(now, steps);
    }

    fn ask_what_is_due(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if self.rebuild.is_due(now) {
            self.plan_rebuild(now);
            self.ask(Why::Rebuild, 0, steps);
        } else if let Some(next) = self.next
            && self.silence.asks(self.config.hush_after, now)
        {
            self.ask(Why::Hush, next, steps);
        }
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
            (Standing::Sound, Line::Proven) if self.credit == Credit::Given => View::Reported,
            _ => View::Uncertain,
        }
    }
}

/// How long a batch was under way. More than a day is somebody's clock, or none.
fn lag_s(now_unix_s: f64, at_unix_s: f64) -> f64 {
    let lag_s = now_unix_s - at_unix_s;
    if (0.0..86_400.0).contains(&lag_s) { lag_s } else { 0.0 }
}

#[cfg(test)]
mod tests;
