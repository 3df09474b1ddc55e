//! Who hears what happened.

use warmroute_feed::Step;
use warmroute_types::Address;

/// Takes what feeds tell about their workers. It is called by the task that read the event, one call at a time for each
/// worker, and must not block on anything but memory.
pub trait Listener: Send + Sync {
    /// Takes the steps out, in their order: [`Step::Apply`], [`Step::Forget`] and [`Step::View`]. Replays are asked for by
    /// this crate and do not appear here.
    fn hear(&self, worker: &Address, steps: &mut Vec<Step>);
}
