//! How long a worker's answer is waited for: from one chunk to the next, and in all.
//!
//! A stream has hundreds of chunks and one timer. It is set once and looked at when it rings: if chunks have come waiting_since, it is
//! set anew. So a chunk costs a look at the clock, and only where the next one is not there yet.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::Timeouts;
use crate::upstream::UpstreamError;

/// One answer's timeout.
pub(crate) struct IdleTimeout {
    timeouts: Timeouts,
    /// When the answer must be over.
    deadline: Option<Instant>,
    /// Since when the next chunk is waited for.
    waiting_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl IdleTimeout {
    pub(crate) fn new(timeouts: Timeouts, deadline: Option<Instant>) -> IdleTimeout {
        let timer = Box::pin(sleep_until(earlier(Instant::now() + timeouts.idle, deadline)));
        IdleTimeout { timeouts, deadline, waiting_since: None, timer }
    }

    /// Something came.
    pub(crate) fn reset(&mut self) {
        self.waiting_since = None;
    }

    /// Whether it must be over, though there may be more.
    pub(crate) fn deadline_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Nothing has come; is that too long?
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<UpstreamError> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        let end = earlier(waiting_since + self.timeouts.idle, self.deadline);
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if now >= end {
                return Poll::Ready(if self.deadline_passed() {
                    UpstreamError::RequestTimeout
                } else {
                    UpstreamError::IdleTimeout
                });
            }
            self.timer.as_mut().reset(end);
        }
    }
}

/// The earlier of a time and a deadline, if there is one.
pub(crate) fn earlier(at: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(at, |deadline| deadline.min(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    fn timeout(deadline: Option<Duration>) -> IdleTimeout {
        let timeouts = Timeouts { idle: Duration::from_millis(20), ..Timeouts::default() };
        IdleTimeout::new(timeouts, deadline.map(|deadline| Instant::now() + deadline))
    }

    #[tokio::test]
    async fn silence_is_counted_from_the_last_chunk() {
        let (mut timeout, begun) = (timeout(None), Instant::now());
        tokio::time::sleep(Duration::from_millis(15)).await;
        timeout.reset();
        let error = poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert!(matches!(error, UpstreamError::IdleTimeout));
        assert!(begun.elapsed() >= Duration::from_millis(35), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_deadline_comes_before_silence() {
        let mut timeout = timeout(Some(Duration::from_millis(1)));
        assert!(matches!(poll_fn(|cx| timeout.poll_expired(cx)).await, UpstreamError::RequestTimeout));
    }
}
