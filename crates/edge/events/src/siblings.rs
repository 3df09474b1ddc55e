//! A worker's feed among several routers: what is heard here is passed on, what others hear is taken in, and what is missing is asked
//! for of them.

use std::sync::Arc;

use warmroute_feed::{Arrival, BatchId, Moment, PeerPresence, ReplayEnd, Step, Stream};
use warmroute_types::{CacheEvent, EventBatch, Restored};
use xxhash_rust::xxh3::xxh3_64;

use crate::desk::Desk;
use crate::inbox::{Accepted, Refused};
use crate::json::{Post, PostKind};

/// What was there before the first batch that we know is asked for so often.
const DEEPENED_MAX: u32 = 3;

/// Each forgets what the other has said.
const SEVERAL: &str = "several reporters post for this worker: start one for each";

/// A part of what another router has told of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A batch of it.
    Batch(BatchId, EventBatch),
    /// All that it knows up to one.
    Known(Known),
}

/// All that is known of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Of which process; 0 where every router listens itself.
    pub source: u64,
    /// Up to this batch.
    pub seq: u64,
    /// As one.
    pub batch: EventBatch,
}

/// How far a stream that is passed on was heard without a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The process that speaks.
    pub source: u64,
    /// The number that is expected next.
    pub next: u64,
    /// When the last one was told, by the engine's clock.
    pub at_unix_ms: u64,
}

impl Desk {
    /// A batch that another router has heard.
    pub fn relayed(&self, which: BatchId, batch: EventBatch) {
        if self.is_contested() {
            return;
        }
        self.set_trouble(None);
        self.share(|stream, at, steps| stream.relayed(which, batch, at, steps));
    }

    /// Another router has heard all up to there.
    pub fn reached(&self, by: Reached) {
        let Reached { source, next, at_unix_ms } = by;
        self.share(|stream, at, steps| stream.reached(source, next, at_unix_ms, at.now, steps));
    }

    /// What was asked of other routers; nothing where none had it.
    pub fn replayed(&self, told: Vec<Told>) {
        let end = if told.is_empty() { ReplayEnd::Failed } else { ReplayEnd::Complete };
        self.share(|stream, at, steps| {
            for one in told {
                match one {
                    Told::Batch(which, batch) => stream.replayed(which, batch, at, steps),
                    // That is the end of what was asked for; more may be.
                    Told::Known(Known { source, seq, batch }) => {
                        return stream.restored(source, seq, batch, at.now, steps);
                    }
                }
            }
            stream.feed.replay_ended(end, at.now, steps);
        });
    }

    /// How far it was heard; `None` where it is not passed on, or not whole.
    pub fn reach(&self) -> Option<Reached> {
        self.look(|stream| {
            let (source, extent) = stream.extent().filter(|(source, _)| *source != 0)?;
            let (next, at_unix_ms) = (extent.seq.saturating_add(1), stream.at_unix_ms());
            Some(Reached { source, next, at_unix_ms })
        })
    }

    /// All that is known of a stream, with the cache as `cache` writes it: of this source; or of whichever it is, if it begins before
    /// that batch. Nothing is heard meanwhile.
    pub fn known(
        &self,
        source: u64,
        from_seq: u64,
        cache: impl FnOnce() -> Option<Arc<[u8]>>,
    ) -> Option<Known> {
        self.look(|stream| {
            let (ours, extent) = stream.extent()?;
            let is_deeper = from_seq == 0 || extent.floor_seq < from_seq;
            let is_wanted = if source == 0 { is_deeper } else { source == ours };
            if !is_wanted {
                return None;
            }
            let known = Restored { bytes: cache()?, group: extent.group, floor_seq: extent.floor_seq };
            let (at_unix_s, print) = (extent.at_unix_s, extent.print);
            let events = vec![CacheEvent::Restored(known)];
            let batch = EventBatch { at_unix_s, print, events, ..EventBatch::default() };
            Some(Known { source: ours, seq: extent.seq, batch })
        })
    }

    /// A live batch of an engine that nobody else hears. Says from where on a replay is to be asked for.
    pub(crate) fn received(&self, seq: u64, mut batch: EventBatch) -> Option<u64> {
        if self.listener.others() == PeerPresence::Unknown {
            // They may know who it is, and what was before.
            return self.tell(|feed, at, steps| feed.received_live(seq, batch, at, steps));
        }
        let bytes = self.listener.prepare(&self.worker, &mut batch);
        let (source, asked) = self.drive(|stream, at, steps| stream.received(seq, batch, at, steps));
        if let Some(bytes) = bytes.filter(|_| source != 0) {
            let arrival = if seq == 0 { Arrival::Begins } else { Arrival::Next };
            self.listener.pass_on(&self.worker, BatchId { source, seq, arrival }, bytes);
        }
        asked
    }

    /// Another process speaks, which nobody else can have heard.
    pub(crate) fn restarted(&self) {
        let mut asked = self.drive(|stream, at, steps| stream.restarted(at.now, steps)).1;
        while asked.is_some() {
            asked = self.fail();
        }
    }

