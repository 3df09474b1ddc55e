//! One rank's publisher, with the faults on its way.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use warmroute_zmtp::{Endpoint, Error, Message, Options, PeerId, Publisher, Router};

use super::encode::{self, CacheChange};
use super::replay_memory::ReplayMemory;
use crate::config::{EventEncoding, EventsConfig, PublisherMode};
use crate::fault::{Condition, EventFaults, Removals, Stores};

/// Most batches that may be late at one time; further ones are lost.
const LATE_MAX: usize = 100_000;
/// vLLM's default, for `GET /kv_event_sources`.
const HWM: u32 = 100_000;

/// The publisher of one rank.
pub(crate) struct Channel {
    rank: u16,
    config: EventsConfig,
    endpoint: Endpoint,
    replay: Option<Endpoint>,
    condition: watch::Receiver<Condition>,
    memory: Arc<Mutex<ReplayMemory>>,
    sockets: Mutex<Option<Sockets>>,
    way: Mutex<Way>,
}

struct Sockets {
    publisher: Arc<Publisher>,
    late: mpsc::Sender<(Instant, Message)>,
    restarts: watch::Sender<u64>,
    tasks: Vec<JoinHandle<()>>,
}

/// Delayed batches, and the random state of faults.
#[derive(Default)]
struct Way {
    random: u64,
    /// A batch that the next one overtakes.
    overtaken: Option<Message>,
}

impl Channel {
    /// Opens the sockets of a rank.
    pub(crate) async fn open(
        config: &EventsConfig,
        rank: u16,
        condition: watch::Receiver<Condition>,
    ) -> Result<Channel, Error> {
        let of_rank =
            |endpoint: &Endpoint| endpoint.clone().of_rank(rank).unwrap_or_else(|| endpoint.clone());
        let publisher = match config.publisher {
            PublisherMode::Bind => Publisher::bind(&of_rank(&config.endpoint), Options::default()).await?,
            PublisherMode::Connect => Publisher::connect(of_rank(&config.endpoint), Options::default()),
        };
        let (publisher, memory) = (Arc::new(publisher), Arc::new(Mutex::new(ReplayMemory::default())));
        let (late, waiting) = mpsc::channel(LATE_MAX);
        let restarts = watch::Sender::new(0);
        let mut tasks = vec![tokio::spawn(send_late(Arc::clone(&publisher), waiting))];
        let mut replay = None;
        if let Some(at) = &config.replay {
            let router = Router::bind(&of_rank(at), Options::default()).await?;
            replay = Some(router.endpoint().clone());
            let replayer = Replayer {
                memory: Arc::clone(&memory),
                condition: condition.clone(),
                encoding: config.encoding,
                topic: Bytes::copy_from_slice(config.topic.as_bytes()),
            };
            tasks.push(tokio::spawn(replayer.run(router, restarts.subscribe())));
        }
        let endpoint = publisher.endpoint().clone();
        let sockets = Mutex::new(Some(Sockets { publisher, late, restarts, tasks }));
        let way = Mutex::new(Way { random: u64::from(rank) + 1, overtaken: None });
        Ok(Channel { rank, config: config.clone(), endpoint, replay, condition, memory, sockets, way })
    }

    /// The publisher and replay endpoints.
    pub(crate) fn endpoints(&self) -> (Endpoint, Option<Endpoint>) {
        (self.endpoint.clone(), self.replay.clone())
    }

