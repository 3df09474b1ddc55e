//! Follows engines that connect to us: one bound socket for all, told apart by topic.
//!
//! vLLM connects when its endpoint names a host (`tcp://router:5557`). A worker is awaited under the topic it is configured
//! with; a connection is known to be that worker's from its first message on. A topic that two workers claim says nothing
//! any more about whose events come under it: then neither is listened to, until one of them gives it up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use warmroute_types::{Address, MAX_WORKERS};
use warmroute_zmtp::{Endpoint, Error, Incoming, Listener as Socket, Message, Options, Sub};

use crate::desk::Desk;
use crate::listener::Listener;
use crate::source::host_of;
use crate::station::{Config, Hearing, Inlet, News, Station};
use crate::subscriber::Subscriber;

/// Topics that nobody awaits and that are remembered, to be named.
const STRANGERS_MAX: usize = 64;
/// Connections at one time.
const CONNECTIONS_MAX: usize = MAX_WORKERS;
/// Anybody can connect: no message is larger than this. An engine's step fills a tenth of it.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A bound socket. Dropping it closes it; the subscribers it gave out then hear nothing more.
pub struct Hub {
    awaited: Arc<Awaited>,
    endpoint: Endpoint,
    config: Config,
    task: JoinHandle<()>,
}

/// Several workers are to be heard under one topic.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic `{topic}` is also that of {others}: give every engine a topic of its own")]
pub struct SharedTopic {
    topic: String,
    others: String,
}

struct Awaited {
    endpoint: Endpoint,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    by_topic: HashMap<Bytes, Place>,
    /// Who is to be heard under which topic, awaited or refused.
    claims: BTreeMap<String, BTreeSet<Address>>,
    strangers: BTreeSet<String>,
}

/// Where one worker's messages go.
struct Place {
    desk: Arc<Desk>,
    inlet: Inlet,
}

impl Hub {
    /// Binds, on the current tokio runtime.
    pub async fn bind(endpoint: &Endpoint, config: Config) -> Result<Hub, Error> {
        Ok(Hub::of(Socket::bind(endpoint).await?, config))
    }

    /// On a socket that listens already.
    pub fn on(listener: TcpListener, config: Config) -> Result<Hub, Error> {
        Ok(Hub::of(Socket::on(listener)?, config))
    }

    fn of(socket: Socket, config: Config) -> Hub {
        let endpoint = socket.endpoint().clone();
        let awaited = Arc::new(Awaited { endpoint: endpoint.clone(), places: Mutex::default() });
        let task = tokio::spawn(accept(socket, Arc::clone(&awaited), config.clone()));
        Hub { awaited, endpoint, config, task }
    }

    /// Where it is bound, with the port that was free.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether an endpoint is this one, as seen from a worker: bound to every address, it goes by any name of this machine.
    pub fn is_meant_by(&self, endpoint: &Endpoint, worker_url: &str) -> bool {
        match (&self.endpoint, endpoint) {
            (Endpoint::Tcp { port: ours, .. }, Endpoint::Tcp { host, port }) if ours == port => {
                endpoint == &self.endpoint || self.endpoint.is_wildcard() && host != host_of(worker_url)
            }
            (ours, theirs) => ours == theirs,
        }
    }

    /// Awaits a worker under its topic. Where another claims it too, both are refused: whoever was awaited is not
    /// listened to any more.
    pub fn await_worker(
        &self,
        worker: Address,
        topic: &str,
        replay: Option<Endpoint>,
        listener: Arc<dyn Listener>,
    ) -> Result<Subscriber, SharedTopic> {
        let mut places = self.awaited.places.lock();
        places.claim(&worker, topic)?;
        let desk = Arc::new(Desk::new(worker, self.config.feed.clone(), listener));
        desk.set_trouble(Some(places.nobody(topic, &self.endpoint)));
        let config = self.config.clone();
        let station = Station::new(Arc::clone(&desk), config, replay, topic, Hearing::Alone);
        let (inlet, inbox) = Station::inbox();
        let place = Place { desk: Arc::clone(&desk), inlet };
        places.by_topic.insert(Bytes::copy_from_slice(topic.as_bytes()), place);
        Ok(Subscriber::of(desk, vec![tokio::spawn(station.run(inbox))]))
    }

