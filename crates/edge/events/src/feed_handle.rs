//! The handle of a worker's feed, shared by the task that drives it and by its readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use warmroute_feed::{Config, Counters, Doubt, Feed, Moment, ReplayEnd, Step, View};
use warmroute_types::{Address, Micros};

use crate::posts::Reporter;
use crate::sink::EventSink;

/// The feed of one worker.
pub struct FeedHandle {
    /// The worker whose events these are.
    pub worker: Address,
    state: Mutex<State>,
    sink: Arc<dyn EventSink>,
    began: Instant,
    /// Batches of another rank or topic that arrived here.
    pub(crate) misdirected: AtomicU64,
    /// Why no events can arrive; `None` while they can.
    trouble: Mutex<Option<String>>,
    /// Another worker claims the same topic.
    is_contested: AtomicBool,
}

struct State {
    feed: Feed,
    reporter: Reporter,
    steps: Vec<Step>,
}

impl FeedHandle {
    pub(crate) fn new(worker: Address, config: Config, sink: Arc<dyn EventSink>) -> FeedHandle {
        let state = State { feed: Feed::new(config), reporter: Reporter::default(), steps: Vec::new() };
        FeedHandle {
            worker,
            state: Mutex::new(state),
            sink,
            began: Instant::now(),
            misdirected: AtomicU64::new(0),
            trouble: Mutex::default(),
            is_contested: AtomicBool::new(false),
        }
    }

    /// Why no events can arrive; `None` while they can.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Stops listening because another worker claims the topic: the source of its events is ambiguous.
    pub(crate) fn mark_contested(&self, trouble: String) {
        self.is_contested.store(true, Ordering::Release);
        self.set_trouble(Some(trouble));
        self.update_without_replay(|feed, at, steps| feed.disconnected(at.now, steps));
    }

    /// Whether another worker claims the same topic. Such a feed does not listen any more.
    pub fn is_contested(&self) -> bool {
        self.is_contested.load(Ordering::Acquire)
    }

    /// The present, for the feed.
    pub(crate) fn moment(&self) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { now: Micros::from(self.began.elapsed()), unix_s: unix.as_secs_f64() }
    }

    /// Passes an input to the feed and the resulting steps to the sink, atomically for readers. Returns the first
    /// batch of a requested replay.
    pub(crate) fn update(&self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) -> Option<u64> {
        self.update_state(|feed, _, at, steps| input(feed, at, steps)).1
    }

    /// The same with the reporter of the events, and with the input's result.
    pub(crate) fn update_state<T>(
        &self,
        input: impl FnOnce(&mut Feed, &mut Reporter, Moment, &mut Vec<Step>) -> T,
    ) -> (T, Option<u64>) {
        let moment = self.moment();
        let mut state = self.state.lock();
        let State { feed, reporter, steps } = &mut *state;
        let outcome = input(feed, reporter, moment, steps);
        let mut asked = None;
        steps.retain(|step| match step {
            Step::AskReplay { from_seq } => {
                asked = Some(*from_seq);
                false
            }
            _ => true,
        });
        if !steps.is_empty() {
            self.sink.apply(&self.worker, steps);
            steps.clear();
        }
        (outcome, asked)
    }

    /// The same where the engine serves no replay: a requested replay fails at once.
    pub(crate) fn update_without_replay(&self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) {
        self.fail_replay(self.update(input));
    }

    /// Fails a requested replay, and those that the feed requests in turn.
    pub(crate) fn fail_replay(&self, mut asked: Option<u64>) {
        while asked.is_some() {
            asked = self.update(|feed, at, steps| feed.replay_ended(ReplayEnd::Failed, at.now, steps));
        }
    }

    /// The worker gave an answer that must have filled a block.
    pub fn answered(&self) {
        self.outcome(|feed, now, steps| feed.answered(now, steps));
    }

    /// Answers changed the view. `view` is read under the lock, so a difference from the published view can only come
    /// from answers.
    pub fn corrected(&self, view: impl FnOnce() -> View) {
        self.outcome(|feed, now, steps| feed.corrected(view(), now, steps));
    }

    /// For inputs that never request a replay.
    fn outcome(&self, input: impl FnOnce(&mut Feed, Micros, &mut Vec<Step>)) {
        let asked = self.update(|feed, at, steps| input(feed, at.now, steps));
        debug_assert_eq!(asked, None);
    }

    /// The trust level of the view.
    pub fn view(&self) -> View {
        self.state.lock().feed.view()
    }

    /// Why the view is not trusted, where the stream is the cause.
    pub fn doubt(&self) -> Option<Doubt> {
        self.state.lock().feed.doubt()
    }

    /// Counters since the feed began.
    pub fn counters(&self) -> Counters {
        self.state.lock().feed.counters()
    }

    pub(crate) fn misdirected(&self) {
        if self.misdirected.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(worker = %self.worker, "events of another rank or topic arrive at this worker's endpoint");
        }
    }
}
