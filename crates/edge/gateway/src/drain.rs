//! Leaving without anybody noticing.
//!
//! A listener that drains accepts nobody, and answers what it is asked on the connections it has, each with `connection: close`: so
//! clients connect anew, to whoever accepts then. What is left is connections on which nobody asks. To close one is a race that
//! only the client can lose: its next request may be on the way. Where another process accepts in our place there is no hurry, and
//! no connection is closed before it would have been anyway, when its client has not asked for too long. Where nobody does, clients
//! notice as it is, and connections get a moment to be used once more: those that are in steady use are.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use tokio::sync::watch;

/// How long an unused connection may still be used when nobody takes our place.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Tells listeners to stop accepting and to finish what they have.
#[derive(Clone, Debug)]
pub struct Drain(watch::Sender<Option<Farewell>>);

/// What becomes of connections on which nobody asks anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// They are closed in a moment.
    Short,
    /// They may stay as long as ever: others accept in our place.
    Long,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain(watch::Sender::new(None))
    }
}

impl Drain {
    /// Begins the draining. A long farewell can be cut short.
    pub fn begin(&self, farewell: Farewell) {
        self.0.send_replace(Some(farewell));
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.borrow().is_some()
    }

    // The sender lives as long as `self`, so waiting cannot fail.

    pub(crate) async fn begun(&self) {
        _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when unused connections are to be closed.
    pub(crate) async fn runs_short(&self) {
        _ = self.0.subscribe().wait_for(|farewell| *farewell == Some(Farewell::Short)).await;
        tokio::time::sleep(LAST_CHANCE).await;
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
