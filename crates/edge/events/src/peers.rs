//! A worker's feed among several routers: batches received here are relayed to peers, theirs are applied here, and
//! missing ones are requested from them.

use std::sync::Arc;

use warmroute_feed::{Arrival, BatchId, Moment, PeerPresence, ReplayEnd, Step, Stream};
use warmroute_types::{CacheEvent, EventBatch, Restored};
use xxhash_rust::xxh3::xxh3_64;

use crate::feed_handle::FeedHandle;
use crate::inbox::{Accepted, PostRefused};
use crate::json::{Post, PostKind};

/// How often the history before the first known batch is requested.
const HISTORY_REQUESTS_MAX: u32 = 3;

/// Each reporter's posts reset those of the other.
const SEVERAL_REPORTERS: &str = "several reporters post for this worker: start one for each";

/// A part of a peer's reply about a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplayPart {
    /// One batch.
    Batch(BatchId, EventBatch),
    /// Everything that the peer knows up to a batch.
    Snapshot(StreamSnapshot),
}

/// Everything known about a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSnapshot {
    /// Its source; 0 where every router listens itself.
    pub source: u64,
    /// The last included batch.
    pub seq: u64,
    /// The state as one batch.
    pub batch: EventBatch,
}

/// How far a relayed stream was received without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// The sending process.
    pub source: u64,
    /// The number that is expected next.
    pub next: u64,
    /// The engine's clock at the last batch.
    pub at_unix_ms: u64,
}

impl FeedHandle {
    /// A batch that a peer received.
    pub fn relayed(&self, which: BatchId, batch: EventBatch) {
        if self.is_contested() {
            return;
        }
        self.set_trouble(None);
        self.update_shared(|stream, at, steps| stream.relayed(which, batch, at, steps));
    }

    /// A peer has received everything up to this position.
    pub fn reached(&self, by: StreamPosition) {
        let StreamPosition { source, next, at_unix_ms } = by;
        self.update_shared(|stream, at, steps| stream.reached(source, next, at_unix_ms, at.now, steps));
    }

    /// The reply of a peer to a request; empty where no peer had the batches.
    pub fn replayed(&self, outcome: Vec<ReplayPart>) {
        let end = if outcome.is_empty() { ReplayEnd::Failed } else { ReplayEnd::Complete };
        self.update_shared(|stream, at, steps| {
            for one in outcome {
                match one {
                    ReplayPart::Batch(which, batch) => stream.replayed(which, batch, at, steps),
                    // A snapshot ends the request; a new request may follow.
                    ReplayPart::Snapshot(StreamSnapshot { source, seq, batch }) => {
                        return stream.restored(source, seq, batch, at.now, steps);
                    }
                }
            }
            stream.feed.replay_ended(end, at.now, steps);
        });
    }

    /// How far the stream was received; `None` where it is not relayed, or incomplete.
    pub fn position(&self) -> Option<StreamPosition> {
        self.read_stream(|stream| {
            let (source, extent) = stream.extent().filter(|(source, _)| *source != 0)?;
            let (next, at_unix_ms) = (extent.seq.saturating_add(1), stream.at_unix_ms());
            Some(StreamPosition { source, next, at_unix_ms })
        })
    }

    /// Everything known about a stream, with the cache as `cache` encodes it. It must be of this source; or of any
    /// source if it begins before `from_seq`. The feed is locked meanwhile.
    pub fn snapshot(
        &self,
        source: u64,
        from_seq: u64,
        cache: impl FnOnce() -> Option<Arc<[u8]>>,
    ) -> Option<StreamSnapshot> {
        self.read_stream(|stream| {
            let (ours, extent) = stream.extent()?;
            let is_deeper = from_seq == 0 || extent.floor_seq < from_seq;
            let is_wanted = if source == 0 { is_deeper } else { source == ours };
            if !is_wanted {
                return None;
            }
            let snapshot = Restored { bytes: cache()?, group: extent.group, floor_seq: extent.floor_seq };
            let (at_unix_s, print) = (extent.at_unix_s, extent.print);
            let events = vec![CacheEvent::Restored(snapshot)];
            let batch = EventBatch { at_unix_s, print, events, ..EventBatch::default() };
            Some(StreamSnapshot { source: ours, seq: extent.seq, batch })
        })
    }

