//! What a feed hears from its driver, and what it tells it to do.

use std::fmt;

use warmroute_types::{CacheEvent, CacheView, Micros};

/// The present, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// The driver's own time.
    pub now: Micros,
    /// The wall's, in seconds since 1970; only to tell a batch's lag.
    pub unix_s: f64,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// This happened to the worker's cache.
    Apply(Vec<CacheEvent>),
    /// Forget all that is known of this worker's cache, and of no other's.
    Forget,
    /// Ask the engine for all it still has from this batch on. It takes the place of a replay that is under way.
    AskReplay {
        /// The first batch wanted.
        from_seq: u64,
    },
    /// From now on, this is what the worker's view is worth.
    View(View),
}

/// Up to where a stream is known, for another router to go on from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The last batch that was applied.
    pub seq: u64,
    /// Its hash.
    pub print: u64,
    /// The latest moment of a batch, by the engine's clock.
    pub at_unix_s: f64,
    /// The first batch of what is known.
    pub floor_seq: u64,
    /// Which of the model's caches is followed, where that is settled.
    pub group: Option<u16>,
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The engine said that this was all.
    Complete,
    /// There is no replay, or it broke off.
    Failed,
}

/// What a worker's view is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// All that is known is true. It may lack what the engine held before we began to listen.
    Reported,
    /// Something was missed, so some of it may be gone. It is kept, discounted, and corrected by what answers say.
    Uncertain,
    /// The engine works and tells nothing, or nothing is known yet: do as if it had no events.
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

/// What a router makes of it: a feed that tells nothing is as good as none.
impl From<View> for CacheView {
    fn from(view: View) -> CacheView {
        match view {
            View::Reported => CacheView::Reported,
            View::Uncertain => CacheView::Uncertain,
            View::Silent => CacheView::Presumed,
        }
    }
}

/// And back, to tell a feed what answers have made of its word.
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
