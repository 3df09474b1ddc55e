//! Subscribers against publishers on real sockets: joining late, gaps, restarts, both directions.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use warmroute_events::{
    BoundListener, Config, Direction, EventSink, EventSource, Publishers, SharedTopic, Step, Subscriber,
    View, subscribe,
};
use warmroute_types::{Address, CacheEvent};
use warmroute_zmtp::{Endpoint, Message, Options, Publisher, Router};

const PATIENCE: Duration = Duration::from_secs(20);

/// The cache as the sink knows it: counted names.
#[derive(Default)]
struct CacheMirror {
    held: Mutex<BTreeMap<u64, u32>>,
    forgotten: Mutex<u32>,
    changed: watch::Sender<u64>,
}

impl EventSink for CacheMirror {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            match step {
                Step::Apply(events) => events.iter().for_each(|event| self.apply(event)),
                Step::Forget => {
                    self.held.lock().clear();
                    *self.forgotten.lock() += 1;
                }
                Step::View(_) => {}
                Step::AskReplay { .. } => panic!("the sink receives no replay requests"),
            }
        }
        self.changed.send_modify(|changes| *changes += 1);
    }
}

impl CacheMirror {
    fn apply(&self, event: &CacheEvent) {
        let mut held = self.held.lock();
        match event {
            CacheEvent::Stored(stored) => {
                stored.names.iter().for_each(|name| *held.entry(*name).or_default() += 1)
            }
            CacheEvent::Removed(removed) => removed.names.iter().for_each(|name| {
                held.remove(name);
            }),
            CacheEvent::Cleared => held.clear(),
        }
    }

    fn names(&self) -> Vec<u64> {
        self.held.lock().keys().copied().collect()
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut(&CacheMirror) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !is_so(self) {
                // The view may change without a wake-up, so the test polls it.
                let _ = tokio::time::timeout(Duration::from_millis(20), changed.changed()).await;
            }
        };
        let known = || format!("{what}: {:?}", self.names());
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never {}", known()));
    }
}

/// An engine's publisher: sockets and replay memory.
struct Engine {
    publisher: Publisher,
    memory: Arc<Mutex<VecDeque<(u64, Bytes)>>>,
    replayer: JoinHandle<()>,
    replay_at: Endpoint,
    seq: u64,
    began: f64,
}

impl Engine {
    async fn start(events: &Endpoint, replay: &Endpoint, began: f64, layout: Layout) -> Engine {
        let publisher = Publisher::bind(events, Options::default()).await.unwrap();
        Engine::with(publisher, replay, began, layout).await
    }

    async fn with(publisher: Publisher, replay: &Endpoint, began: f64, layout: Layout) -> Engine {
        let router = Router::bind(replay, Options::default()).await.unwrap();
        let (memory, replay_at) = (Arc::new(Mutex::new(VecDeque::new())), router.endpoint().clone());
        let replayer = tokio::spawn(serve_replays(router, Arc::clone(&memory), layout));
        Engine { publisher, memory, replayer, replay_at, seq: 0, began }
    }

    /// Publishes a store of this name, or only keeps it for replays: then it is lost.
    fn store(&mut self, name: u8, fate: Fate) {
        let mut payload = vec![0x93, 0xcb];
        payload.extend((self.began + self.seq as f64).to_be_bytes());
        payload.extend([0x91, 0x96, 0xab]);
        payload.extend(b"BlockStored");
        payload.extend([0x91, name, 0xc0, 0x91, 5, 1, 0xc0, 0xc0]);
        let payload = Bytes::from(payload);
        self.memory.lock().push_back((self.seq, payload.clone()));
        if fate == Fate::Arrives {
            let seq = Bytes::copy_from_slice(&self.seq.to_be_bytes());
            self.publisher.send(&vec![Bytes::from_static(b"kv"), seq, payload]);
        }
        self.seq += 1;
    }