    /// A live batch of an engine that only this router receives. Returns the first batch of a requested replay.
    pub(crate) fn received(&self, seq: u64, mut batch: EventBatch) -> Option<u64> {
        if self.sink.peer_presence() == PeerPresence::Unknown {
            // Peers may know the process and its earlier batches.
            return self.update(|feed, at, steps| feed.received_live(seq, batch, at, steps));
        }
        let bytes = self.sink.prepare_relay(&self.worker, &mut batch);
        let (source, asked) = self.update_stream(|stream, at, steps| stream.received(seq, batch, at, steps));
        if let Some(bytes) = bytes.filter(|_| source != 0) {
            let arrival = if seq == 0 { Arrival::Begins } else { Arrival::Next };
            self.sink.relay(&self.worker, BatchId { source, seq, arrival }, bytes);
        }
        asked
    }

    /// A new process sends the stream, and only this router receives it.
    pub(crate) fn restarted(&self) {
        let mut asked = self.update_stream(|stream, at, steps| stream.restarted(at.now, steps)).1;
        while asked.is_some() {
            asked = self.fail_replay();
        }
    }

    /// Accepts a post.
    pub(crate) fn posted(&self, post: Post) -> Result<Accepted, PostRefused> {
        let Post { source, seq, kind, mut batch } = post;
        let arrival = if kind == PostKind::Snapshot { Arrival::Begins } else { Arrival::Next };
        let which = BatchId { source: xxh3_64(source.as_bytes()).max(1), seq, arrival };
        let (unreadable, peer_presence) = (batch.unreadable, self.sink.peer_presence());
        let bytes = self.sink.prepare_relay(&self.worker, &mut batch);
        let (reporters, posted) = self.update_shared(|stream, at, steps| {
            let reporters = (stream.source(), stream.previous_source());
            (reporters, stream.posted(which, batch, peer_presence, at, steps))
        });
        let next_seq = match posted {
            Err(expected) => return Err(PostRefused::Gap { expected }),
            Ok(None) => self.counters().next_seq.unwrap_or(0),
            Ok(Some(arrival)) => {
                self.check_reporters(reporters, which.source);
                if let Some(bytes) = bytes {
                    self.sink.relay(&self.worker, BatchId { arrival, ..which }, bytes);
                }
                seq.saturating_add(1)
            }
        };
        Ok(Accepted { next_seq, unreadable })
    }

    /// A reporter that posts again after another one did is a second one.
    fn check_reporters(&self, (before, former): (u64, u64), source: u64) {
        if before != 0 && before != source {
            self.set_trouble((former == source).then(|| SEVERAL_REPORTERS.to_owned()));
        }
    }

    /// Requests from peers what the engine held before the first known batch.
    pub(crate) fn request_history(&self) {
        if self.sink.peer_presence() == PeerPresence::Present && self.is_shallow() {
            let (_, asked) = self.update_stream(|stream, _, steps| stream.feed.request_history(steps));
            self.ask_peers(asked);
        }
    }

    /// Only for a stream that every router subscribes to: for others it is known which peer has more.
    fn is_shallow(&self) -> bool {
        let mut history_requests = self.history_requests.lock();
        let (floor, is_own) =
            self.read_stream(|stream| (stream.feed.counters().floor_seq, stream.source() == 0));
        if history_requests.0 != floor {
            *history_requests = (floor, 0);
        }
        let is_shallow =
            is_own && floor.is_none_or(|floor| floor > 0) && history_requests.1 < HISTORY_REQUESTS_MAX;
        history_requests.1 += u32::from(is_shallow);
        is_shallow
    }

