//! A worker's feed, shared by the task that drives it and by whoever asks how it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use warmroute_feed::{Config, Counters, Doubt, Feed, Moment, Step, Stream, View};
use warmroute_types::{Address, Micros};

use crate::listener::Listener;

/// The feed of one worker.
pub struct Desk {
    /// Whose it is.
    pub worker: Address,
    state: Mutex<State>,
    pub(crate) listener: Arc<dyn Listener>,
    began: Instant,
    /// Batches of another rank, or under another topic, that came here.
    pub(crate) misdirected: AtomicU64,
    /// Why nothing can come; `None` while something can.
    trouble: Mutex<Option<String>>,
    /// Another worker is to be heard under the same topic.
    is_contested: AtomicBool,
    /// From where on all was last asked of other routers, and how often.
    pub(crate) deepened: Mutex<(Option<u64>, u32)>,
}

struct State {
    stream: Stream,
    steps: Vec<Step>,
}

impl Desk {
    pub(crate) fn new(worker: Address, config: Config, listener: Arc<dyn Listener>) -> Desk {
        let state = State { stream: Stream::new(config), steps: Vec::new() };
        Desk {
            worker,
            state: Mutex::new(state),
            listener,
            began: Instant::now(),
            misdirected: AtomicU64::new(0),
            trouble: Mutex::default(),
            is_contested: AtomicBool::new(false),
            deepened: Mutex::default(),
        }
    }

    /// Why nothing can come, in words; `None` while something can.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Whose events come here cannot be told any more: none are listened to from now on.
    pub(crate) fn contest(&self, trouble: String) {
        self.is_contested.store(true, Ordering::Release);
        self.set_trouble(Some(trouble));
        self.tell_without_replay(|feed, at, steps| feed.disconnected(at.now, steps));
    }

    /// Whether another worker claims the same topic: then nothing is listened to, and nothing will be.
    pub fn is_contested(&self) -> bool {
        self.is_contested.load(Ordering::Acquire)
    }

    /// The present, for the feed.
    pub(crate) fn moment(&self) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { now: Micros::from(self.began.elapsed()), unix_s: unix.as_secs_f64() }
    }

    /// Tells the feed something and the listener what follows from it, in one step for all who look; says whether a replay
    /// is to be asked for, and from where.
    pub(crate) fn tell(&self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) -> Option<u64> {
        self.drive(|stream, at, steps| input(&mut stream.feed, at, steps)).1
    }

    /// The same for the stream, with its answer.
    pub(crate) fn drive<T>(
        &self,
        input: impl FnOnce(&mut Stream, Moment, &mut Vec<Step>) -> T,
    ) -> (T, Option<u64>) {
        let moment = self.moment();
        let mut state = self.state.lock();
        let State { stream, steps } = &mut *state;
        let told = input(stream, moment, steps);
        let mut asked = None;
        steps.retain(|step| match step {
            Step::AskReplay { from_seq } => {
                asked = Some(*from_seq);
                false
            }
            _ => true,
        });
        if !steps.is_empty() {
            self.listener.hear(&self.worker, steps);
            steps.clear();
        }
        (told, asked)
    }

    /// The same where the engine cannot be asked: others may know all, or every replay has failed before it began.
    pub(crate) fn tell_without_replay(&self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) {
        self.ask_others(self.tell(input));
    }

    /// Looks at the stream, while nothing is told to it.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Stream) -> T) -> T {
        at(&self.state.lock().stream)
    }

    /// A connection is there. Where others have heard the stream for us, the next number shows whether it goes on.
    pub(crate) fn connected(&self) -> Option<u64> {
        let input = |stream: &mut Stream, at: Moment, steps: &mut Vec<Step>| {
            if !stream.is_relayed() {
                stream.feed.connected(at.now, steps);
            }
        };
        self.drive(input).1
    }

    /// An answer came from this worker that must have filled a block.
    pub fn worked(&self) {
        self.told(|feed, now, steps| feed.answered(now, steps));
    }

    /// What answers have made of the view. It is looked at while nothing can be told: what differs from what was told last is
    /// then the answers' own doing, and meant for nothing else.
    pub fn judged(&self, view: impl FnOnce() -> View) {
        self.told(|feed, now, steps| feed.corrected(view(), now, steps));
    }

    /// Neither of these asks for a replay.
    fn told(&self, input: impl FnOnce(&mut Feed, Micros, &mut Vec<Step>)) {
        let asked = self.tell(|feed, at, steps| input(feed, at.now, steps));
        debug_assert_eq!(asked, None);
    }

    /// What the view is worth.
    pub fn view(&self) -> View {
        self.look(|stream| stream.feed.view())
    }

    /// Why the view is worth less than it could be, if it is the stream's fault.
    pub fn doubt(&self) -> Option<Doubt> {
        self.look(|stream| stream.feed.doubt())
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        self.look(|stream| stream.feed.counters())
    }

    pub(crate) fn misdirected(&self) {
        if self.misdirected.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(worker = %self.worker, "events of another rank or topic arrive at this worker's endpoint");
        }
    }
}
