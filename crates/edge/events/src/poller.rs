//! Follows TensorRT-LLM by what polls of `POST /kv_cache_events` return. Whoever has an HTTP client does the polling.
//!
//! One poll brings the events of all ranks of an engine, each rank's with numbers of their own; one feed stands behind each.
//!
//! Events do not say when they happened, and several routers' clocks cannot be compared. So the engine's lives are counted instead, by
//! all who poll it together: whoever sees a new one numbers it after the last that it has heard of.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_types::Address;

use crate::desk::Desk;
use crate::listener::Listener;
use crate::trtllm;

/// One engine that is polled.
pub struct Poller {
    desks: BTreeMap<Option<u16>, Line>,
    window_max: u32,
    /// By the engine's rank, the number of its last event.
    last_ids: BTreeMap<Option<u16>, u64>,
}

/// A worker's feed. Where an engine is one worker, the events of all its ranks go there, so each line counts anew.
struct Line {
    desk: Arc<Desk>,
    /// None before the first event.
    next_seq: Option<u64>,
    is_up: bool,
    /// Which of the engine's lives this is, as far as heard; 0 before the first event.
    life: f64,
}

/// What a poll brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Events taken.
    pub events: usize,
}

impl Poller {
    /// For these workers, which are the ranks of one engine.
    pub fn new(
        workers: Vec<Address>,
        config: &warmroute_feed::Config,
        listener: &Arc<dyn Listener>,
    ) -> Poller {
        let line = |worker: Address| {
            let desk = Arc::new(Desk::new(worker, config.clone(), Arc::clone(listener)));
            Line { desk, next_seq: None, is_up: false, life: 0.0 }
        };
        let desks = workers.into_iter().map(|worker| (worker.rank, line(worker))).collect();
        Poller { desks, window_max: 0, last_ids: BTreeMap::new() }
    }

    /// A poll's answer.
    pub fn polled(&mut self, body: &[u8]) -> Result<Polled, serde_json::Error> {
        let events = trtllm::read(body, &mut self.window_max)?;
        let polled = Polled { events: events.len() };
        self.desks.values().for_each(|line| line.desk.set_trouble(None));
        self.desks.values_mut().for_each(Line::up);
        for event in events {
            let last_id = self.last_ids.insert(event.batch.rank, event.seq);
            let rank = event.batch.rank.filter(|_| !self.desks.contains_key(&None));
            if let Some(line) = self.desks.get_mut(&rank) {
                line.count(event.seq, last_id);
                line.hear(event.batch);
            }
        }
        self.desks.values().for_each(|line| {
            line.desk.tell_without_replay(|feed, at, steps| feed.tick(at.now, steps));
        });
        Ok(polled)
    }

    /// A poll failed: the engine may be another one when it answers again.
    pub fn failed(&mut self, why: &str) {
        self.desks.values().for_each(|line| line.desk.set_trouble(Some(why.to_owned())));
        self.desks.values_mut().for_each(Line::down);
    }

    /// Another router polls: what comes next is counted from its own number on.
    pub fn rest(&mut self) {
        self.last_ids.clear();
        self.desks.values_mut().for_each(Line::rest);
    }

    /// The feeds of its ranks, for whoever has something to tell them.
    pub fn desks(&self) -> Vec<Arc<Desk>> {
        self.desks.values().map(|line| Arc::clone(&line.desk)).collect()
    }
}

impl Line {
    fn up(&mut self) {
        if !std::mem::replace(&mut self.is_up, true) {
            self.desk.ask_others(self.desk.connected());
        }
    }

    /// The stream is not down: others hear it.
    fn rest(&mut self) {
        (self.next_seq, self.is_up) = (None, false);
        self.desk.tell_without_replay(|feed, at, steps| feed.tick(at.now, steps));
    }

    fn down(&mut self) {
        if std::mem::take(&mut self.is_up) {
            self.desk.tell_without_replay(|feed, at, steps| feed.disconnected(at.now, steps));
        }
    }

    /// Numbers that jump ahead were taken by somebody else, or fell out of the engine's buffer; numbers that go back are of a
    /// new process. A line begins with the engine's own number, so that all routers count alike.
    fn count(&mut self, id: u64, last_id: Option<u64>) {
        match (self.next_seq, last_id) {
            (Some(_), Some(last)) if id <= last => self.restart(id),
            (Some(next), Some(last)) => self.next_seq = Some(next.saturating_add(id - last - 1)),
            (Some(_), None) => {}
            // Another router has polled before: a number that it has passed is of a new process.
            (None, _) if self.desk.counters().next_seq.is_some_and(|next| id < next) => self.restart(id),
            (None, _) => self.next_seq = Some(id),
        }
    }

    fn hear(&mut self, mut batch: warmroute_types::EventBatch) {
        self.life = self.last_life().max(1.0);
        batch.at_unix_s = self.life;
        // Every life may begin with the same words, and the first ones name it.
        batch.print ^= self.life.to_bits();
        let seq = self.next_seq.unwrap_or(0);
        self.next_seq = Some(seq.saturating_add(1));
        self.desk.ask_others(self.desk.received(seq, batch));
    }

    fn restart(&mut self, id: u64) {
        (self.next_seq, self.life) = (Some(id), self.last_life().floor() + 1.0);
        self.desk.restarted();
    }

