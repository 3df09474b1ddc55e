//! Follows TensorRT-LLM through the responses of `POST /kv_cache_events`. The caller's HTTP client does the polling.
//!
//! One poll returns the events of all ranks of an engine, each rank with its own numbers; each rank has its own feed.
//!
//! Events carry no time, and routers' clocks cannot be compared. So routers count the engine's processes together: a
//! router that detects a new process gives it the number after the last one that it knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_types::Address;

use crate::feed_handle::FeedHandle;
use crate::sink::EventSink;
use crate::trtllm;

/// One engine that is polled.
pub struct Poller {
    feeds: BTreeMap<Option<u16>, Line>,
    window_max: u32,
    /// The number of the last event, by the engine's rank.
    last_ids: BTreeMap<Option<u16>, u64>,
}

/// The feed of one worker. Where an engine is one worker, the events of all its ranks go to it, so it has numbers of
/// its own.
struct Line {
    feed_handle: Arc<FeedHandle>,
    /// `None` before the first event.
    next_seq: Option<u64>,
    is_up: bool,
    /// The number of the engine's process; 0 before the first event.
    process: f64,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Events applied.
    pub events: usize,
}

impl Poller {
    /// A poller for these workers, which are the ranks of one engine.
    pub fn new(workers: Vec<Address>, config: &warmroute_feed::Config, sink: &Arc<dyn EventSink>) -> Poller {
        let connection = |worker: Address| {
            let feed_handle = Arc::new(FeedHandle::new(worker, config.clone(), Arc::clone(sink)));
            Line { feed_handle, next_seq: None, is_up: false, process: 0.0 }
        };
        let feeds = workers.into_iter().map(|worker| (worker.rank, connection(worker))).collect();
        Poller { feeds, window_max: 0, last_ids: BTreeMap::new() }
    }

    /// Handles a poll's response.
    pub fn polled(&mut self, body: &[u8]) -> Result<Polled, serde_json::Error> {
        let events = trtllm::read(body, &mut self.window_max)?;
        let polled = Polled { events: events.len() };
        self.feeds.values().for_each(|connection| connection.feed_handle.set_trouble(None));
        self.feeds.values_mut().for_each(Line::up);
        for event in events {
            let last_id = self.last_ids.insert(event.batch.rank, event.seq);
            let rank = event.batch.rank.filter(|_| !self.feeds.contains_key(&None));
            if let Some(connection) = self.feeds.get_mut(&rank) {
                connection.count(event.seq, last_id);
                connection.apply(event.batch);
            }
        }
        self.feeds.values().for_each(|connection| {
            connection.feed_handle.update_with_peers(|feed, at, steps| feed.tick(at.now, steps));
        });
        Ok(polled)
    }

    /// Handles a failed poll: the engine may be a new process when it responds again.
    pub fn failed(&mut self, why: &str) {
        self.feeds.values().for_each(|connection| connection.feed_handle.set_trouble(Some(why.to_owned())));
        self.feeds.values_mut().for_each(Line::down);
    }

    /// Another router polls from now on: later events are counted from the engine's own number.
    pub fn pause(&mut self) {
        self.last_ids.clear();
        self.feeds.values_mut().for_each(Line::pause);
    }

    /// The feeds of the engine's ranks.
    pub fn feeds(&self) -> Vec<Arc<FeedHandle>> {
        self.feeds.values().map(|connection| Arc::clone(&connection.feed_handle)).collect()
    }
}

impl Line {
    fn up(&mut self) {
        if !std::mem::replace(&mut self.is_up, true) {
            self.feed_handle.ask_peers(self.feed_handle.connected());
        }
    }

    /// The stream is not down: peers receive it.
    fn pause(&mut self) {
        (self.next_seq, self.is_up) = (None, false);
        self.feed_handle.update_with_peers(|feed, at, steps| feed.tick(at.now, steps));
    }

    fn down(&mut self) {
        if std::mem::take(&mut self.is_up) {
            self.feed_handle.update_with_peers(|feed, at, steps| feed.disconnected(at.now, steps));
        }
    }

