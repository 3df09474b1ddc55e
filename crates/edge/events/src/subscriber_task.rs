//! The task that drives one worker's feed, however its events arrive.
//!
//! There is one task a worker. Live messages, replays and time meet here only, so the feed sees them one after
//! another. The task's queue is bounded in messages and in bytes. When it is full the socket is not read, and the
//! engine's own queue fills.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};
use warmroute_feed::{Feed, Moment, Step};
use warmroute_types::{EventBatch, OptionValue};
use warmroute_zmtp::{Endpoint, Message, Options};

use crate::decode::{decode, unreadable};
use crate::feed_handle::FeedHandle;
use crate::heavy_work::work_on;
use crate::replay::{Replay, Reply, batch_id};

/// Most live messages that wait for the feed.
const WAITING_MAX: usize = 256;
/// Most kilobytes in them. A larger message waits until it is alone.
const WAITING_KIB_MAX: u32 = 64 << 10;
/// Shortest interval between replays. Without it, two engines with one name would cause endless replays.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How streams are followed.
#[derive(Clone, Debug)]
pub struct Config {
    /// Timeouts and limits of each feed.
    pub feed: warmroute_feed::Config,
    /// Limits and heartbeats of each connection.
    pub socket: Options,
    /// Longest wait for the first reply of a replay. vLLM serves replays between its publishing, every 100 ms.
    pub replay_timeout: Duration,
    /// Interval at which feeds receive the time.
    pub tick: Duration,
    /// Who may publish to a bound listener.
    pub publishers: Publishers,
}

/// Who may publish to a bound listener. ZeroMQ, as engines use it has no authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publishers {
    /// Every host that can connect.
    #[default]
    Any,
    /// A worker's events must come from the host in its URL.
    WorkerHosts,
}

impl OptionValue for Publishers {
    const VALUES: &'static [(Publishers, &'static str, &'static str)] = &[
        (Publishers::WorkerHosts, "workers", "Accept a worker's events from the host in its URL only"),
        (Publishers::Any, "any", "Accept a worker's events from every host that can connect"),
    ];
}

impl Default for Config {
    fn default() -> Config {
        Config {
            feed: warmroute_feed::Config::default(),
            socket: Options::default(),
            replay_timeout: Duration::from_secs(3),
            tick: Duration::from_millis(500),
            publishers: Publishers::default(),
        }
    }
}

/// An event of one of the worker's connections. A new connection may be up before the end of the old one is noticed.
pub struct ConnectionEvent {
    pub connection: u64,
    pub change: ConnectionChange,
}

/// What happened on a connection.
pub enum ConnectionChange {
    /// The connection is up, from this address.
    Up(String),
    /// A message, with its share of the queue.
    Message(Message, OwnedSemaphorePermit),
    /// The connection has ended, for this reason.
    Down(String),
}

/// The sender to a subscriber task, for every connection of its worker.
#[derive(Clone)]
pub struct TaskSender {
    events: mpsc::Sender<ConnectionEvent>,
    room: Arc<Semaphore>,
}

/// The task has ended.
pub struct Closed;

impl TaskSender {
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    pub async fn send(&self, connection: u64, change: ConnectionChange) -> Result<(), Closed> {
        self.events.send(ConnectionEvent { connection, change }).await.map_err(|_| Closed)
    }

    /// Sends a message. Waits for room, so that the caller stops reading its socket.
    pub async fn send_message(&self, connection: u64, message: Message) -> Result<(), Closed> {
        let bytes: usize = message.iter().map(Bytes::len).sum();
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, WAITING_KIB_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| Closed)?;
        self.send(connection, ConnectionChange::Message(message, room)).await
    }
}

/// Messages over a replaced connection after which it counts as a second engine, and not as the rest of an ended
/// process.
const RIVAL_AFTER: u32 = 4;

/// The driver of one feed.
pub struct SubscriberTask {
    feed_handle: Arc<FeedHandle>,
    config: Config,
    replay_at: Option<Endpoint>,
    topic: Bytes,
    replay: Option<Replay>,
    asked_at: Option<Instant>,
    connections: Connections,
}

/// The connections that are up.
#[derive(Default)]
struct Connections {
    /// Ids and addresses of the connections, in the order in which they came up.
    up: Vec<(u64, String)>,
    /// The connection that counts: the last that came up.
    current: u64,
    /// Messages over other connections since then.
    strikes: u32,
    /// Two engines publish under one topic. Which of them is this worker is ambiguous, so both are ignored.
    are_rivals: bool,
}

impl SubscriberTask {
    pub fn new(
        feed_handle: Arc<FeedHandle>,
        config: Config,
        replay_at: Option<Endpoint>,
        topic: &str,
    ) -> SubscriberTask {
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        let connections = Connections::default();
        SubscriberTask { feed_handle, config, replay_at, topic, replay: None, asked_at: None, connections }
    }

