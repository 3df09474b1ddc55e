//! Who hears what happened, and who else is to hear of it.

use std::sync::Arc;

use warmroute_feed::{BatchId, PeerPresence, Step};
use warmroute_types::{Address, EventBatch};

/// Takes what feeds tell about their workers. It is called by the task that read the event, one call at a time for each
/// worker, and must not block on anything but memory.
///
/// Where there are other routers, it is also the way to them; without any, the rest need not be there.
pub trait Listener: Send + Sync {
    /// Takes the steps out, in their order: [`Step::Apply`], [`Step::Forget`] and [`Step::View`]. Replays are asked for by
    /// this crate and do not appear here.
    fn hear(&self, worker: &Address, steps: &mut Vec<Step>);

    /// Makes a batch that nobody else hears ready for others, and for us: what is to be passed on, where it is.
    fn prepare(&self, _worker: &Address, _batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        None
    }

    /// Passes such a batch on.
    fn pass_on(&self, _worker: &Address, _which: BatchId, _bytes: Arc<[u8]>) {}

    /// Another router is to be asked for a worker's stream, of this source (0: whichever it is) and from this batch on. False
    /// where there is none. Its answer comes by [`Desk::replayed`](crate::Desk::replayed).
    fn want(&self, _worker: &Address, _source: u64, _from_seq: u64) -> bool {
        false
    }

    /// That has come by another way. Like [`Listener::hear`] it is called while nothing else is told to the feed.
    fn call_off(&self, _worker: &Address) {}

    /// Whether there are other routers.
    fn others(&self) -> PeerPresence {
        PeerPresence::Absent
    }
}
