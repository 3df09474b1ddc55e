//! The event stream of one worker: what to apply, when to request a replay, when to forget the worker, and how far to
//! trust the view.
//!
//! Rules, each with a test:
//! * A batch is applied once and in order.
//! * A gap is requested again. If it stays, the view is kept and marked uncertain.
//! * A batch that the same process cannot have sent is a restart: exactly this worker is forgotten.
//! * A reconnect requests the last known batch, which tells the same process from another one.
//! * A first replay that begins later than requested leaves a *floor*: what is known is true and what the engine held
//!   before is missing, so the view is reported and errs only towards too little.
//! * A model whose caches cannot all be followed is presumed: its view is silent.
//! * A view that answers contradict is uncertain until answers agree with it again, however often the stream repeats
//!   it.

mod order;
mod replays;

use warmroute_types::{EventBatch, Micros};

use crate::config::Config;
use crate::counters::Counters;
use crate::groups::Groups;
use crate::held_batches::{HeldBatches, Insertion};
use crate::replay_schedule::ReplaySchedule;
use crate::silence::SilenceDetector;
use crate::state::{
    Applied, BatchOrigin, ConnectionState, Credibility, Doubt, Replay, ReplayReason, StreamState,
};
use crate::step::{Moment, ReplayEnd, Step, View};

/// One worker's event stream.
#[derive(Debug)]
pub struct Feed {
    config: Config,
    connection: ConnectionState,
    stream_state: StreamState,
    credibility: Credibility,
    /// The batch to apply next.
    next: Option<u64>,
    /// The highest number that arrived live over this connection.
    live_max: u64,
    replay: Option<Replay>,
    held: HeldBatches,
    applied: Applied,
    groups: Groups,
    silence: SilenceDetector,
    rebuild: ReplaySchedule,
    /// When to repeat a failed replay on a connection that nothing has verified since.
    retry: ReplaySchedule,
    counters: Counters,
    published: View,
}

impl Feed {
    /// A feed that has received nothing.
    pub fn new(config: Config) -> Feed {
        Feed {
            config,
            connection: ConnectionState::Down,
            stream_state: StreamState::Unknown,
            credibility: Credibility::Trusted,
            next: None,
            live_max: 0,
            replay: None,
            held: HeldBatches::default(),
            applied: Applied::default(),
            groups: Groups::default(),
            silence: SilenceDetector::default(),
            rebuild: ReplaySchedule::default(),
            retry: ReplaySchedule::default(),
            counters: Counters::default(),
            published: View::default(),
        }
    }

    /// The view's trust level, as last published.
    pub fn view(&self) -> View {
        self.published
    }

    /// Why the view is not trusted, where the stream is the cause.
    pub fn doubt(&self) -> Option<Doubt> {
        if let Some(obstacle) = self.groups.obstacle() {
            return Some(Doubt::Groups(obstacle));
        }
        match (self.credibility, self.stream_state) {
            (Credibility::Contradicted, _) => Some(Doubt::Contradicted),
            (Credibility::Trusted, StreamState::Doubted(doubt)) => Some(doubt),
            (Credibility::Trusted, StreamState::Unknown | StreamState::Complete) => None,
        }
    }

    /// All counters since the feed began, and the number of the batch that comes next.
    pub fn counters(&self) -> Counters {
        Counters { next_seq: self.next, ..self.counters }
    }

    /// The stream is connected; live batches follow.
    pub fn connected(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.connection = ConnectionState::Unverified;
        self.silence.up();
        self.held.clear();
        self.live_max = 0;
        self.request_first_replay(steps);
        self.publish_view(now, steps);
    }

    /// Requests the replay that shows which process is there and what was missed.
    fn request_first_replay(&mut self, steps: &mut Vec<Step>) {
        match self.applied.recent.last_seq() {
            Some(last) => self.request_replay(ReplayReason::Reconnect, last, steps),
            None => {
                // The former process had published nothing; the present one may have.
                (self.next, self.counters.floor_seq) = (None, None);
                self.stream_state = StreamState::Unknown;
                self.request_replay(ReplayReason::Join, 0, steps);
            }
        }
    }

    /// The driver knows that a new process sends the stream: the worker is forgotten, and the stream starts over.
    pub fn restarted(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.forget(steps);
        self.connected(now, steps);
    }

    /// Starts over because the driver knows that everything is sent again. The driver has already forgotten the
    /// worker.
    pub fn begin(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.reset();
        self.connected(now, steps);
    }

    /// The connection is lost. Held batches are dropped, since a replay brings them again.
    pub fn disconnected(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.connection = ConnectionState::Down;
        self.silence.down(now);
        self.replay = None;
        self.held.clear();
        self.publish_view(now, steps);
    }

    /// A live batch arrived.
    pub fn received_live(&mut self, seq: u64, batch: EventBatch, at: Moment, steps: &mut Vec<Step>) {
        self.counters.lag_s = lag_s(at.unix_s, batch.at_unix_s);
        self.count_batch(&batch);
        self.counters.live += 1;
        self.silence.reset();
        match self.replay.is_some_and(|replay| replay.reason.holds_live()) {
            true => self.hold(seq, batch),
            false => self.accept(seq, batch, BatchOrigin::Live, steps),
        }
        self.live_max = self.live_max.max(seq);
        self.publish_view(at.now, steps);
    }

