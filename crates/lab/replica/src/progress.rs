//! How far one sequence has come: written by the driver, read by whoever sends the answer.
//!
//! The text is known beforehand, so all that crosses from one to the other is a count. There is no queue of tokens that
//! could fill up: a slow client reads a larger count, later.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use warmroute_engine::SequenceId;

/// What one sequence's driver and reader share.
pub(crate) struct Progress {
    state: Mutex<State>,
    /// Tokens below this count do not wake the reader.
    wake_from: u32,
}

/// A look at the progress.
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
    /// All tokens are there.
    Finished,
    /// The engine forgot it.
    Lost,
}

#[derive(Default)]
struct State {
    seen: Seen,
    /// The driver's number for it, once the engine has it.
    sequence: Option<SequenceId>,
    /// The reader has gone.
    left: bool,
    waker: Option<Waker>,
}

impl Progress {
    /// Nothing has happened yet. The reader wants to be woken when there are `wake_from` tokens, at every one after,
    /// and at the end.
    pub(crate) fn new(wake_from: u32) -> Progress {
        Progress { state: Mutex::default(), wake_from }
    }

    /// For the reader: what there is, once there are more than `tokens` tokens or an end.
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

    /// For the reader: what there is now.
    pub(crate) fn seen(&self) -> Seen {
        self.state.lock().seen
    }

    /// For the reader: it goes. True if the driver must be told, because the sequence has not ended.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        state.left = true;
        state.seen.end.is_none()
    }

    /// For the driver: the engine is about to get it; false if nobody waits for it any more.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.state.lock().left
    }

    /// For the driver: the engine's number for it.
    pub(crate) fn set_sequence(&self, id: SequenceId) {
        self.state.lock().sequence = Some(id);
    }

    /// For the driver: the number it gave.
    pub(crate) fn sequence(&self) -> Option<SequenceId> {
        self.state.lock().sequence
    }

    /// For the driver: what the prompt found in the cache.
    pub(crate) fn set_cached(&self, cached_tokens: u32) {
        self.state.lock().seen.cached_tokens = cached_tokens;
    }

    /// For the driver: there are this many tokens now.
    pub(crate) fn set_tokens(&self, tokens: u32) {
        let mut state = self.state.lock();
        state.seen.tokens = tokens;
        let waker = if tokens >= self.wake_from { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// For the driver: it is over.
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
    fn the_end_is_always_told() {
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
    fn leaving_after_the_end_troubles_nobody() {
        let progress = Progress::new(0);
        assert!(progress.leave());
        assert!(!progress.is_wanted());
        let ended = Progress::new(0);
        ended.set_end(End::Finished);
        assert!(!ended.leave());
    }
}