    /// Its entry in `GET /kv_event_sources`.
    pub(crate) fn describe(&self, config: &EventsConfig) -> Value {
        json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": self.endpoint.to_string(),
            "replay_endpoint": self.replay.as_ref().map(Endpoint::to_string),
            "buffer_steps": config.memory_batches,
            "hwm": HWM,
            "max_queue_size": HWM,
            "topic": config.topic,
        })
    }

    /// Numbers, stores and sends a batch.
    pub(crate) fn publish(&self, mut changes: Vec<CacheChange>) {
        let faults = self.condition.borrow().events();
        if faults.removals == Removals::Hidden {
            changes.retain(|changes| matches!(changes, CacheChange::Stored { .. } | CacheChange::Kept(..)));
            if changes.is_empty() {
                return;
            }
        }
        if faults.stores == Stores::Ahead {
            changes.iter_mut().for_each(CacheChange::claim_all);
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let payload = encode::batch(&changes, unix.as_secs_f64(), self.rank, self.config.encoding);
        let payload = Bytes::from(payload);
        let seq = self.memory.lock().push(payload.clone(), self.config.memory_batches);
        let topic = Bytes::copy_from_slice(self.config.topic.as_bytes());
        let message = vec![topic, Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
        if let Some(sockets) = &*self.sockets.lock() {
            let mut way = self.way.lock();
            way.leave(message, faults).into_iter().for_each(|message| sockets.send(message, faults.lag_ms));
        }
    }

    /// Waits until every published batch is sent, except those that are late on purpose.
    pub(crate) async fn sent(&self) {
        let publisher = self.sockets.lock().as_ref().map(|sockets| Arc::clone(&sockets.publisher));
        if let Some(publisher) = publisher {
            publisher.sent().await;
        }
    }

    /// Starts as a new process: numbers begin at 0, the memory is empty and no subscriber is connected.
    pub(crate) fn restart(&self) {
        *self.memory.lock() = ReplayMemory::default();
        self.way.lock().overtaken = None;
        if let Some(sockets) = &*self.sockets.lock() {
            sockets.publisher.cut_all();
            sockets.restarts.send_modify(|restarts| *restarts += 1);
        }
    }

    /// Closes all connections, as the end of the process.
    pub(crate) fn close(&self) {
        if let Some(sockets) = self.sockets.lock().take() {
            sockets.tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sockets {
    fn send(&self, message: Message, lag_ms: u32) {
        let is_late = lag_ms > 0 || self.late.capacity() < self.late.max_capacity();
        if !is_late {
            return self.publisher.send(&message);
        }
        let at = Instant::now() + Duration::from_millis(u64::from(lag_ms));
        // When full, the batch is lost, as in a real queue.
        let _ = self.late.try_send((at, message));
    }
}

impl Way {
    /// The batches that are sent when this one is published.
    fn leave(&mut self, message: Message, faults: EventFaults) -> Vec<Message> {
        let mut leaving = Vec::with_capacity(2);
        if self.roll() >= faults.loss {
            let times = if self.roll() < faults.duplicate { 2 } else { 1 };
            if self.overtaken.is_none() && self.roll() < faults.reorder {
                self.overtaken = Some(message);
                return leaving;
            }
            leaving.resize(times, message);
        }
        leaving.extend(self.overtaken.take());
        leaving
    }

    /// A random number from 0 to 1 (SplitMix64).
    fn roll(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

async fn send_late(publisher: Arc<Publisher>, mut waiting: mpsc::Receiver<(Instant, Message)>) {
    while let Some((at, message)) = waiting.recv().await {
        sleep_until(at).await;
        publisher.send(&message);
    }
}

/// Serves replays.
struct Replayer {
    memory: Arc<Mutex<ReplayMemory>>,
    condition: watch::Receiver<Condition>,
    encoding: EventEncoding,
    topic: Bytes,
}

impl Replayer {
    async fn run(self, mut router: Router, mut restarts: watch::Receiver<u64>) {
        loop {
            tokio::select! {
                question = router.receive() => match question {
                    Ok((peer, question)) => self.answer(&router, peer, &question).await,
                    Err(_) => return,
                },
                restarted = restarts.changed() => match restarted {
                    Ok(()) => router.cut_all(),
                    Err(_) => return,
                },
            }
        }
    }

    async fn answer(&self, router: &Router, peer: PeerId, question: &Message) {
        let from = question.last().and_then(|seq| <[u8; 8]>::try_from(&seq[..]).ok());
        let Some(from_seq) = from.map(u64::from_be_bytes) else { return };
        let last = self.condition.borrow().events().replay_batches;
        let batches = self.memory.lock().since(from_seq, last);
        for (seq, payload) in batches {
            if router.send(peer, self.layout(&self.topic, seq, payload)).await.is_err() {
                return;
            }
        }
        // A peer that has left needs no end.
        let _ = router.send(peer, self.layout(&Bytes::new(), u64::MAX, Bytes::new())).await;
    }

    fn layout(&self, topic: &Bytes, seq: u64, payload: Bytes) -> Message {
        let seq = Bytes::copy_from_slice(&seq.to_be_bytes());
        match self.encoding {
            EventEncoding::Map => vec![Bytes::new(), topic.clone(), seq, payload],
            EventEncoding::Array => vec![Bytes::new(), seq, payload],
        }
    }
}
