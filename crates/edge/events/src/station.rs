//! Where one worker's events arrive, whichever way they come, and its feed is driven.
//!
//! One task a worker: live messages, replays and the passing of time meet here and nowhere else, so the feed sees them one
//! after another. Its inbox is bounded, in messages and in bytes; when it is full the socket is not read, and the engine's own
//! queue takes over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};
use warmroute_feed::{Feed, Moment, Step};
use warmroute_types::EventBatch;
use warmroute_zmtp::{Endpoint, Message, Options};

use crate::decode::{decode, unreadable};
use crate::desk::Desk;
use crate::replay::{Replay, Reply, numbered};

/// Live messages that wait for the feed.
const WAITING_MAX: usize = 256;
/// And their kilobytes. A message that has more than that alone waits until it is alone.
const WAITING_KIB_MAX: u32 = 64 << 10;
/// Replays follow each other no faster, or two engines under one name would have us and them do nothing else.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How streams are followed.
#[derive(Clone, Debug)]
pub struct Config {
    /// Patience and bounds of each feed.
    pub feed: warmroute_feed::Config,
    /// Limits and heartbeats of each connection.
    pub socket: Options,
    /// How long a replay may pause between two answers. vLLM serves replays between its publishing, every 100 ms.
    pub replay_patience: Duration,
    /// How often the passing of time is told.
    pub tick: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            feed: warmroute_feed::Config::default(),
            socket: Options::default(),
            replay_patience: Duration::from_secs(3),
            tick: Duration::from_millis(500),
        }
    }
}

/// What happens to a stream, and on which of its connections: a new one may be up before the old one's end is noticed.
pub struct Arrival {
    pub line: u64,
    pub news: News,
}

pub enum News {
    /// A connection, from there.
    Up(String),
    /// A message, with the room that it takes.
    Message(Message, OwnedSemaphorePermit),
    /// It has ended, for this reason.
    Down(String),
}

/// The way into a station, for every connection of its worker.
#[derive(Clone)]
pub struct Inlet {
    arrivals: mpsc::Sender<Arrival>,
    room: Arc<Semaphore>,
}

/// Nobody is there to take it.
pub struct Closed;

impl Inlet {
    pub fn is_closed(&self) -> bool {
        self.arrivals.is_closed()
    }

    pub async fn tell(&self, line: u64, news: News) -> Result<(), Closed> {
        self.arrivals.send(Arrival { line, news }).await.map_err(|_| Closed)
    }

    /// Waits for room, so that whoever reads a socket stops reading it.
    pub async fn pass(&self, line: u64, message: Message) -> Result<(), Closed> {
        let bytes: usize = message.iter().map(Bytes::len).sum();
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, WAITING_KIB_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| Closed)?;
        self.tell(line, News::Message(message, room)).await
    }
}

/// So many messages over a connection whose place another has taken: that is no leftover of a process that ended.
const RIVAL_AFTER: u32 = 4;

/// The driver of one feed.
pub struct Station {
    desk: Arc<Desk>,
    config: Config,
    replay_at: Option<Endpoint>,
    topic: Bytes,
    replay: Option<Replay>,
    asked_at: Option<Instant>,
    lines: Lines,
    hearing: Hearing,
}

/// Who else hears an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// Every router that listens.
    Shared,
    /// Nobody: the engine connects to one router.
    Alone,
}

/// The connections that are up.
#[derive(Default)]
struct Lines {
    /// With where each comes from, in the order in which they came.
    up: Vec<(u64, String)>,
    /// The one that counts: the last that came up.
    current: u64,
    /// Messages that came over another one since.
    strikes: u32,
    /// Two engines publish under one name: nobody can say which of them is this worker, so neither is listened to.
    are_rivals: bool,
}

impl Station {
    pub fn new(
        desk: Arc<Desk>,
        config: Config,
        replay_at: Option<Endpoint>,
        topic: &str,
        hearing: Hearing,
    ) -> Station {
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        let lines = Lines::default();
        Station { desk, config, replay_at, topic, replay: None, asked_at: None, lines, hearing }
    }

    /// Where to send what arrives.
    pub fn inbox() -> (Inlet, mpsc::Receiver<Arrival>) {
        let (arrivals, inbox) = mpsc::channel(WAITING_MAX);
        (Inlet { arrivals, room: Arc::new(Semaphore::new(WAITING_KIB_MAX as usize)) }, inbox)
    }

