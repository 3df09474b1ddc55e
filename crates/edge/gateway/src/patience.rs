//! How long a worker's answer is waited for: from one chunk to the next, and in all.
//!
//! A stream has hundreds of chunks and one alarm. It is set once and looked at when it rings: if chunks have come since, it is
//! set anew. So a chunk costs a look at the clock, and only where the next one is not there yet.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::Timeouts;
use crate::upstream::Fault;

/// One answer's patience.
pub(crate) struct Patience {
    timeouts: Timeouts,
    /// When the answer must be over.
    deadline: Option<Instant>,
    /// Since when the next chunk is waited for.
    since: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

impl Patience {
    pub(crate) fn new(timeouts: Timeouts, deadline: Option<Instant>) -> Patience {
        let alarm = Box::pin(sleep_until(sooner(Instant::now() + timeouts.idle, deadline)));
        Patience { timeouts, deadline, since: None, alarm }
    }

    /// Something came.
    pub(crate) fn heard(&mut self) {
        self.since = None;
    }

    /// Whether it must be over, though there may be more.
    pub(crate) fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Nothing has come; is that too long?
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let end = sooner(since + self.timeouts.idle, self.deadline);
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            if now >= end {
                return Poll::Ready(if self.is_overdue() { Fault::Overdue } else { Fault::Silent });
            }
            self.alarm.as_mut().reset(end);
        }
    }
}

/// The earlier of a time and a deadline, if there is one.
pub(crate) fn sooner(at: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(at, |deadline| deadline.min(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    fn patience(deadline: Option<Duration>) -> Patience {
        let timeouts = Timeouts { idle: Duration::from_millis(20), ..Timeouts::default() };
        Patience::new(timeouts, deadline.map(|deadline| Instant::now() + deadline))
    }

    #[tokio::test]
    async fn silence_is_counted_from_the_last_chunk() {
        let (mut patience, begun) = (patience(None), Instant::now());
        tokio::time::sleep(Duration::from_millis(15)).await;
        patience.heard();
        let fault = poll_fn(|cx| patience.poll_over(cx)).await;
        assert!(matches!(fault, Fault::Silent));
        assert!(begun.elapsed() >= Duration::from_millis(35), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_deadline_comes_before_silence() {
        let mut patience = patience(Some(Duration::from_millis(1)));
        assert!(matches!(poll_fn(|cx| patience.poll_over(cx)).await, Fault::Overdue));
    }
}
