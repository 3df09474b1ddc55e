//! Two routers and one engine, on real sockets: what one hears and the other cannot.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use warmroute_events::{
    BatchId, Config, Desk, Direction, Hub, Listener, PeerPresence, Source, Step, Subscriber, Told, View,
    subscribe,
};
use warmroute_types::{Address, CacheEvent, EventBatch};
use warmroute_zmtp::{Endpoint, Message, Options, Publisher};

const PATIENCE: Duration = Duration::from_secs(20);

/// One router's ear: what it believes to be held, and its way to the other.
#[derive(Default)]
struct Ear {
    held: Mutex<BTreeSet<u64>>,
    views: Mutex<Vec<View>>,
    batch: Mutex<Option<EventBatch>>,
    /// The other's feed, and what it knows.
    other: OnceLock<(Arc<Desk>, Arc<Ear>)>,
    wanted: Mutex<Vec<(u64, u64)>>,
}

impl Listener for Ear {
    fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            match step {
                Step::Apply(events) => events.iter().for_each(|event| self.apply(event)),
                Step::Forget => self.held.lock().clear(),
                Step::View(view) => self.views.lock().push(view),
                Step::AskReplay { .. } => panic!("replays are not the listener's"),
            }
        }
    }

    fn prepare(&self, _: &Address, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        *self.batch.lock() = Some(batch.clone());
        Some([].into())
    }

    fn pass_on(&self, _: &Address, which: BatchId, _: Arc<[u8]>) {
        let batch = self.batch.lock().take().unwrap();
        if let Some((desk, _)) = self.other.get() {
            desk.relayed(which, batch);
        }
    }

    fn want(&self, _: &Address, source: u64, from_seq: u64) -> bool {
        self.wanted.lock().push((source, from_seq));
        self.other.get().is_some()
    }

    fn others(&self) -> PeerPresence {
        if self.other.get().is_some() { PeerPresence::Present } else { PeerPresence::Absent }
    }
}

impl Ear {
    fn apply(&self, event: &CacheEvent) {
        let mut held = self.held.lock();
        match event {
            CacheEvent::Stored(stored) => held.extend(&stored.names),
            CacheEvent::Removed(removed) => removed.names.iter().for_each(|name| _ = held.remove(name)),
            CacheEvent::Cleared => held.clear(),
            CacheEvent::Restored(known) => *held = known.bytes.iter().map(|&name| name.into()).collect(),
        }
    }

    async fn until(&self, names: &[u64]) {
        let is_so = || self.held.lock().iter().copied().eq(names.iter().copied());
        until(&format!("{names:?} are held"), is_so).await;
    }

    /// Answers what was wanted of the other, as the router between them would.
    async fn answer(&self, desk: &Desk) {
        until("something is wanted", || !self.wanted.lock().is_empty()).await;
        let (source, from_seq) = self.wanted.lock().pop().unwrap();
        let (other, ear) = self.other.get().unwrap();
        let cache = || Some(ear.held.lock().iter().map(|&name| name as u8).collect());
        desk.replayed(other.known(source, from_seq, cache).map(Told::Known).into_iter().collect());
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn stored(seq: u64, name: u8) -> Message {
    let mut payload = vec![0x93, 0xcb];
    payload.extend((1e9 + seq as f64).to_be_bytes());
    payload.extend([0x91, 0x96, 0xab]);
    payload.extend(b"BlockStored");
    payload.extend([0x91, name, 0xc0, 0x91, 5, 1, 0xc0, 0xc0]);
    vec![Bytes::from_static(b"kv"), Bytes::copy_from_slice(&seq.to_be_bytes()), payload.into()]
}

fn free() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

async fn connected(endpoint: &Endpoint) -> Publisher {
    let publisher = Publisher::connect(endpoint.clone(), Options::default());
    until("somebody subscribes", || publisher.subscribers() > 0).await;
    publisher
}

async fn hub() -> (Hub, Subscriber, Arc<Ear>) {
    let hub = Hub::bind(&free(), Config::default()).await.unwrap();
    let ear = Arc::new(Ear::default());
    let listener = Arc::clone(&ear) as Arc<dyn Listener>;
    let subscriber = hub.await_worker(Address::new("http://w"), "kv", None, listener).unwrap();
    (hub, subscriber, ear)
}

#[tokio::test]
async fn an_engine_that_connects_to_one_router_is_known_to_both_and_may_move_to_the_other() {
    let (one, here, ear) = hub().await;
    let (two, there, other) = hub().await;
    let engine = connected(one.endpoint()).await;
    engine.send(&stored(0, 1));
    ear.until(&[1]).await;
    let (desk, desk_there) = (here.desk(), there.desk());
    assert!(ear.other.set((Arc::clone(&desk_there), Arc::clone(&other))).is_ok());
    assert!(other.other.set((desk, Arc::clone(&ear))).is_ok());
    // The other comes late: the first batch it hears of shows that there was one before.
    engine.send(&stored(1, 2));
    other.answer(&desk_there).await;
    other.until(&[1, 2]).await;
    engine.send(&stored(2, 3));
    other.until(&[1, 2, 3]).await;
    assert_eq!((there.view(), there.trouble()), (View::Reported, None));
    drop((engine, one, here));
    let engine = connected(two.endpoint()).await;
    other.views.lock().clear();
    engine.send(&stored(3, 4));
    other.until(&[1, 2, 3, 4]).await;
    assert_eq!((there.view(), there.counters().lost), (View::Reported, 0));
    assert_eq!(*other.views.lock(), [], "it was never in doubt");
    engine.send(&stored(5, 6));
    until("the next number shows that one is missing", || there.view() == View::Uncertain).await;
}

#[tokio::test]
async fn one_that_listens_itself_and_comes_late_is_told_by_the_other_what_was_before() {
    let engine = Publisher::bind(&free(), Options::default()).await.unwrap();
    let listen = || {
        let ear = Arc::new(Ear::default());
        let (endpoint, direction) = (engine.endpoint().clone(), Direction::WeConnect);
        let source =
            Source { rank: 0, endpoint, direction, replay: None, topic: "kv".to_owned(), block_tokens: None };
        let listener = Arc::clone(&ear) as Arc<dyn Listener>;
        (subscribe(Address::new("http://w"), source, listener, Config::default()), ear)
    };
    let (first, ear) = listen();
    until("the first listens", || engine.subscribers() == 1).await;
    engine.send(&stored(0, 1));
    engine.send(&stored(1, 2));
    ear.until(&[1, 2]).await;
    let (second, other) = listen();
    assert!(other.other.set((first.desk(), Arc::clone(&ear))).is_ok());
    until("both listen", || engine.subscribers() == 2).await;
    engine.send(&stored(2, 3));
    ear.until(&[1, 2, 3]).await;
    other.answer(&second.desk()).await;
    other.until(&[1, 2, 3]).await;
    assert_eq!((second.view(), second.counters().floor_seq), (View::Reported, Some(0)));
    engine.send(&stored(3, 4));
    other.until(&[1, 2, 3, 4]).await;
    assert_eq!(second.counters().lost, 0);
}
