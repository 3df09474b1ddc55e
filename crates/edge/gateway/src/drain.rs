//! Leaving without anybody noticing.
//!
//! A listener that drains accepts nobody, and answers what it is asked on the connections it has, each with `connection: close`: so
//! clients connect anew, to whoever accepts then. What is left is connections on which nobody asks. To close one is a race that
//! only the client can lose: its next request may be on the way. Where another process accepts in our place there is no hurry, and
//! no connection is closed before it would have been anyway, when its client has not asked for too long. Where nobody does, clients
//! notice as it is, and connections get a moment to be used once more: those that are in steady use are.
//!
//! What has not ended when the time for that is over is ended, and told so: streams by an error event, requests that wait by a 503.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use tokio::sync::watch;

/// How long an unused connection may still be used when nobody takes our place.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Tells listeners to stop accepting and to finish what they have.
#[derive(Clone, Debug)]
pub struct Drain {
    farewell: watch::Sender<Option<Farewell>>,
    /// The same of the last step alone, which is looked at for every chunk.
    is_over: Arc<AtomicBool>,
}

/// What becomes of connections, from one step to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Farewell {
    /// Those on which nobody asks anything may stay as long as ever: others accept in our place.
    Long,
    /// They are closed in a moment.
    Short,
    /// All are: what is under way is ended.
    Over,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { farewell: watch::Sender::new(None), is_over: Arc::default() }
    }
}

impl Drain {
    /// Begins the draining. A long farewell can be cut short, and a short one ended; nothing goes back a step.
    pub fn begin(&self, farewell: Farewell) {
        // Before anybody is woken who looks at it.
        self.is_over.fetch_or(farewell == Farewell::Over, Ordering::SeqCst);
        self.farewell.send_if_modified(|step| {
            let goes_on = *step < Some(farewell);
            *step = (*step).max(Some(farewell));
            goes_on
        });
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.farewell.borrow().is_some()
    }

    // The sender lives as long as `self`, so waiting cannot fail.

    pub(crate) async fn begun(&self) {
        self.comes_to(Farewell::Long).await;
    }

    /// Returns when unused connections are to be closed.
    pub(crate) async fn runs_short(&self) {
        self.comes_to(Farewell::Short).await;
        _ = tokio::time::timeout(LAST_CHANCE, self.ends()).await;
    }

    /// Returns when nothing is waited for any more. Whoever serves a connection waits for this, and then drives it once more: what is
    /// under way on it finds [`Drain::is_over`] without having waited for anything itself.
    pub(crate) async fn ends(&self) {
        self.comes_to(Farewell::Over).await;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// What comes of this, if it comes before everything is ended.
    pub(crate) async fn unless_over<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Pending if self.is_over() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    async fn comes_to(&self, step: Farewell) {
        _ = self.farewell.subscribe().wait_for(|farewell| *farewell >= Some(step)).await;
    }

    /// Lets a client know that this was the last answer here.
    pub(crate) fn say_goodbye(&self, headers: &mut HeaderMap) {
        if self.has_begun() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Every connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_farewell_is_cut_short_and_never_prolonged() {
        let drain = Drain::default();
        let mut seen = Vec::new();
        for step in [Farewell::Long, Farewell::Short, Farewell::Long, Farewell::Over, Farewell::Short] {
            drain.begin(step);
            seen.extend(*drain.farewell.borrow());
        }
        assert_eq!(seen, [Farewell::Long, Farewell::Short, Farewell::Short, Farewell::Over, Farewell::Over]);
        assert!(drain.is_over());
    }
}