    /// A jump ahead means that another consumer took the events, or that they fell out of the engine's buffer; a
    /// smaller number means a new process. The first number is the engine's own, so that all routers count alike.
    fn count(&mut self, id: u64, last_id: Option<u64>) {
        match (self.next_seq, last_id) {
            (Some(_), Some(last)) if id <= last => self.restart(id),
            (Some(next), Some(last)) => self.next_seq = Some(next.saturating_add(id - last - 1)),
            (Some(_), None) => {}
            // Another router polled before: a number that it has passed is of a new process.
            (None, _) if self.feed_handle.counters().next_seq.is_some_and(|next| id < next) => {
                self.restart(id)
            }
            (None, _) => self.next_seq = Some(id),
        }
    }

    fn apply(&mut self, mut batch: warmroute_types::EventBatch) {
        self.process = self.last_process().max(1.0);
        batch.at_unix_s = self.process;
        // Every process may begin with the same events, and the first ones identify it.
        batch.print ^= self.process.to_bits();
        let seq = self.next_seq.unwrap_or(0);
        self.next_seq = Some(seq.saturating_add(1));
        self.feed_handle.ask_peers(self.feed_handle.received(seq, batch));
    }

    fn restart(&mut self, id: u64) {
        (self.next_seq, self.process) = (Some(id), self.last_process().floor() + 1.0);
        self.feed_handle.restarted();
    }

    /// The last process that any router has reported.
    fn last_process(&self) -> f64 {
        self.process.max(self.feed_handle.read_stream(|stream| stream.feed.at_unix_s()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use warmroute_feed::{Arrival, BatchId, PeerPresence, Step, View};
    use warmroute_types::EventBatch;

    #[derive(Default)]
    struct RecordingSink(Mutex<Vec<Step>>);

    impl EventSink for RecordingSink {
        fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
            self.0.lock().append(steps);
        }
    }

    fn removed(id: u64) -> String {
        format!(r#"{{"event_id":{id},"data":{{"type":"removed","block_hashes":[{id}]}}}}"#)
    }

    fn poll(poller: &mut Poller, ids: &[u64]) {
        let events: Vec<String> = ids.iter().map(|id| removed(*id)).collect();
        poller.polled(format!("[{}]", events.join(",")).as_bytes()).unwrap();
    }

    #[test]
    fn jumps_are_gaps_and_smaller_numbers_are_restarts() {
        let notes = Arc::new(RecordingSink::default());
        let sink: Arc<dyn EventSink> = Arc::clone(&notes) as Arc<dyn EventSink>;
        let mut poller =
            Poller::new(vec![Address::new("http://trt")], &warmroute_feed::Config::default(), &sink);
        let feed_handle = poller.feeds().pop().unwrap();
        poll(&mut poller, &[5, 6]);
        assert_eq!(feed_handle.view(), View::Reported);
        poll(&mut poller, &[9]);
        assert_eq!((feed_handle.view(), feed_handle.counters().lost), (View::Uncertain, 2));
        notes.0.lock().clear();
        poll(&mut poller, &[0, 1]);
        assert_eq!((feed_handle.view(), feed_handle.counters().restarts), (View::Reported, 1));
        assert_eq!(notes.0.lock().first(), Some(&Step::Forget));
        assert_eq!(notes.0.lock().iter().filter(|step| matches!(step, Step::Apply(_))).count(), 2);
        poller.failed("gone");
        assert_eq!((feed_handle.view(), feed_handle.trouble().as_deref()), (View::Uncertain, Some("gone")));
    }

    #[test]
    fn a_working_polled_engine_without_events_becomes_silent() {
        let sink: Arc<dyn EventSink> = Arc::new(RecordingSink::default());
        let config = warmroute_feed::Config {
            silent_after: warmroute_types::Micros::ZERO,
            ..warmroute_feed::Config::default()
        };
        let mut poller = Poller::new(vec![Address::new("http://trt")], &config, &sink);
        let feed_handle = poller.feeds().pop().unwrap();
        poll(&mut poller, &[0]);
        feed_handle.corrected(|| View::Uncertain);
        assert_eq!(feed_handle.view(), View::Uncertain, "answers contradict it");
        (0..3).for_each(|_| feed_handle.answered());
        poll(&mut poller, &[]);
        assert_eq!(feed_handle.view(), View::Silent);
        poll(&mut poller, &[1]);
        assert_eq!(feed_handle.view(), View::Uncertain, "it speaks again, and is still in discredit");
    }

    #[test]
    fn each_rank_has_its_own_feed() {
        let notes = Arc::new(RecordingSink::default());
        let sink: Arc<dyn EventSink> = notes as Arc<dyn EventSink>;
        let workers = Address::parse("http://trt", Some(2)).unwrap();
        let mut poller = Poller::new(workers, &warmroute_feed::Config::default(), &sink);
        let body = br#"[{"event_id":0,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[1]}},
            {"event_id":0,"attention_dp_rank":0,"data":{"type":"removed","block_hashes":[2]}},
            {"event_id":1,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[3]}}]"#;
        assert_eq!(poller.polled(body).unwrap(), Polled { events: 3 });
        let counters = |rank: usize| poller.feeds()[rank].counters();
        assert_eq!((counters(0).blocks_removed, counters(1).blocks_removed), (1, 2));
        assert_eq!((counters(0).restarts, counters(1).restarts), (0, 0), "each rank has numbers of its own");
    }

    /// One router's view of an engine that several poll: the batches that it relays, with their process.
    #[derive(Default)]
    struct RelayRecorder(Mutex<Vec<(f64, BatchId)>>);

    impl EventSink for RelayRecorder {
        fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
            steps.clear();
        }

        fn prepare_relay(&self, _: &Address, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
            Some(batch.at_unix_s.to_le_bytes().into())
        }

        fn relay(&self, _: &Address, which: BatchId, bytes: Arc<[u8]>) {
            let process = f64::from_le_bytes((*bytes).try_into().unwrap());
            self.0.lock().push((process, which));
        }

        fn peer_presence(&self) -> PeerPresence {
            PeerPresence::Present
        }
    }

