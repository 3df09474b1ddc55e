//! Runs one engine in real time.
//!
//! The engine says when a step ends, in engine time; the driver waits for that moment and lets it end. The next step
//! begins when the last one ended, not when the timer fired, so the timer's rounding never adds up: a driver that is
//! late goes on at once. An idle engine waits on its channel and costs nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use warmroute_engine::{Engine, Happened, SequenceId};
use warmroute_types::Micros;

use crate::clock::Clock;
use crate::command::{Command, Leavers, Submission};
use crate::events::EventReporter;
use crate::fault::Condition;
use crate::meter::{Board, Span};
use crate::progress::{End, Progress};

/// The runtime's timer counts whole milliseconds and rounds up, and so does the system call below it: it was measured to
/// fire 0.1 to 2 ms late, 1.1 ms in the median. Aiming that much early makes the error one of both signs and none on
/// average. It also lets steps shorter than this, as very high speeds have them, follow each other without a timer.
const EARLY: Duration = Duration::from_micros(1_100);

/// Longest delay that a driver makes up for. Beyond it (the host was busy, or the speed is too high) it does not
/// catch up, because the engine would seem to run faster than it can.
const LATE_MAX: Duration = Duration::from_millis(50);

/// The task that owns an engine.
pub(crate) struct Driver {
    engine: Engine,
    speed: f64,
    clock: Clock,
    /// The end of the last step: engine time is at least this.
    reached: Micros,
    step: Step,
    sequences: HashMap<SequenceId, Sequence>,
    happened: Vec<Happened>,
    inbox: mpsc::Receiver<Command>,
    leavers: Arc<Leavers>,
    board: Arc<Mutex<Board>>,
    condition: watch::Receiver<Condition>,
    /// Publishes cache events.
    reporter: Option<EventReporter>,
}

/// What a driver shares with its rank.
pub(crate) struct DriverChannels {
    pub(crate) inbox: mpsc::Receiver<Command>,
    pub(crate) leavers: Arc<Leavers>,
    pub(crate) board: Arc<Mutex<Board>>,
}

/// The state of the engine.
#[derive(Clone, Copy)]
enum Step {
    /// Between steps. If there is work left, the next step begins when the last one ended.
    Between { resume_at: Option<Micros> },
    /// In a step.
    Running { began: Micros, ends: Micros },
}

/// A sequence in the engine.
struct Sequence {
    progress: Arc<Progress>,
    span: Span,
}

/// Whether commands can still arrive.
#[derive(PartialEq, Eq)]
enum Life {
    Goes,
    Over,
}

impl Driver {
    pub(crate) fn new(
        engine: Engine,
        speed: f64,
        channels: DriverChannels,
        condition: watch::Receiver<Condition>,
        reporter: Option<EventReporter>,
    ) -> Driver {
        let DriverChannels { inbox, leavers, board } = channels;
        Driver {
            engine,
            speed,
            clock: Clock::start(Instant::now(), speed),
            reached: Micros::ZERO,
            step: Step::Between { resume_at: None },
            sequences: HashMap::new(),
            happened: Vec::new(),
            inbox,
            leavers,
            board,
            condition,
            reporter,
        }
    }

    /// Runs until the replica is gone.
    pub(crate) async fn run(mut self) {
        loop {
            self.take_waiting_commands();
            let life = match self.step {
                Step::Between { resume_at } => self.begin(resume_at).await,
                Step::Running { began, ends } => self.await_end(began, ends).await,
            };
            if life == Life::Over {
                return;
            }
        }
    }

    /// Begins a step, or waits for a command.
    async fn begin(&mut self, resume_at: Option<Micros>) -> Life {
        let began = resume_at.unwrap_or_else(|| self.now());
        match self.engine.begin_step(began) {
            Some(ends) => {
                self.step = Step::Running { began, ends };
                Life::Goes
            }
            None => {
                self.step = Step::Between { resume_at: None };
                self.wait(None).await
            }
        }
    }

    /// Waits for the end of the step or for a command.
    async fn await_end(&mut self, began: Micros, ends: Micros) -> Life {
        let now = Instant::now();
        match self.clock.wall_at(ends) {
            Some(due) if due <= now + EARLY => {
                self.forgive_lateness(now, due, ends);
                self.finish(began, ends).await;
                // The readers of the answer, perhaps on this thread, run first.
                tokio::task::yield_now().await;
                Life::Goes
            }
            Some(due) => self.wait(Some(due - EARLY)).await,
            None => self.wait(None).await,
        }
    }

    /// The present in engine time. A step may end a little early by the wall clock; a reader of its tokens that sends
    /// another request must find the step's end in the past.
    fn now(&self) -> Micros {
        self.clock.now(Instant::now()).max(self.reached)
    }