    async fn until_subscribed(&self) {
        let waiting = async {
            while self.publisher.subscribers() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("no subscriber connects");
    }

    fn source(&self, replay: Option<Endpoint>) -> EventSource {
        EventSource {
            rank: 0,
            endpoint: self.publisher.endpoint().clone(),
            direction: Direction::WeConnect,
            replay,
            topic: "kv".to_owned(),
            block_tokens: None,
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.replayer.abort();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
}

/// The layout of replay replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Up to vLLM 0.25, and SGLang.
    Bare,
    /// With the topic, since vLLM 0.26.
    Topic,
    /// With the topic, from a socket that is full after two replies and has room again for a last batch, not for the end.
    Dropping,
}

async fn serve_replays(mut router: Router, memory: Arc<Mutex<VecDeque<(u64, Bytes)>>>, layout: Layout) {
    while let Ok((peer, question)) = router.receive().await {
        let from = u64::from_be_bytes(question[1][..].try_into().unwrap());
        let known: Vec<_> = memory.lock().iter().filter(|(seq, _)| *seq >= from).cloned().collect();
        let answer = |topic: &'static [u8], seq: u64, payload: Bytes| -> Message {
            let seq = Bytes::copy_from_slice(&seq.to_be_bytes());
            match layout {
                Layout::Bare => vec![Bytes::new(), seq, payload],
                Layout::Topic | Layout::Dropping => {
                    vec![Bytes::new(), Bytes::from_static(topic), seq, payload]
                }
            }
        };
        let (count, drops) = (known.len(), layout == Layout::Dropping && known.len() > 2);
        for (at, (seq, payload)) in known.into_iter().enumerate() {
            if !drops || at < 2 || (at == count - 1 && at > 3) {
                router.send(peer, answer(b"kv", seq, payload)).await.unwrap();
            }
        }
        if !drops {
            router.send(peer, answer(b"", u64::MAX, Bytes::new())).await.unwrap();
        }
    }
}

fn free() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

fn follow(source: EventSource) -> (Arc<CacheMirror>, Subscriber) {
    let mirror = Arc::new(CacheMirror::default());
    let sink = Arc::clone(&mirror) as Arc<dyn EventSink>;
    let config = Config { tick: Duration::from_millis(20), ..Config::default() };
    (mirror, subscribe(Address::new("http://w"), source, sink, config))
}

#[tokio::test]
async fn a_late_subscriber_learns_earlier_batches() {
    for layout in [Layout::Bare, Layout::Topic] {
        let mut engine = Engine::start(&free(), &free(), 1e6, layout).await;
        (1..=3).for_each(|name| engine.store(name, Fate::Arrives));
        let (mirror, subscriber) = follow(engine.source(Some(engine.replay_at.clone())));
        mirror.until("all three", |mirror| mirror.names() == [1, 2, 3]).await;
        mirror.until("reported", |_| subscriber.view() == View::Reported).await;
        engine.until_subscribed().await;
        engine.store(4, Fate::Arrives);
        mirror.until("the live one", |mirror| mirror.names() == [1, 2, 3, 4]).await;
    }
}

#[tokio::test]
async fn what_the_engines_socket_drops_of_a_replay_is_requested_again() {
    let mut engine = Engine::start(&free(), &free(), 1e6, Layout::Dropping).await;
    (1..=8).for_each(|name| engine.store(name, Fate::Arrives));
    let (mirror, subscriber) = follow(engine.source(Some(engine.replay_at.clone())));
    mirror.until("reported", |_| subscriber.view() == View::Reported).await;
    assert_eq!(mirror.names(), (1..=8).collect::<Vec<_>>());
    assert_eq!((subscriber.counters().lost, subscriber.counters().gaps), (0, 0));
}

#[tokio::test]
async fn lost_batches_are_replayed() {
    let mut engine = Engine::start(&free(), &free(), 1e6, Layout::Topic).await;
    let (mirror, subscriber) = follow(engine.source(Some(engine.replay_at.clone())));
    engine.until_subscribed().await;
    mirror.until("reported", |_| subscriber.view() == View::Reported).await;
    engine.store(1, Fate::Lost);
    engine.store(2, Fate::Lost);
    engine.store(3, Fate::Arrives);
    mirror.until("all three", |mirror| mirror.names() == [1, 2, 3]).await;
    let counters = subscriber.counters();
    assert_eq!((counters.gaps, counters.lost, counters.restarts), (1, 0, 0));
}

#[tokio::test]
async fn without_a_replay_a_loss_makes_the_view_uncertain_and_keeps_the_rest() {
    let mut engine = Engine::start(&free(), &free(), 1e6, Layout::Topic).await;
    let (mirror, subscriber) = follow(engine.source(None));
    engine.until_subscribed().await;
    engine.store(1, Fate::Arrives);
    mirror.until("the first", |mirror| mirror.names() == [1]).await;
    engine.store(2, Fate::Lost);
    engine.store(3, Fate::Arrives);
    mirror.until("the third", |mirror| mirror.names() == [1, 3]).await;
    assert_eq!((subscriber.view(), subscriber.counters().lost), (View::Uncertain, 1));
}

#[tokio::test]
async fn a_cut_connection_loses_nothing() {
    let mut engine = Engine::start(&free(), &free(), 1e6, Layout::Topic).await;
    let (mirror, subscriber) = follow(engine.source(Some(engine.replay_at.clone())));
    engine.until_subscribed().await;
    engine.store(1, Fate::Arrives);
    mirror.until("the first", |mirror| mirror.names() == [1]).await;
    engine.publisher.cut_all();
    engine.store(2, Fate::Arrives);
    engine.until_subscribed().await;
    engine.store(3, Fate::Arrives);
    mirror.until("all three", |mirror| mirror.names() == [1, 2, 3]).await;
    mirror.until("reported", |_| subscriber.view() == View::Reported).await;
    assert_eq!((subscriber.counters().restarts, *mirror.forgotten.lock()), (0, 0));
}

#[tokio::test]
async fn a_new_process_on_the_same_ports_replaces_the_old_state() {
    let engine = Engine::start(&free(), &free(), 1e6, Layout::Topic).await;
    let (events, replay) = (engine.publisher.endpoint().clone(), engine.replay_at.clone());
    let source = engine.source(Some(replay.clone()));
    let mut engine = engine;
    (1..=4).for_each(|name| engine.store(name, Fate::Arrives));
    let (mirror, subscriber) = follow(source);
    mirror.until("the old ones", |mirror| mirror.names() == [1, 2, 3, 4]).await;
    drop(engine);
    // The new process overtakes the old one's numbers before the reconnect.
    let mut engine = restarted(&events, &replay).await;
    (11..=19).for_each(|name| engine.store(name, Fate::Arrives));
    mirror.until("only the new ones", |mirror| mirror.names() == (11..=19).collect::<Vec<_>>()).await;
    mirror.until("reported", |_| subscriber.view() == View::Reported).await;
    assert_eq!(subscriber.counters().restarts, 1);
}

/// The ports may stay in use for a moment.
async fn restarted(events: &Endpoint, replay: &Endpoint) -> Engine {
    let binding = async {
        loop {
            match Publisher::bind(events, Options::default()).await {
                Ok(publisher) => return Engine::with(publisher, replay, 2e6, Layout::Topic).await,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, binding).await.expect("the port stays taken")
}

#[tokio::test]
async fn events_of_another_topic_or_rank_are_ignored() {
    let mut engine = Engine::start(&free(), &free(), 1e6, Layout::Topic).await;
    let (mirror, subscriber) = follow(engine.source(None));
    engine.until_subscribed().await;
    let foreign = vec![
        Bytes::from_static(b"kv@other"),
        Bytes::from_static(&[0; 8]),
        Bytes::from_static(b"\x92\x01\x90"),
    ];
    engine.publisher.send(&foreign);
    engine.store(1, Fate::Arrives);
    mirror.until("its own", |mirror| mirror.names() == [1]).await;
    assert_eq!(subscriber.misdirected(), 1);
}

#[tokio::test]
async fn connecting_engines_are_distinguished_by_topic() {
    let bound_listener = BoundListener::bind(&free(), Config::default()).await.unwrap();
    let mut engines = Vec::new();
    for (name, topic) in [(1u8, "kv@a"), (2, "kv@b")] {
        let mirror = Arc::new(CacheMirror::default());
        let sink = Arc::clone(&mirror) as Arc<dyn EventSink>;
        let worker = Address::new(format!("http://{topic}"));
        let subscriber = bound_listener.expect_worker(worker, topic, None, sink).unwrap();
        let publisher = Publisher::connect(bound_listener.endpoint().clone(), Options::default());
        engines.push((name, topic, mirror, subscriber, publisher));
    }
    let stranger = Publisher::connect(bound_listener.endpoint().clone(), Options::default());
    for (name, topic, mirror, subscriber, publisher) in &engines {
        while publisher.subscribers() == 0 {
            tokio::task::yield_now().await;
        }
        let message = stored(topic, 0, *name);
        stranger.send(&vec![Bytes::from_static(b"who?"), message[1].clone(), message[2].clone()]);
        publisher.send(&message);
        mirror.until("its own", |mirror| mirror.names() == [u64::from(*name)]).await;
        assert_eq!(subscriber.view(), View::Reported);
    }
    let (.., mirror, subscriber, publisher) = engines.pop().unwrap();
    drop(publisher);
    mirror.until("the engine's end", |_| subscriber.view() == View::Uncertain).await;
}

/// A message that stores one block.
fn stored(topic: &str, seq: u64, name: u8) -> Message {
    let mut payload = b"\x93\x01\x91\x96\xabBlockStored\x91".to_vec();
    payload.extend([name, 0xc0, 0x91, 5, 1, 0xc0, 0xc0]);
    let parts = [topic.as_bytes(), &seq.to_be_bytes(), &payload];
    parts.iter().map(|part| Bytes::copy_from_slice(part)).collect()
}

fn expect_worker(
    bound_listener: &BoundListener,
    worker: &str,
    topic: &str,
) -> Result<(Arc<CacheMirror>, Subscriber), SharedTopic> {
    let mirror = Arc::new(CacheMirror::default());
    let sink = Arc::clone(&mirror) as Arc<dyn EventSink>;
    Ok((mirror, bound_listener.expect_worker(Address::new(worker), topic, None, sink)?))
}

#[tokio::test]
async fn a_topic_claimed_by_two_workers_is_ignored_until_one_releases_it() {
    let bound_listener = BoundListener::bind(&free(), Config::default()).await.unwrap();
    let (mirror, first) = expect_worker(&bound_listener, "http://a", "kv").unwrap();
    let publisher = Publisher::connect(bound_listener.endpoint().clone(), Options::default());
    while publisher.subscribers() == 0 {
        tokio::task::yield_now().await;
    }
    publisher.send(&stored("kv", 0, 1));
    mirror.until("its own", |mirror| mirror.names() == [1]).await;
    let refused = expect_worker(&bound_listener, "http://b", "kv").map(drop).unwrap_err().to_string();
    assert!(refused.contains("`kv` is also that of http://a:"), "{refused}");
    let trouble = first.trouble().unwrap();
    assert!(first.feed().is_contested() && trouble.contains("also that of http://b:"), "{trouble}");
    assert_eq!(first.view(), View::Uncertain);
    assert!(expect_worker(&bound_listener, "http://a", "kv").is_err(), "asking again does not help");
    bound_listener.release(&Address::new("http://b"));
    assert!(expect_worker(&bound_listener, "http://a", "kv").is_ok());
}

#[tokio::test]
async fn two_engines_under_one_topic_are_detected_and_named() {
    let bound_listener = BoundListener::bind(&free(), Config::default()).await.unwrap();
    let (mirror, subscriber) = expect_worker(&bound_listener, "http://a", "kv").unwrap();
    let engines = [(); 2].map(|()| Publisher::connect(bound_listener.endpoint().clone(), Options::default()));
    for (name, engine) in (1..).zip(&engines) {
        while engine.subscribers() == 0 {
            tokio::task::yield_now().await;
        }
        engine.send(&stored("kv", 0, name));
        mirror.until("what it says", |mirror| mirror.names().contains(&u64::from(name))).await;
    }
    // The first engine continues although the second replaced it.
    (1..=4).for_each(|seq| engines[0].send(&stored("kv", seq, 10)));
    mirror.until("an end of it", |_| subscriber.view() == View::Uncertain).await;
    let trouble = subscriber.trouble().unwrap();
    assert!(trouble.contains("several engines publish under topic `kv`, from 127.0.0.1:"), "{trouble}");
    assert!(!mirror.names().contains(&10), "its source is ambiguous");
    let [first, second] = engines;
    drop(second);
    mirror.until("the other alone", |_| subscriber.trouble().is_none()).await;
    first.send(&stored("kv", 5, 11));
    mirror.until("it is listened to again", |mirror| mirror.names().contains(&11)).await;
}

#[tokio::test]
async fn a_worker_without_events_names_the_topics_that_arrive_instead() {
    let bound_listener = BoundListener::bind(&free(), Config::default()).await.unwrap();
    let (mirror, subscriber) = expect_worker(&bound_listener, "http://a", "kv@a").unwrap();
    let before = subscriber.trouble().unwrap();
    assert!(
        before.contains("no engine publishes to tcp://127.0.0.1:") && before.contains("`kv@a`"),
        "{before}"
    );
    let publisher = Publisher::connect(bound_listener.endpoint().clone(), Options::default());
    while publisher.subscribers() == 0 {
        tokio::task::yield_now().await;
    }
    publisher.send(&stored("kv@mistyped", 0, 1));
    let is_named = |trouble: String| trouble.contains("`kv@mistyped`");
    mirror.until("the stranger's name", |_| subscriber.trouble().is_some_and(is_named)).await;
}

#[tokio::test]
async fn only_a_workers_own_host_publishes_for_it() {
    let config = Config { publishers: Publishers::WorkerHosts, ..Config::default() };
    let bound_listener = BoundListener::bind(&free(), config).await.unwrap();
    let (elsewhere, _one) = expect_worker(&bound_listener, "http://192.0.2.1:8000", "kv@a").unwrap();
    // A connection from an address that no worker has is closed before it has sent anything.
    let warmroute_events::Endpoint::Tcp { host, port } = bound_listener.endpoint().clone() else { panic!() };
    let mut stream = tokio::net::TcpStream::connect((host.as_str(), port)).await.unwrap();
    let read = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 64]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let (here, _other) = expect_worker(&bound_listener, "http://127.0.0.1:8000", "kv@b").unwrap();
    let publisher = Publisher::connect(bound_listener.endpoint().clone(), Options::default());
    while publisher.subscribers() == 0 {
        tokio::task::yield_now().await;
    }
    publisher.send(&stored("kv@a", 0, 1));
    publisher.send(&stored("kv@b", 0, 2));
    here.until("its own", |mirror| mirror.names() == [2]).await;
    assert!(elsewhere.names().is_empty(), "nothing under another worker's topic");
}
