//! Follows TensorRT-LLM through the responses of `POST /kv_cache_events`. The caller's HTTP client does the polling.
//!
//! One poll returns the events of all ranks of an engine, each rank with its own numbers; each rank has its own feed. A
//! poll removes the events from the engine, so one router alone may poll it.

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
            Line { feed_handle, next_seq: None, is_up: false }
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
            connection.feed_handle.update_without_replay(|feed, at, steps| feed.tick(at.now, steps));
        });
        Ok(polled)
    }

    /// Handles a failed poll: the engine may be a new process when it responds again.
    pub fn failed(&mut self, why: &str) {
        self.feeds.values().for_each(|connection| connection.feed_handle.set_trouble(Some(why.to_owned())));
        self.feeds.values_mut().for_each(Line::down);
    }

    /// The feeds of the engine's ranks.
    pub fn feeds(&self) -> Vec<Arc<FeedHandle>> {
        self.feeds.values().map(|connection| Arc::clone(&connection.feed_handle)).collect()
    }
}

impl Line {
    fn up(&mut self) {
        if !std::mem::replace(&mut self.is_up, true) {
            self.feed_handle.update_without_replay(|feed, at, steps| feed.connected(at.now, steps));
        }
    }

    fn down(&mut self) {
        if std::mem::take(&mut self.is_up) {
            self.feed_handle.update_without_replay(|feed, at, steps| feed.disconnected(at.now, steps));
        }
    }

    /// A jump ahead means that another consumer took the events, or that they fell out of the engine's buffer; a
    /// smaller number means a new process.
    fn count(&mut self, id: u64, last_id: Option<u64>) {
        match (self.next_seq, last_id) {
            (Some(_), Some(last)) if id <= last => self.restart(id),
            (Some(next), Some(last)) => self.next_seq = Some(next.saturating_add(id - last - 1)),
            (Some(_), None) => {}
            (None, _) => self.next_seq = Some(id),
        }
    }

    fn apply(&mut self, batch: warmroute_types::EventBatch) {
        let seq = self.next_seq.unwrap_or(0);
        self.next_seq = Some(seq.saturating_add(1));
        self.feed_handle.update_without_replay(|feed, at, steps| feed.received_live(seq, batch, at, steps));
    }

    fn restart(&mut self, id: u64) {
        self.next_seq = Some(id);
        self.feed_handle.update_without_replay(|feed, at, steps| feed.restarted(at.now, steps));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use warmroute_feed::{Step, View};

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
}