    /// Takes a post.
    pub(crate) fn posted(&self, post: Post) -> Result<Accepted, Refused> {
        let Post { source, seq, kind, mut batch } = post;
        let arrival = if kind == PostKind::Snapshot { Arrival::Begins } else { Arrival::Next };
        let which = BatchId { source: xxh3_64(source.as_bytes()).max(1), seq, arrival };
        let (unreadable, others) = (batch.unreadable, self.listener.others());
        let bytes = self.listener.prepare(&self.worker, &mut batch);
        let (speakers, posted) = self.share(|stream, at, steps| {
            let speakers = (stream.source(), stream.previous_source());
            (speakers, stream.posted(which, batch, others, at, steps))
        });
        let next_seq = match posted {
            Err(expected) => return Err(Refused::Gap { expected }),
            Ok(None) => self.counters().next_seq.unwrap_or(0),
            Ok(Some(arrival)) => {
                self.mind_speakers(speakers, which.source);
                if let Some(bytes) = bytes {
                    self.listener.pass_on(&self.worker, BatchId { arrival, ..which }, bytes);
                }
                seq.saturating_add(1)
            }
        };
        Ok(Accepted { next_seq, unreadable })
    }

    /// A reporter that speaks again after another one did is a second one.
    fn mind_speakers(&self, (before, former): (u64, u64), source: u64) {
        if before != 0 && before != source {
            self.set_trouble((former == source).then(|| SEVERAL.to_owned()));
        }
    }

    /// Asks other routers for what the engine held before the first batch that we know.
    pub(crate) fn deepen(&self) {
        if self.listener.others() == PeerPresence::Present && self.is_shallow() {
            let (_, asked) = self.drive(|stream, _, steps| stream.feed.request_history(steps));
            self.ask_others(asked);
        }
    }

    /// Only of a stream that every router listens to: of others it is known who has more.
    fn is_shallow(&self) -> bool {
        let mut deepened = self.deepened.lock();
        let (floor, is_own) = self.look(|stream| (stream.feed.counters().floor_seq, stream.source() == 0));
        if deepened.0 != floor {
            *deepened = (floor, 0);
        }
        let is_shallow = is_own && floor.is_none_or(|floor| floor > 0) && deepened.1 < DEEPENED_MAX;
        deepened.1 += u32::from(is_shallow);
        is_shallow
    }

    /// Asks other routers for all, where that is what is wanted. What they know of the last batches they know from us, or as little.
    pub(crate) fn ask_others(&self, mut asked: Option<u64>) {
        while let Some(from_seq) = asked {
            if from_seq == 0 && self.want(from_seq) {
                return;
            }
            asked = self.fail();
        }
    }

    fn want(&self, from_seq: u64) -> bool {
        let (source, floor) = self.look(|stream| (stream.source(), stream.feed.counters().floor_seq));
        let from_seq = if source == 0 { floor.unwrap_or(0) } else { from_seq };
        self.listener.want(&self.worker, source, from_seq)
    }

    fn fail(&self) -> Option<u64> {
        self.drive(|stream, at, steps| stream.feed.replay_ended(ReplayEnd::Failed, at.now, steps)).1
    }

    /// Tells the stream something of which others may know more: whatever it then lacks is asked of them.
    fn share<T>(&self, input: impl FnOnce(&mut Stream, Moment, &mut Vec<Step>) -> T) -> T {
        let (told, mut asked) = self.drive(|stream, at, steps| {
            let told = input(stream, at, steps);
            if stream.has_caught_up() {
                stream.feed.replay_ended(ReplayEnd::Complete, at.now, steps);
            }
            told
        });
        while let Some(from_seq) = asked {
            if self.want(from_seq) {
                return told;
            }
            asked = self.fail();
        }
        // Nothing is told meanwhile: what somebody else begins to want now must not be called off.
        self.look(|stream| {
            if !stream.feed.is_awaiting_replay() {
                self.listener.call_off(&self.worker);
            }
        });
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Listener;
    use parking_lot::Mutex;
    use std::sync::OnceLock;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;
    use warmroute_types::Address;

    /// While something is called off, another batch comes that leaves a gap.
    #[derive(Default)]
    struct Hasty {
        desk: OnceLock<Arc<Desk>>,
        done: Mutex<Vec<&'static str>>,
        other: Mutex<Option<JoinHandle<()>>>,
    }

    impl Listener for Hasty {
        fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
            steps.clear();
        }

        fn others(&self) -> PeerPresence {
            PeerPresence::Present
        }

        fn want(&self, _: &Address, _: u64, _: u64) -> bool {
            self.done.lock().push("wanted");
            true
        }

        fn call_off(&self, _: &Address) {
            let Some(desk) = self.desk.get().cloned() else { return };
            let mut other = self.other.lock();
            if other.is_none() {
                let (said, wanted) = mpsc::channel();
                *other = Some(thread::spawn(move || {
                    desk.relayed(numbered(5), batch());
                    _ = said.send(());
                }));
                // It cannot come to that before this is over; where it can, it does so at once.
                _ = wanted.recv_timeout(Duration::from_millis(300));
                self.done.lock().push("called off");
            }
        }
    }

    fn numbered(seq: u64) -> BatchId {
        let arrival = if seq == 0 { Arrival::Begins } else { Arrival::Next };
        BatchId { source: 9, seq, arrival }
    }

    fn batch() -> EventBatch {
        EventBatch { at_unix_s: 1.0, ..EventBatch::default() }
    }

    #[test]
    fn what_is_wanted_while_something_is_called_off_stays_wanted() {
        let hasty = Arc::new(Hasty::default());
        let listener = Arc::clone(&hasty) as Arc<dyn Listener>;
        let desk = Arc::new(Desk::new(Address::new("http://w"), warmroute_feed::Config::default(), listener));
        desk.relayed(numbered(0), batch());
        hasty.done.lock().clear();
        hasty.desk.set(Arc::clone(&desk)).map_err(|_| "set before").unwrap();
        desk.relayed(numbered(1), batch());
        hasty.other.lock().take().unwrap().join().unwrap();
        assert_eq!(*hasty.done.lock(), ["called off", "wanted"]);
    }
}