    /// A batch of the last requested replay arrived, in the order in which the engine sends them.
    pub fn replayed(&mut self, seq: u64, batch: EventBatch, now: Micros, steps: &mut Vec<Step>) {
        self.count_batch(&batch);
        let Some(replay) = &mut self.replay else {
            self.counters.duplicates += 1;
            return;
        };
        let is_first = !std::mem::replace(&mut replay.has_begun, true);
        let reason = replay.reason;
        if is_first {
            self.replay_begins(reason, seq, steps);
        }
        if reason == ReplayReason::Silence && self.next == Some(seq) {
            self.counters.missed_live += 1;
        }
        self.accept(seq, batch, BatchOrigin::Replayed, steps);
        self.publish_view(now, steps);
    }

    /// The last requested replay has ended.
    pub fn replay_ended(&mut self, end: ReplayEnd, now: Micros, steps: &mut Vec<Step>) {
        let Some(replay) = self.replay.take() else { return };
        // Only a process that never published the known batch replies with nothing.
        if (replay.reason, end, replay.has_begun) == (ReplayReason::Reconnect, ReplayEnd::Complete, false) {
            self.forget(steps);
            self.request_replay(ReplayReason::Join, 0, steps);
            return self.publish_view(now, steps);
        }
        self.conclude_replay(replay, end, now);
        self.apply_held(steps);
        self.handle_gap(replay, end, now, steps);
        self.publish_view(now, steps);
    }

    /// The worker gave an answer that must have filled a block: more new tokens than a block has.
    pub fn answered(&mut self, now: Micros, steps: &mut Vec<Step>) {
        self.silence.record_answer(now);
        self.publish_view(now, steps);
    }

    /// Answers changed the view since it was published, down or up. The caller holds the same lock as for taking the
    /// steps, so nothing but answers can have changed it.
    pub fn corrected(&mut self, view: View, now: Micros, steps: &mut Vec<Step>) {
        match (self.published, view) {
            (View::Reported, View::Uncertain) => {
                self.credibility = Credibility::Contradicted;
                self.plan_rebuild(now);
            }
            (View::Uncertain, View::Reported) => self.restore_trust(steps),
            _ => {}
        }
        self.publish_view(now, steps);
    }

    /// Answers repeatedly agree with the view. They concern the past, so they cannot vouch for a lost connection or
    /// for batches that are still to come.
    fn restore_trust(&mut self, steps: &mut Vec<Step>) {
        if self.connection != ConnectionState::Verified
            || self.replay.is_some_and(|replay| replay.reason.holds_live())
        {
            return steps.push(Step::View(View::Uncertain));
        }
        self.stream_state = StreamState::Complete;
        self.credibility = Credibility::Trusted;
        self.rebuild.cancel();
    }

    /// Lets time pass. Call it about once a second.
    pub fn tick(&mut self, now: Micros, steps: &mut Vec<Step>) {
        match self.connection {
            _ if self.replay.is_some() => {}
            ConnectionState::Down => {}
            // An idle engine sends nothing that could tell more.
            ConnectionState::Unverified if self.retry.is_due(now) => self.request_first_replay(steps),
            ConnectionState::Unverified => {}
            ConnectionState::Verified => self.request_due_replay(now, steps),
        }
        self.publish_view(now, steps);
    }

    fn request_due_replay(&mut self, now: Micros, steps: &mut Vec<Step>) {
        if self.rebuild.is_due(now) {
            self.plan_rebuild(now);
            self.request_replay(ReplayReason::Rebuild, 0, steps);
        } else if let Some(next) = self.next
            && self.silence.should_ask(self.config.silence_check_after, now)
        {
            self.request_replay(ReplayReason::Silence, next, steps);
        }
    }

    fn count_batch(&mut self, batch: &EventBatch) {
        self.counters.batches += 1;
        self.counters.unreadable += u64::from(batch.unreadable);
    }

    fn hold(&mut self, seq: u64, batch: EventBatch) {
        let room = self.held.insert(seq, batch, self.config.held_batches_max, self.config.held_blocks_max);
        match room {
            Insertion::Inserted => {}
            Insertion::Duplicate => self.counters.duplicates += 1,
            Insertion::Full => self.counters.dropped += 1,
        }
    }

    fn request_replay(&mut self, reason: ReplayReason, from_seq: u64, steps: &mut Vec<Step>) {
        self.replay = Some(Replay { reason, covers: self.held.last(), has_begun: false });
        self.counters.replays += 1;
        steps.push(Step::AskReplay { from_seq });
    }

    fn plan_rebuild(&mut self, now: Micros) {
        self.rebuild.plan(self.config.rebuild_after, now);
    }

    fn publish_view(&mut self, now: Micros, steps: &mut Vec<Step>) {
        let view = self.assess(now);
        if view != self.published {
            self.published = view;
            steps.push(Step::View(view));
        }
    }

    fn assess(&self, now: Micros) -> View {
        let is_joining = self
            .replay
            .is_some_and(|replay| matches!(replay.reason, ReplayReason::Join | ReplayReason::Rebuild));
        match (self.stream_state, self.connection) {
            _ if self.silence.has_lasted(&self.config, now) => View::Silent,
            _ if self.groups.obstacle().is_some() => View::Silent,
            (StreamState::Unknown, _) => View::Silent,
            // While the beginning is being replayed, the view is only partly true.
            _ if is_joining && self.replay.is_some_and(|replay| replay.has_begun) => View::Uncertain,
            (StreamState::Complete, ConnectionState::Verified)
                if self.credibility == Credibility::Trusted =>
            {
                View::Reported
            }
            _ => View::Uncertain,
        }
    }
}

/// The delay of a batch in seconds. More than a day means a wrong clock, or none.
fn lag_s(now_unix_s: f64, at_unix_s: f64) -> f64 {
    let lag_s = now_unix_s - at_unix_s;
    if (0.0..86_400.0).contains(&lag_s) { lag_s } else { 0.0 }
}

#[cfg(test)]
mod tests;