    #[test]
    fn processes_are_ordered_by_number_and_not_by_clock() {
        let passed = [(); 2].map(|()| Arc::new(RelayRecorder::default()));
        let poller = |passed: &Arc<RelayRecorder>| {
            let sink = Arc::clone(passed) as Arc<dyn EventSink>;
            Poller::new(vec![Address::new("http://trt")], &warmroute_feed::Config::default(), &sink)
        };
        let (mut first, mut second) = (poller(&passed[0]), poller(&passed[1]));
        let feed_handle = second.feeds().pop().unwrap();
        let pass = || {
            let outcome: Vec<_> = std::mem::take(&mut *passed[0].0.lock());
            for (at_unix_s, which) in &outcome {
                feed_handle.relayed(
                    *which,
                    EventBatch { at_unix_s: *at_unix_s, print: which.seq, ..EventBatch::default() },
                );
            }
            outcome.iter().map(|(process, which)| (*process, which.seq)).collect::<Vec<_>>()
        };
        poll(&mut first, &[0, 1, 2, 3]);
        assert_eq!(pass(), [(1.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)]);
        let source = feed_handle.read_stream(|stream| stream.source());
        poll(&mut first, &[1, 2]);
        assert_eq!(pass(), [(2.0, 1), (2.0, 2)], "a new process");
        assert_ne!(
            feed_handle.read_stream(|stream| stream.source()),
            source,
            "and the other router hears so"
        );
        assert_eq!(feed_handle.read_stream(|stream| stream.previous_source()), source);
        // The first router stops, and so does the engine.
        poll(&mut second, &[0]);
        let (process, which) = passed[1].0.lock()[0];
        assert_eq!((process, which.seq, which.arrival), (3.0, 0, Arrival::Begins));
        // A batch that the first router sent before arrives late.
        feed_handle.relayed(
            BatchId { source, seq: 9, ..which },
            EventBatch { at_unix_s: 1.0, ..EventBatch::default() },
        );
        assert_eq!(
            feed_handle.read_stream(|stream| (stream.source(), stream.feed.at_unix_s())),
            (which.source, 3.0)
        );
    }
}