    /// Runs until nobody can send any more.
    pub async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) {
        let mut tick = interval(self.config.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.take(arrival),
                    None => return,
                },
                reply = next_reply(&mut self.replay) => self.take_reply(reply),
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn take(&mut self, arrival: Arrival) {
        match arrival.news {
            _ if self.desk.is_contested() => {}
            News::Up(peer) => {
                self.lines.up.retain(|(line, _)| *line != arrival.line);
                self.lines.up.push((arrival.line, peer));
                if !self.lines.are_rivals {
                    self.begin(arrival.line);
                }
            }
            News::Down(why) => self.end(arrival.line, why),
            News::Message(..) if self.lines.are_rivals => {}
            News::Message(message, _room) if arrival.line == self.lines.current => {
                self.take_message(&message)
            }
            News::Message(..) => self.strike(),
        }
    }

    /// This connection counts from now on.
    fn begin(&mut self, line: u64) {
        (self.lines.current, self.lines.strikes) = (line, 0);
        self.replay = None;
        self.desk.set_trouble(None);
        let asked = self.desk.connected();
        self.ask(asked);
    }

    fn tick(&mut self) {
        self.tell(|feed, at, steps| feed.tick(at.now, steps));
        self.desk.deepen();
    }

    fn end(&mut self, line: u64, why: String) {
        self.lines.up.retain(|(other, _)| *other != line);
        if self.lines.are_rivals && self.lines.up.len() == 1 {
            self.lines.are_rivals = false;
            self.begin(self.lines.up[0].0);
        } else if line == self.lines.current && !self.lines.are_rivals {
            self.stop(why);
        }
    }

    fn stop(&mut self, why: String) {
        self.replay = None;
        self.desk.set_trouble(Some(why));
        self.tell(|feed, at, steps| feed.disconnected(at.now, steps));
    }

    /// A message over a connection that should have ended when the current one began.
    fn strike(&mut self) {
        self.lines.strikes += 1;
        if self.lines.strikes >= RIVAL_AFTER && self.lines.up.len() > 1 {
            self.lines.are_rivals = true;
            let peers: Vec<&str> = self.lines.up.iter().map(|(_, peer)| peer.as_str()).collect();
            self.stop(format!(
                "several engines publish under topic `{}`, from {}: give every engine a topic of its own",
                self.topic.escape_ascii(),
                peers.join(" and "),
            ));
        }
    }

    fn take_message(&mut self, message: &Message) {
        let topic = message.first().filter(|_| message.len() > 2);
        let is_ours = self.topic.is_empty() || topic.is_none_or(|topic| *topic == self.topic);
        match numbered(message).filter(|_| is_ours) {
            Some((seq, payload)) => {
                if let Some(batch) = self.read(&payload) {
                    self.hear(seq, batch);
                }
            }
            None => self.desk.misdirected(),
        }
    }

    fn hear(&mut self, seq: u64, batch: EventBatch) {
        match self.hearing {
            Hearing::Shared => self.tell(|feed, at, steps| feed.received_live(seq, batch, at, steps)),
            Hearing::Alone => {
                let asked = self.desk.received(seq, batch);
                self.ask(asked);
            }
        }
    }

    /// The batch in a payload, unless another rank made it.
    fn read(&self, payload: &[u8]) -> Option<EventBatch> {
        let batch = decode(payload).unwrap_or_else(|_| unreadable(payload));
        match (self.desk.worker.rank, batch.rank) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                self.desk.misdirected();
                None
            }
            _ => Some(batch),
        }
    }

    fn take_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Batch { seq, payload } => {
                if let Some(batch) = self.read(&payload) {
                    self.tell(|feed, at, steps| feed.replayed(seq, batch, at.now, steps));
                }
            }
            Reply::End(end) => {
                self.replay = None;
                self.tell(|feed, at, steps| feed.replay_ended(end, at.now, steps));
            }
        }
    }

    /// Tells the feed, and asks for the replay that it wants. Without a place to ask, other routers
    /// may know, or it has failed already.
    fn tell(&mut self, input: impl FnOnce(&mut Feed, Moment, &mut Vec<Step>)) {
        let asked = self.desk.tell(input);
        self.ask(asked);
    }

    fn ask(&mut self, asked: Option<u64>) {
        let Some(endpoint) = &self.replay_at else { return self.desk.ask_others(asked) };
        if let Some(from_seq) = asked {
            let (socket, patience) = (self.config.socket.clone(), self.config.replay_patience);
            let pause = self.asked_at.map_or(Duration::ZERO, |last| ASK_EVERY.saturating_sub(last.elapsed()));
            self.asked_at = Some(Instant::now() + pause);
            self.replay = Some(Replay::ask(endpoint.clone(), from_seq, socket, patience, pause));
        }
    }
}

async fn next_reply(replay: &mut Option<Replay>) -> Reply {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}
