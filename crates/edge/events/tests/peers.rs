//! Two routers and one engine, on real sockets: batches that only one of them receives.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use warmroute_events::{
    BatchId, BoundListener, Config, Direction, EventSink, EventSource, FeedHandle, PeerPresence, ReplayPart,
    Step, Subscriber, View, subscribe,
};
use warmroute_types::{Address, CacheEvent, EventBatch};
use warmroute_zmtp::{Endpoint, Message, Options, Publisher};

const PATIENCE: Duration = Duration::from_secs(20);

/// One router's sink: the names that it holds, and its connection to the peer.
#[derive(Default)]
struct PeerSink {
    held: Mutex<BTreeSet<u64>>,
    views: Mutex<Vec<View>>,
    batch: Mutex<Option<EventBatch>>,
    /// The peer's feed and sink.
    other: OnceLock<(Arc<FeedHandle>, Arc<PeerSink>)>,
    wanted: Mutex<Vec<(u64, u64)>>,
}

impl EventSink for PeerSink {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            match step {
                Step::Apply(events) => events.iter().for_each(|event| self.apply(event)),
                Step::Forget => self.held.lock().clear(),
                Step::View(view) => self.views.lock().push(view),
                Step::AskReplay { .. } => panic!("the sink receives no replay requests"),
            }
        }
    }

    fn prepare_relay(&self, _: &Address, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        *self.batch.lock() = Some(batch.clone());
        Some([].into())
    }

    fn relay(&self, _: &Address, which: BatchId, _: Arc<[u8]>) {
        let batch = self.batch.lock().take().unwrap();
        if let Some((feed_handle, _)) = self.other.get() {
            feed_handle.relayed(which, batch);
        }
    }

    fn request_replay(&self, _: &Address, source: u64, from_seq: u64) -> bool {
        self.wanted.lock().push((source, from_seq));
        self.other.get().is_some()
    }

    fn peer_presence(&self) -> PeerPresence {
        if self.other.get().is_some() { PeerPresence::Present } else { PeerPresence::Absent }
    }
}

impl PeerSink {
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

    /// Replies to the peer's request, as the router between them would.
    async fn answer(&self, feed_handle: &FeedHandle) {
        until("something is wanted", || !self.wanted.lock().is_empty()).await;
        let (source, from_seq) = self.wanted.lock().pop().unwrap();
        let (other, sink_here) = self.other.get().unwrap();
        let cache = || Some(sink_here.held.lock().iter().map(|&name| name as u8).collect());
        feed_handle.replayed(
            other.snapshot(source, from_seq, cache).map(ReplayPart::Snapshot).into_iter().collect(),
        );
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
    until("a subscriber connects", || publisher.subscribers() > 0).await;
    publisher
}

async fn bound_listener() -> (BoundListener, Subscriber, Arc<PeerSink>) {
    let bound_listener = BoundListener::bind(&free(), Config::default()).await.unwrap();
    let sink_here = Arc::new(PeerSink::default());
    let sink = Arc::clone(&sink_here) as Arc<dyn EventSink>;
    let subscriber = bound_listener.expect_worker(Address::new("http://w"), "kv", None, sink).unwrap();
    (bound_listener, subscriber, sink_here)
}

#[tokio::test]
async fn an_engine_connected_to_one_router_is_known_to_both_and_may_move() {
    let (one, here, sink_here) = bound_listener().await;
    let (two, there, other) = bound_listener().await;
    let engine = connected(one.endpoint()).await;
    engine.send(&stored(0, 1));
    sink_here.until(&[1]).await;
    let (feed_handle, feed_there) = (here.feed(), there.feed());
    assert!(sink_here.other.set((Arc::clone(&feed_there), Arc::clone(&other))).is_ok());
    assert!(other.other.set((feed_handle, Arc::clone(&sink_here))).is_ok());
    // The second router starts late: the first batch that it receives shows that there was one before.
    engine.send(&stored(1, 2));
    other.answer(&feed_there).await;
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
async fn a_late_subscriber_gets_the_history_from_its_peer() {
    let engine = Publisher::bind(&free(), Options::default()).await.unwrap();
    let listen = || {
        let sink_here = Arc::new(PeerSink::default());
        let (endpoint, direction) = (engine.endpoint().clone(), Direction::WeConnect);
        let source = EventSource {
            rank: 0,
            endpoint,
            direction,
            replay: None,
            topic: "kv".to_owned(),
            block_tokens: None,
        };
        let sink = Arc::clone(&sink_here) as Arc<dyn EventSink>;
        (subscribe(Address::new("http://w"), source, sink, Config::default()), sink_here)
    };
    let (first, sink_here) = listen();
    until("the first listens", || engine.subscribers() == 1).await;
    engine.send(&stored(0, 1));
    engine.send(&stored(1, 2));
    sink_here.until(&[1, 2]).await;
    let (second, other) = listen();
    assert!(other.other.set((first.feed(), Arc::clone(&sink_here))).is_ok());
    until("both listen", || engine.subscribers() == 2).await;
    engine.send(&stored(2, 3));
    sink_here.until(&[1, 2, 3]).await;
    other.answer(&second.feed()).await;
    other.until(&[1, 2, 3]).await;
    assert_eq!((second.view(), second.counters().floor_seq), (View::Reported, Some(0)));
    engine.send(&stored(3, 4));
    other.until(&[1, 2, 3, 4]).await;
    assert_eq!(second.counters().lost, 0);
}