    /// Requests everything from peers, where that is wanted. Of the last batches they know no more than this router.
    pub(crate) fn ask_peers(&self, mut asked: Option<u64>) {
        while let Some(from_seq) = asked {
            if from_seq == 0 && self.request_replay(from_seq) {
                return;
            }
            asked = self.fail_replay();
        }
    }

    fn request_replay(&self, from_seq: u64) -> bool {
        let (source, floor) = self.read_stream(|stream| (stream.source(), stream.feed.counters().floor_seq));
        let from_seq = if source == 0 { floor.unwrap_or(0) } else { from_seq };
        self.sink.request_replay(&self.worker, source, from_seq)
    }

    fn fail_replay(&self) -> Option<u64> {
        self.update_stream(|stream, at, steps| stream.feed.replay_ended(ReplayEnd::Failed, at.now, steps)).1
    }

    /// Passes an input to the stream of which peers may know more, and requests what is missing from them.
    fn update_shared<T>(&self, input: impl FnOnce(&mut Stream, Moment, &mut Vec<Step>) -> T) -> T {
        let (outcome, mut asked) = self.update_stream(|stream, at, steps| {
            let outcome = input(stream, at, steps);
            if stream.has_caught_up() {
                stream.feed.replay_ended(ReplayEnd::Complete, at.now, steps);
            }
            outcome
        });
        while let Some(from_seq) = asked {
            if self.request_replay(from_seq) {
                return outcome;
            }
            asked = self.fail_replay();
        }
        // The feed is locked, so a request that starts now is not cancelled by mistake.
        self.read_stream(|stream| {
            if !stream.feed.is_awaiting_replay() {
                self.sink.cancel_replay(&self.worker);
            }
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::EventSink;
    use parking_lot::Mutex;
    use std::sync::OnceLock;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;
    use warmroute_types::Address;

    /// While a request is cancelled, another batch arrives that leaves a gap.
    #[derive(Default)]
    struct RacingSink {
        feed_handle: OnceLock<Arc<FeedHandle>>,
        done: Mutex<Vec<&'static str>>,
        other: Mutex<Option<JoinHandle<()>>>,
    }

    impl EventSink for RacingSink {
        fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
            steps.clear();
        }

        fn peer_presence(&self) -> PeerPresence {
            PeerPresence::Present
        }

        fn request_replay(&self, _: &Address, _: u64, _: u64) -> bool {
            self.done.lock().push("wanted");
            true
        }

        fn cancel_replay(&self, _: &Address) {
            let Some(feed_handle) = self.feed_handle.get().cloned() else { return };
            let mut other = self.other.lock();
            if other.is_none() {
                let (said, wanted) = mpsc::channel();
                *other = Some(thread::spawn(move || {
                    feed_handle.relayed(batch_id(5), batch());
                    _ = said.send(());
                }));
                // The lock prevents this before the cancellation is over; without the lock it would happen at once.
                _ = wanted.recv_timeout(Duration::from_millis(300));
                self.done.lock().push("called off");
            }
        }
    }

    fn batch_id(seq: u64) -> BatchId {
        let arrival = if seq == 0 { Arrival::Begins } else { Arrival::Next };
        BatchId { source: 9, seq, arrival }
    }

    fn batch() -> EventBatch {
        EventBatch { at_unix_s: 1.0, ..EventBatch::default() }
    }

    #[test]
    fn a_request_made_during_a_cancellation_stays() {
        let hasty = Arc::new(RacingSink::default());
        let sink = Arc::clone(&hasty) as Arc<dyn EventSink>;
        let feed_handle =
            Arc::new(FeedHandle::new(Address::new("http://w"), warmroute_feed::Config::default(), sink));
        feed_handle.relayed(batch_id(0), batch());
        hasty.done.lock().clear();
        hasty.feed_handle.set(Arc::clone(&feed_handle)).map_err(|_| "set before").unwrap();
        feed_handle.relayed(batch_id(1), batch());
        hasty.other.lock().take().unwrap().join().unwrap();
        assert_eq!(*hasty.done.lock(), ["called off", "wanted"]);
    }
}