    /// A worker is not to be heard here any more.
    pub fn release(&self, worker: &Address) {
        self.awaited.places.lock().release(worker);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(socket: Socket, awaited: Arc<Awaited>, config: Config) {
    // They end with this task.
    let mut connections = JoinSet::new();
    let mut lines = 0;
    loop {
        tokio::select! {
            incoming = socket.accept(), if connections.len() < CONNECTIONS_MAX => match incoming {
                Ok(incoming) => {
                    lines += 1;
                    connections.spawn(follow(incoming, lines, Arc::clone(&awaited), config.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an engine");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One engine's connection, with the topics that it has spoken under: one engine has one, but nothing forbids more.
struct Line {
    number: u64,
    peer: String,
    known: HashMap<Bytes, Inlet>,
}

async fn follow(incoming: Incoming, number: u64, awaited: Arc<Awaited>, config: Config) {
    let mut line = Line { number, peer: incoming.peer().to_owned(), known: HashMap::new() };
    let limited = Options { message_bytes_max: MESSAGE_BYTES_MAX, ..config.socket };
    let mut sub = match Sub::accept(incoming, b"", &limited).await {
        Ok(sub) => sub,
        Err(error) => return tracing::debug!(%error, "a stranger connected"),
    };
    let error = loop {
        match sub.receive().await {
            Ok(message) => line.pass(message, &awaited).await,
            Err(error) => break error,
        }
    };
    let why = format!("the engine's connection from {} ended: {error}", line.peer);
    for inlet in line.known.into_values() {
        let _ = inlet.tell(number, News::Down(why.clone())).await;
    }
}

impl Line {
    async fn pass(&mut self, message: Message, awaited: &Awaited) {
        let line = self.number;
        let Some(topic) = message.first().cloned() else { return };
        let current = self.known.get(&topic).filter(|inlet| !inlet.is_closed()).cloned();
        let inlet = match current {
            Some(inlet) => inlet,
            None => {
                let Some(inlet) = awaited.find(&topic, &self.peer) else { return };
                let _ = inlet.tell(line, News::Up(self.peer.clone())).await;
                self.known.insert(topic, inlet.clone());
                inlet
            }
        };
        let _ = inlet.pass(line, message).await;
    }
}

impl Awaited {
    fn find(&self, topic: &Bytes, peer: &str) -> Option<Inlet> {
        let mut places = self.places.lock();
        match places.by_topic.get(topic).filter(|place| !place.inlet.is_closed()) {
            Some(place) => Some(place.inlet.clone()),
            None => {
                places.note_stranger(topic, peer, &self.endpoint);
                None
            }
        }
    }
}

impl Places {
    /// A worker has one topic at a time.
    fn claim(&mut self, worker: &Address, topic: &str) -> Result<(), SharedTopic> {
        self.release(worker);
        let claims = self.claims.entry(topic.to_owned()).or_default();
        claims.insert(worker.clone());
        let others = |of: &Address| {
            let others: Vec<String> =
                claims.iter().filter(|other| *other != of).map(ToString::to_string).collect();
            SharedTopic { topic: topic.to_owned(), others: others.join(", ") }
        };
        if claims.len() == 1 {
            return Ok(());
        }
        if let Some(place) = self.by_topic.remove(topic.as_bytes()) {
            place.desk.contest(others(&place.desk.worker).to_string());
        }
        Err(others(worker))
    }

    fn release(&mut self, worker: &Address) {
        self.by_topic.retain(|_, place| place.desk.worker != *worker);
        self.claims.values_mut().for_each(|claims| _ = claims.remove(worker));
        self.claims.retain(|_, claims| !claims.is_empty());
    }

    /// Why nothing comes under a topic, with what comes instead.
    fn nobody(&self, topic: &str, endpoint: &Endpoint) -> String {
        let strangers: Vec<String> = self.strangers.iter().map(|topic| format!("`{topic}`")).collect();
        let instead = match strangers.is_empty() {
            true => String::new(),
            false => format!("; heard there and awaited by no worker: {}", strangers.join(", ")),
        };
        format!("no engine publishes to {endpoint} under topic `{topic}`{instead}")
    }

    fn note_stranger(&mut self, topic: &Bytes, peer: &str, endpoint: &Endpoint) {
        let topic = topic.escape_ascii().to_string();
        if self.strangers.len() >= STRANGERS_MAX || !self.strangers.insert(topic.clone()) {
            return;
        }
        tracing::warn!(
            topic,
            peer,
            "KV events under a topic that no worker is awaited under: its kv-events must name the topic that the engine \
             has in its --kv-events-config"
        );
        for (awaited, place) in &self.by_topic {
            // One that has been heard has no such trouble.
            if place.desk.counters().batches == 0 && place.desk.trouble().is_some() {
                let awaited = awaited.escape_ascii().to_string();
                place.desk.set_trouble(Some(self.nobody(&awaited, endpoint)));
            }
        }
    }
}
