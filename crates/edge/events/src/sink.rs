//! The sink of feeds: it applies their steps, and connects them with other routers.

use std::sync::Arc;

use warmroute_feed::{BatchId, PeerPresence, Step};
use warmroute_types::{Address, EventBatch};

/// Applies the steps of feeds. The task that read the event calls it, one call at a time for each worker, and it must
/// not block on anything but memory.
///
/// With several routers it is also the connection to peers; with one router the other methods are not needed.
pub trait EventSink: Send + Sync {
    /// Takes the steps out, in order: [`Step::Apply`], [`Step::Forget`] and [`Step::View`]. This crate requests
    /// replays itself, so they do not appear here.
    fn apply(&self, worker: &Address, steps: &mut Vec<Step>);

    /// Prepares a batch that only this router receives, for peers and for this router. Returns the bytes to relay, if
    /// any.
    fn prepare_relay(&self, _worker: &Address, _batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        None
    }

    /// Relays such a batch.
    fn relay(&self, _worker: &Address, _which: BatchId, _bytes: Arc<[u8]>) {}

    /// Requests a worker's stream from a peer, of this source (0: any) and from this batch on. Returns false where
    /// there is no peer. The reply arrives by [`FeedHandle::replayed`](crate::FeedHandle::replayed).
    fn request_replay(&self, _worker: &Address, _source: u64, _from_seq: u64) -> bool {
        false
    }

    /// Cancels that request: the batches have arrived by other ways. Called under the feed's lock, as
    /// [`EventSink::apply`] is.
    fn cancel_replay(&self, _worker: &Address) {}

    /// Whether there are peers.
    fn peer_presence(&self) -> PeerPresence {
        PeerPresence::Absent
    }
}
