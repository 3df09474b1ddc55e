//! Draining a listener without failed requests.
//!
//! A draining listener accepts no connections. It adds `connection: close` to every response, so that clients connect
//! again, to a listener that still accepts. Idle connections remain. Closing one is a race: the client's next request
//! may be on its way. If another process accepts in our place, idle connections stay open until their normal timeout.
//! If not, they get a short grace time for one more request, then close.
//!
//! When the drain timeout expires, the remaining requests are aborted: streams get an error event, waiting requests
//! 503.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use tokio::sync::watch;

/// How long idle connections stay usable if no other process accepts in our place.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// Tells listeners to stop accepting and to finish their requests. Clones share the state.
#[derive(Clone, Debug)]
pub struct Drain {
    mode: watch::Sender<Option<DrainMode>>,
    /// Whether the mode is `Abort`. An atomic, because it is read for every chunk.
    is_aborted: Arc<AtomicBool>,
}

/// How a drain treats connections. Later modes are stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainMode {
    /// Idle connections stay open until their normal timeout, because another process accepts in our place.
    KeepIdle,
    /// Idle connections close after a short grace time.
    CloseIdle,
    /// All connections close; requests in flight are aborted.
    Abort,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { mode: watch::Sender::new(None), is_aborted: Arc::default() }
    }
}

impl Drain {
    /// Begins the drain, or moves it to a stricter mode. Modes never become less strict.
    pub fn begin(&self, mode: DrainMode) {
        // Set before anything that reads it is woken.
        self.is_aborted.fetch_or(mode == DrainMode::Abort, Ordering::SeqCst);
        self.mode.send_if_modified(|reached| {
            let advances = *reached < Some(mode);
            *reached = (*reached).max(Some(mode));
            advances
        });
    }

    /// Whether a drain has begun.
    pub fn has_begun(&self) -> bool {
        self.mode.borrow().is_some()
    }

    // The sender lives as long as `self`, so waiting cannot fail.

    /// Returns when a drain begins.
    pub async fn wait_begun(&self) {
        self.wait_for_mode(DrainMode::KeepIdle).await;
    }

    /// Returns when idle connections are to be closed.
    pub(crate) async fn wait_close_idle(&self) {
        self.wait_for_mode(DrainMode::CloseIdle).await;
        _ = tokio::time::timeout(IDLE_GRACE, self.wait_abort()).await;
    }

    /// Returns when requests are to be aborted. A connection waits for this and then polls its request once more, which
    /// finds `is_aborted` without waiting for the drain itself.
    pub async fn wait_abort(&self) {
        self.wait_for_mode(DrainMode::Abort).await;
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::SeqCst)
    }

    /// The result of `work`, or `None` if requests are aborted first.
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

    /// Tells the client that this is the last response on its connection.
    pub(crate) fn add_close_header(&self, headers: &mut HeaderMap) {
        if self.has_begun() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// A listener's work: it ends when a drain has begun and the last connection has closed.
///
/// Boxed, because a crate compiles the futures that it polls: the request path belongs into this crate, whose
/// optimization level it needs, and not into every crate above that starts a listener.
pub type Serving = Pin<Box<dyn Future<Output = Drained> + Send>>;

/// Proof that all connections have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_becomes_stricter_and_never_less_strict() {
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
