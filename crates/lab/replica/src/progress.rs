//! The progress of one sequence: written by the driver, read by the sender of the answer.
//!
//! The text is known beforehand, so only a count is shared. There is no queue of tokens that could fill up: a slow
//! client reads a larger count later.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use warmroute_engine::SequenceId;

/// What one sequence's driver and reader share.
pub(crate) struct Progress {
    state: Mutex<State>,
    /// Tokens below this count do not wake the reader.
    wake_from: u32,
}

/// A reading of the progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Output tokens so far.
    pub(crate) tokens: u32,
    /// Prompt tokens that were found in the cache.
    pub(crate) cached_tokens: u32,
    /// Whether and how it ended.
    pub(crate) end: Option<End>,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All tokens were generated.
    Finished,
    /// The engine forgot the sequence.
    Lost,
}

#[derive(Default)]
struct State {
    seen: Seen,
    /// The engine's id, once it is submitted.
    sequence: Option<SequenceId>,
    /// The reader has left.
    left: bool,
    waker: Option<Waker>,
}

impl Progress {
    /// No progress yet. The reader is woken at `wake_from` tokens, at every later one, and at the end.
    pub(crate) fn new(wake_from: u32) -> Progress {
        Progress { state: Mutex::default(), wake_from }
    }

    /// For the reader: the progress, once there are more than `tokens` tokens or an end.
    pub(crate) fn poll_beyond(&self, cx: &mut Context<'_>, tokens: u32) -> Poll<Seen> {
        let mut state = self.state.lock();
        if state.seen.tokens > tokens || state.seen.end.is_some() {
            return Poll::Ready(state.seen);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// For the reader: the present progress.
    pub(crate) fn seen(&self) -> Seen {
        self.state.lock().seen
    }

    /// For the reader: it leaves. Returns true if the driver must be notified, because the sequence has not ended.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        state.left = true;
        state.seen.end.is_none()
    }

    /// For the driver, before submitting it: false if the reader has left.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.state.lock().left
    }

    /// For the driver: sets the engine's id.
    pub(crate) fn set_sequence(&self, id: SequenceId) {
        self.state.lock().sequence = Some(id);
    }

    /// For the driver: the engine's id.
    pub(crate) fn sequence(&self) -> Option<SequenceId> {
        self.state.lock().sequence
    }

    /// For the driver: sets the prompt tokens found in the cache.
    pub(crate) fn set_cached(&self, cached_tokens: u32) {
        self.state.lock().seen.cached_tokens = cached_tokens;
    }

    /// For the driver: sets the number of tokens.
    pub(crate) fn set_tokens(&self, tokens: u32) {
        let mut state = self.state.lock();
        state.seen.tokens = tokens;
        let waker = if tokens >= self.wake_from { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// For the driver: sets the end.
    pub(crate) fn set_end(&self, end: End) {
        let mut state = self.state.lock();
        state.seen.end = Some(end);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_reader_is_woken_only_for_what_it_wants() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let progress = Progress::new(3);
        assert!(progress.poll_beyond(&mut cx, 2).is_pending());
        progress.set_tokens(1);
        progress.set_tokens(2);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        progress.set_tokens(3);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(matches!(progress.poll_beyond(&mut cx, 2), Poll::Ready(Seen { tokens: 3, .. })));
    }

    #[test]
    fn the_end_is_always_reported() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let progress = Progress::new(u32::MAX);
        assert!(progress.poll_beyond(&mut cx, u32::MAX).is_pending());
        progress.set_end(End::Lost);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(matches!(progress.poll_beyond(&mut cx, 9), Poll::Ready(Seen { end: Some(End::Lost), .. })));
    }

    #[test]
    fn leaving_after_the_end_needs_no_notification() {
        let progress = Progress::new(0);
        assert!(progress.leave());
        assert!(!progress.is_wanted());
        let ended = Progress::new(0);
        ended.set_end(End::Finished);
        assert!(!ended.leave());
    }
}
