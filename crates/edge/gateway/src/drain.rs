//! QueueGuard without anybody noticing.
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
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// Tells listeners to stop accepting and to finish what they have.
#[derive(Clone, Debug)]
pub struct Drain {
    mode: watch::Sender<Option<DrainMode>>,
    /// The same of the last mode alone, which is looked at for every chunk.
    is_aborted: Arc<AtomicBool>,
}

/// What becomes of connections, from one mode to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainMode {
    /// Those on which nobody asks anything may stay as long as ever: others accept in our place.
    KeepIdle,
    /// They are closed in a moment.
    CloseIdle,
    /// All are: what is under way is ended.
    Abort,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { mode: watch::Sender::new(None), is_aborted: Arc::default() }
    }
}

impl Drain {
    /// Begins the draining. A long mode can be cut short, and a short one ended; nothing goes back a mode.
    pub fn begin(&self, mode: DrainMode) {
        // Before anybody is woken who looks at it.
        self.is_aborted.fetch_or(mode == DrainMode::Abort, Ordering::SeqCst);
        self.mode.send_if_modified(|reached| {
            let advances = *reached < Some(mode);
            *reached = (*reached).max(Some(mode));
            advances
        });
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.mode.borrow().is_some()
    }

    // The sender lives as long as `self`, so waiting cannot fail.

    pub(crate) async fn wait_begun(&self) {
        self.wait_for_mode(DrainMode::KeepIdle).await;
    }

    /// Returns when unused connections are to be closed.
    pub(crate) async fn wait_close_idle(&self) {
        self.wait_for_mode(DrainMode::CloseIdle).await;
        _ = tokio::time::timeout(IDLE_GRACE, self.wait_abort()).await;
    }

    /// Returns when nothing is waited for any more. Whoever serves a connection waits for this, and then drives it once more: what is
    /// under way on it finds [`Drain::is_aborted`] without having waited for anything itself.
    pub(crate) async fn wait_abort(&self) {
        self.wait_for_mode(DrainMode::Abort).await;
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::SeqCst)
    }

    /// What comes of this, if it comes before everything is ended.
    pub(crate) async fn unless_aborted<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Pending if self.is_aborted() => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    async fn wait_for_mode(&self, mode: DrainMode) {
        _ = self.mode.subscribe().wait_for(|reached| *reached >= Some(mode)).await;
    }

    /// Lets a client know that this was the last answer here.
    pub(crate) fn add_close_header(&self, headers: &mut HeaderMap) {
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
        for mode in [
            DrainMode::KeepIdle,
            DrainMode::CloseIdle,
            DrainMode::KeepIdle,
            DrainMode::Abort,
            DrainMode::CloseIdle,
        ] {
            drain.begin(mode);
            seen.extend(*drain.mode.borrow());
        }
        assert_eq!(
            seen,
            [
                DrainMode::KeepIdle,
                DrainMode::CloseIdle,
                DrainMode::CloseIdle,
                DrainMode::Abort,
                DrainMode::Abort
            ]
        );
        assert!(drain.is_aborted());
    }
}
