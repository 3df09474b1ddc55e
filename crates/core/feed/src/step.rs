//! The inputs of a feed from its driver, and the steps that it returns.

use std::fmt;

use warmroute_types::{CacheEvent, CacheView, Micros};

/// The present, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// The driver's own time.
    pub now: Micros,
    /// Wall clock in seconds since 1970; used only for a batch's delay.
    pub unix_s: f64,
}

/// What the driver must do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Apply these events to the worker's cache.
    Apply(Vec<CacheEvent>),
    /// Forget everything known about this worker's cache.
    Forget,
    /// Request everything that the engine still has from this batch on. It replaces a replay in progress.
    AskReplay {
        /// The first requested batch.
        from_seq: u64,
    },
    /// Set the trust level of the worker's view.
    View(View),
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The engine signalled the end.
    Complete,
    /// There is no replay, or it was interrupted.
    Failed,
}

/// The trust level of a worker's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// All that is known is true. What the engine held before the feed began may be missing.
    Reported,
    /// Something was missed, so a part may be gone. The view is kept, discounted, and corrected by answers.
    Uncertain,
    /// The engine works and publishes nothing, nothing is known yet, or its events do not show what it can reuse: route
    /// as if it had no events.
    #[default]
    Silent,
}

impl View {
    /// The word used in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            View::Reported => "reported",
            View::Uncertain => "uncertain",
            View::Silent => "silent",
        }
    }
}

/// The router's view: a silent feed counts as none.
impl From<View> for CacheView {
    fn from(view: View) -> CacheView {
        match view {
            View::Reported => CacheView::Reported,
            View::Uncertain => CacheView::Uncertain,
            View::Silent => CacheView::Presumed,
        }
    }
}

/// The feed's view, to report how answers changed it.
impl From<CacheView> for View {
    fn from(view: CacheView) -> View {
        match view {
            CacheView::Reported => View::Reported,
            CacheView::Uncertain => View::Uncertain,
            CacheView::Presumed => View::Silent,
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