    /// The task's queue.
    pub fn inbox() -> (TaskSender, mpsc::Receiver<ConnectionEvent>) {
        let (events, inbox) = mpsc::channel(WAITING_MAX);
        (TaskSender { events, room: Arc::new(Semaphore::new(WAITING_KIB_MAX as usize)) }, inbox)
    }

    /// Runs until all senders are gone.
    pub async fn run(mut self, mut events: mpsc::Receiver<ConnectionEvent>) {
        let mut tick = interval(self.config.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                reply = next_reply(&mut self.replay) => self.take_reply(reply),
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn take(&mut self, event: ConnectionEvent) {
        match event.change {
            _ if self.feed_handle.is_contested() => {}
            ConnectionChange::Up(peer) => {
                self.connections.up.retain(|(connection, _)| *connection != event.connection);
                self.connections.up.push((event.connection, peer));
                if !self.connections.are_rivals {
                    self.begin(event.connection);
                }
            }
            ConnectionChange::Down(why) => self.end(event.connection, why),
            ConnectionChange::Message(..) if self.connections.are_rivals => {}
            ConnectionChange::Message(message, _room) if event.connection == self.connections.current => {
                self.take_message(&message)
            }
            ConnectionChange::Message(..) => self.strike(),
        }
    }

    /// Makes this connection the one that counts.
    fn begin(&mut self, connection: u64) {
        (self.connections.current, self.connections.strikes) = (connection, 0);
        self.replay = None;
        self.feed_handle.set_trouble(None);
        self.update(|feed, at, steps| feed.connected(at.now, steps));
    }

    fn tick(&mut self) {
        self.update(|feed, at, steps| feed.tick(at.now, steps));
    }

    fn end(&mut self, connection: u64, why: String) {
        self.connections.up.retain(|(other, _)| *other != connection);
        if self.connections.are_rivals && self.connections.up.len() == 1 {
            self.connections.are_rivals = false;
            self.begin(self.connections.up[0].0);
        } else if connection == self.connections.current && !self.connections.are_rivals {
            self.stop(why);
        }
    }

    fn stop(&mut self, why: String) {
        self.replay = None;
        self.feed_handle.set_trouble(Some(why));
        self.update(|feed, at, steps| feed.disconnected(at.now, steps));
    }

    /// Counts a message over a connection that should have ended when the current one began.
    fn strike(&mut self) {
        self.connections.strikes += 1;
        if self.connections.strikes >= RIVAL_AFTER && self.connections.up.len() > 1 {
            self.connections.are_rivals = true;
            let peers: Vec<&str> = self.connections.up.iter().map(|(_, peer)| peer.as_str()).collect();
            self.stop(format!(
                "several engines publish under topic `{}`, from {}: give every engine its own topic",
                self.topic.escape_ascii(),
                peers.join(" and "),
            ));
        }
    }

    fn take_message(&mut self, message: &Message) {
        let topic = message.first().filter(|_| message.len() > 2);
        let is_ours = self.topic.is_empty() || topic.is_none_or(|topic| *topic == self.topic);
        match batch_id(message).filter(|_| is_ours) {
            Some((seq, payload)) => work_on(payload.len(), || {
                if let Some(batch) = self.read(&payload) {
                    self.apply(seq, batch);
                }
            }),
            None => self.feed_handle.misdirected(),
        }
    }

    fn apply(&mut self, seq: u64, batch: EventBatch) {
        self.update(|feed, at, steps| feed.received_live(seq, batch, at, steps));
    }

    /// The batch in a payload, unless it is of another rank.
    fn read(&self, payload: &[u8]) -> Option<EventBatch> {
        let batch = decode(payload).unwrap_or_else(|_| unreadable(payload));
        match (self.feed_handle.worker.rank, batch.rank) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                self.feed_handle.misdirected();
                None
            }
            _ => Some(batch),
        }
    }

    fn take_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Batch { seq, payload } => work_on(payload.len(), || {
                if let Some(batch) = self.read(&payload) {
                    self.update(|feed, at, steps| feed.replayed(seq, batch, at.now, steps));
                }
            }),
            Reply::End(end) => {
                self.replay = None;
                self.update(|feed, at, steps| feed.replay_ended(end, at.now, steps));
            }
        }
    }

    /// Passes an input to the feed, and requests the replay that it wants. Where the engine serves none, the
    /// replay fails at once.
    fn update(&mut self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) {
        let asked = self.feed_handle.update(input);
        self.ask(asked);
    }

    fn ask(&mut self, asked: Option<u64>) {
        let Some(endpoint) = &self.replay_at else { return self.feed_handle.fail_replay(asked) };
        if let Some(from_seq) = asked {
            let (socket, timeout) = (self.config.socket.clone(), self.config.replay_timeout);
            let pause = self.asked_at.map_or(Duration::ZERO, |last| ASK_EVERY.saturating_sub(last.elapsed()));
            self.asked_at = Some(Instant::now() + pause);
            self.replay = Some(Replay::ask(endpoint.clone(), from_seq, socket, timeout, pause));
        }
    }
}

async fn next_reply(replay: &mut Option<Replay>) -> Reply {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}
