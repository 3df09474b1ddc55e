//! The sink of feeds: it applies their steps.

use warmroute_feed::Step;
use warmroute_types::Address;

/// Applies the steps of feeds. The task that read the event calls it, one call at a time for each worker, and it must
/// not block on anything but memory.
pub trait EventSink: Send + Sync {
    /// Takes the steps out, in order: [`Step::Apply`], [`Step::Forget`] and [`Step::View`]. This crate requests
    /// replays itself, so they do not appear here.
    fn apply(&self, worker: &Address, steps: &mut Vec<Step>);
}