    fn forgive_lateness(&mut self, now: Instant, due: Instant, ends: Micros) {
        if now > due + LATE_MAX {
            self.clock.set(now, ends);
            self.board.lock().slips += 1;
        }
    }

    async fn wait(&mut self, until: Option<Instant>) -> Life {
        let wake = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
        tokio::select! {
            biased;
            command = self.inbox.recv() => match command {
                Some(command) => self.take(command),
                None => return Life::Over,
            },
            changed = self.condition.changed() => match changed {
                Ok(()) => self.follow_condition(),
                Err(_) => return Life::Over,
            },
            () = sleep_until(wake), if until.is_some() => {}
        }
        Life::Goes
    }

    fn follow_condition(&mut self) {
        let pace = self.condition.borrow_and_update().pace();
        self.clock.set_rate(Instant::now(), self.speed * pace);
    }

    fn take_waiting_commands(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.take(command);
        }
        if self.condition.has_changed().unwrap_or(false) {
            self.follow_condition();
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Clear(done) => self.clear(done),
            Command::Restart(done) => self.restart(done),
            Command::CheckLeavers => {}
        }
        self.dismiss_leavers();
        self.board.lock().stats = self.engine.stats();
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, content, progress, finish } = submission;
        if !progress.is_wanted() {
            return;
        }
        let arrived = self.now();
        let span = Span::new(arrived, request.prompt_tokens, request.output_tokens, finish);
        match self.engine.submit(arrived, request) {
            Ok(id) => {
                progress.set_sequence(id);
                if let (Some(reporter), Some(content)) = (&mut self.reporter, content) {
                    reporter.enters(id, content);
                }
                self.sequences.insert(id, Sequence { progress, span });
            }
            Err(rejected) => {
                tracing::error!(%rejected, "a request passed the limits and was still refused");
                progress.set_end(End::Lost);
            }
        }
    }

    fn dismiss_leavers(&mut self) {
        let leavers = std::mem::take(&mut *self.leavers.lock());
        // Sequences without an id are still in the inbox and will not be taken from it.
        for id in leavers.iter().filter_map(|progress| progress.sequence()) {
            if self.sequences.remove(&id).is_some() {
                self.engine.cancel(id);
                if let Some(reporter) = &mut self.reporter {
                    reporter.leaves(id);
                }
                self.board.lock().meter.abandoned();
            }
        }
    }

    fn clear(&mut self, done: oneshot::Sender<bool>) {
        // The caller may have left; the cache is cleared anyway.
        let _ = done.send(self.engine.clear_cache().is_ok());
    }

    fn restart(&mut self, done: oneshot::Sender<()>) {
        self.engine.restart();
        if let Some(reporter) = &mut self.reporter {
            reporter.restart();
        }
        self.step = Step::Between { resume_at: None };
        for (_, sequence) in self.sequences.drain() {
            sequence.progress.set_end(End::Lost);
        }
        self.board.lock().restart();
        let _ = done.send(());
    }

    async fn finish(&mut self, began: Micros, ends: Micros) {
        let mut happened = std::mem::take(&mut self.happened);
        self.engine.finish_step(&mut happened);
        if let Some(reporter) = &mut self.reporter {
            reporter.tell(&happened).await;
        }
        let board = Arc::clone(&self.board);
        let mut board = board.lock();
        for event in happened.drain(..) {
            self.tell(event, began, ends, &mut board);
        }
        board.finish_step(self.engine.stats());
        let busy = board.stats.running + board.stats.waiting > 0;
        self.step = Step::Between { resume_at: busy.then_some(ends) };
        self.reached = ends;
        self.happened = happened;
    }

    /// Reports an event of a sequence to its reader and to the metrics. A sequence whose client has left is unknown.
    fn tell(&mut self, event: Happened, began: Micros, ends: Micros, board: &mut Board) {
        let sequences = &mut self.sequences;
        match event {
            Happened::Started { id, cached_tokens, .. } => {
                if let Some(Sequence { progress, span }) = sequences.get_mut(&id) {
                    progress.set_cached(cached_tokens);
                    board.meter.started(span, began, cached_tokens);
                }
            }
            Happened::Token { id, index } => {
                if let Some(Sequence { progress, span }) = sequences.get_mut(&id) {
                    board.meter.token(span, ends);
                    progress.set_tokens(index + 1);
                }
            }
            Happened::Finished { id } => {
                if let Some(Sequence { progress, span }) = sequences.remove(&id) {
                    board.meter.finished(&span);
                    progress.set_end(End::Finished);
                }
            }
            // `Engine::stats` covers the events of blocks.
            Happened::Preempted { .. }
            | Happened::Stored { .. }
            | Happened::Removed { .. }
            | Happened::WindowStored { .. }
            | Happened::WindowRemoved { .. }
            | Happened::Kept { .. }
            | Happened::Dropped { .. }
            | Happened::Cleared => {}
        }
    }
}