    /// The last life that any router has told of.
    fn last_life(&self) -> f64 {
        self.life.max(self.desk.look(|stream| stream.feed.at_unix_s()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use warmroute_feed::{Arrival, BatchId, PeerPresence, Step, View};
    use warmroute_types::EventBatch;

    #[derive(Default)]
    struct Notes(Mutex<Vec<Step>>);

    impl Listener for Notes {
        fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
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
    fn gaps_are_holes_and_numbers_that_go_back_are_restarts() {
        let notes = Arc::new(Notes::default());
        let listener: Arc<dyn Listener> = Arc::clone(&notes) as Arc<dyn Listener>;
        let mut poller =
            Poller::new(vec![Address::new("http://trt")], &warmroute_feed::Config::default(), &listener);
        let desk = poller.desks().pop().unwrap();
        poll(&mut poller, &[5, 6]);
        assert_eq!(desk.view(), View::Reported);
        poll(&mut poller, &[9]);
        assert_eq!((desk.view(), desk.counters().lost), (View::Uncertain, 2));
        notes.0.lock().clear();
        poll(&mut poller, &[0, 1]);
        assert_eq!((desk.view(), desk.counters().restarts), (View::Reported, 1));
        assert_eq!(notes.0.lock().first(), Some(&Step::Forget));
        assert_eq!(notes.0.lock().iter().filter(|step| matches!(step, Step::Apply(_))).count(), 2);
        poller.failed("gone");
        assert_eq!((desk.view(), desk.trouble().as_deref()), (View::Uncertain, Some("gone")));
    }

    #[test]
    fn a_polled_engine_that_works_and_tells_nothing_falls_silent() {
        let listener: Arc<dyn Listener> = Arc::new(Notes::default());
        let config = warmroute_feed::Config {
            silent_after: warmroute_types::Micros::ZERO,
            ..warmroute_feed::Config::default()
        };
        let mut poller = Poller::new(vec![Address::new("http://trt")], &config, &listener);
        let desk = poller.desks().pop().unwrap();
        poll(&mut poller, &[0]);
        desk.judged(|| View::Uncertain);
        assert_eq!(desk.view(), View::Uncertain, "answers contradict it");
        (0..3).for_each(|_| desk.worked());
        poll(&mut poller, &[]);
        assert_eq!(desk.view(), View::Silent);
        poll(&mut poller, &[1]);
        assert_eq!(desk.view(), View::Uncertain, "it speaks again, and is still in discredit");
    }

    #[test]
    fn each_rank_has_its_own_feed() {
        let notes = Arc::new(Notes::default());
        let listener: Arc<dyn Listener> = notes as Arc<dyn Listener>;
        let workers = Address::parse("http://trt", Some(2)).unwrap();
        let mut poller = Poller::new(workers, &warmroute_feed::Config::default(), &listener);
        let body = br#"[{"event_id":0,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[1]}},
            {"event_id":0,"attention_dp_rank":0,"data":{"type":"removed","block_hashes":[2]}},
            {"event_id":1,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[3]}}]"#;
        assert_eq!(poller.polled(body).unwrap(), Polled { events: 3 });
        let counters = |rank: usize| poller.desks()[rank].counters();
        assert_eq!((counters(0).blocks_removed, counters(1).blocks_removed), (1, 2));
        assert_eq!((counters(0).restarts, counters(1).restarts), (0, 0), "each rank has numbers of its own");
    }

    /// One router's view of an engine that several poll: what it passes on, with its life.
    #[derive(Default)]
    struct Passed(Mutex<Vec<(f64, BatchId)>>);

    impl Listener for Passed {
        fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
            steps.clear();
        }

        fn prepare(&self, _: &Address, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
            Some(batch.at_unix_s.to_le_bytes().into())
        }

        fn pass_on(&self, _: &Address, which: BatchId, bytes: Arc<[u8]>) {
            let life = f64::from_le_bytes((*bytes).try_into().unwrap());
            self.0.lock().push((life, which));
        }

        fn others(&self) -> PeerPresence {
            PeerPresence::Present
        }
    }

    #[test]
    fn lives_are_ordered_by_their_number_and_by_no_clock() {
        let passed = [(); 2].map(|()| Arc::new(Passed::default()));
        let poller = |passed: &Arc<Passed>| {
            let listener = Arc::clone(passed) as Arc<dyn Listener>;
            Poller::new(vec![Address::new("http://trt")], &warmroute_feed::Config::default(), &listener)
        };
        let (mut first, mut second) = (poller(&passed[0]), poller(&passed[1]));
        let desk = second.desks().pop().unwrap();
        let pass = || {
            let told: Vec<_> = std::mem::take(&mut *passed[0].0.lock());
            for (at_unix_s, which) in &told {
                desk.relayed(
                    *which,
                    EventBatch { at_unix_s: *at_unix_s, print: which.seq, ..EventBatch::default() },
                );
            }
            told.iter().map(|(life, which)| (*life, which.seq)).collect::<Vec<_>>()
        };
        poll(&mut first, &[0, 1, 2, 3]);
        assert_eq!(pass(), [(1.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)]);
        let source = desk.look(|stream| stream.source());
        poll(&mut first, &[1, 2]);
        assert_eq!(pass(), [(2.0, 1), (2.0, 2)], "a new process");
        assert_ne!(desk.look(|stream| stream.source()), source, "and the other router hears so");
        assert_eq!(desk.look(|stream| stream.previous_source()), source);
        // The first router dies, and so does the engine.
        poll(&mut second, &[0]);
        let (life, which) = passed[1].0.lock()[0];
        assert_eq!((life, which.seq, which.arrival), (3.0, 0, Arrival::Begins));
        // What the first one said before it died comes late.
        desk.relayed(
            BatchId { source, seq: 9, ..which },
            EventBatch { at_unix_s: 1.0, ..EventBatch::default() },
        );
        assert_eq!(desk.look(|stream| (stream.source(), stream.feed.at_unix_s())), (which.source, 3.0));
    }
}
