//! Time limits of a response: between two chunks, and in total.
//!
//! A stream has hundreds of chunks but only one timer. The timer is set once; if chunks arrived when it fires, it is
//! set again. A chunk thus costs one read of the clock, and only if it was waited for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::Timeouts;
use crate::upstream::UpstreamError;

/// The time limits of one response.
pub(crate) struct IdleTimeout {
    timeouts: Timeouts,
    /// Time by which the whole response must have ended.
    deadline: Option<Instant>,
    /// When waiting for the next chunk began.
    waiting_since: Option<Instant>,
    /// Set with the first wait: most responses that are not streamed arrive whole.
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimeout {
    pub(crate) fn new(timeouts: Timeouts, deadline: Option<Instant>) -> IdleTimeout {
        IdleTimeout { timeouts, deadline, waiting_since: None, timer: None }
    }

    /// Restarts the idle limit after a chunk.
    pub(crate) fn reset(&mut self) {
        self.waiting_since = None;
    }

    /// Whether the deadline has passed. A response with chunks at hand must check this itself.
    pub(crate) fn deadline_passed(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Ready if no chunk arrived within the idle limit, or the deadline passed.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<UpstreamError> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        let end = earlier(waiting_since + self.timeouts.idle, self.deadline);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            if now >= end {
                let is_late = self.deadline.is_some_and(|deadline| now >= deadline);
                return Poll::Ready(if is_late {
                    UpstreamError::RequestTimeout
                } else {
                    UpstreamError::IdleTimeout
                });
            }
            timer.as_mut().reset(end);
        }
    }
}

/// The earlier of a time and an optional deadline.
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
    async fn the_idle_limit_starts_at_the_last_chunk() {
        let (mut timeout, begun) = (timeout(None), Instant::now());
        tokio::time::sleep(Duration::from_millis(15)).await;
        timeout.reset();
        let error = poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert!(matches!(error, UpstreamError::IdleTimeout));
        assert!(begun.elapsed() >= Duration::from_millis(35), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_deadline_comes_before_the_idle_limit() {
        let mut timeout = timeout(Some(Duration::from_millis(1)));
        assert!(matches!(poll_fn(|cx| timeout.poll_expired(cx)).await, UpstreamError::RequestTimeout));
    }
}
