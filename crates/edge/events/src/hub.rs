//! Follows engines that connect to us: one bound socket for all, told apart by topic.
//!
//! vLLM connects when its endpoint names a host (`tcp://router:5557`). A worker is awaited under the topic it is configured
//! with; a connection is known to be that worker's from its first message on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use warmroute_types::Address;
use warmroute_zmtp::{Endpoint, Error, Incoming, Listener as Socket, Message, Sub};

use crate::desk::Desk;
use crate::listener::Listener;
use crate::station::{Arrival, Config, News, Station};
use crate::subscriber::Subscriber;

/// Topics that nobody awaits and that are remembered, to be named once in the log.
const STRANGERS_MAX: usize = 64;
/// Connections at one time.
const CONNECTIONS_MAX: usize = 8_192;

/// A bound socket. Dropping it closes it; the subscribers it gave out then hear nothing more.
pub struct Hub {
    awaited: Arc<Awaited>,
    endpoint: Endpoint,
    config: Config,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Awaited {
    by_topic: Mutex<HashMap<Bytes, mpsc::Sender<Arrival>>>,
    strangers: Mutex<BTreeSet<Bytes>>,
}

impl Hub {
    /// Binds, on the current tokio runtime.
    pub async fn bind(endpoint: &Endpoint, config: Config) -> Result<Hub, Error> {
        let socket = Socket::bind(endpoint).await?;
        let (awaited, endpoint) = (Arc::new(Awaited::default()), socket.endpoint().clone());
        let task = tokio::spawn(accept(socket, Arc::clone(&awaited), config.clone()));
        Ok(Hub { awaited, endpoint, config, task })
    }

    /// Where it is bound, with the port that was free.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Awaits a worker under its topic; takes the place of whoever was awaited under it.
    pub fn await_worker(
        &self,
        worker: Address,
        topic: &str,
        replay: Option<Endpoint>,
        listener: Arc<dyn Listener>,
    ) -> Subscriber {
        let desk = Arc::new(Desk::new(worker, self.config.feed.clone(), listener));
        let station = Station::new(Arc::clone(&desk), self.config.clone(), replay, topic);
        let (arrivals, inbox) = Station::inbox();
        self.awaited.by_topic.lock().insert(Bytes::copy_from_slice(topic.as_bytes()), arrivals);
        Subscriber::of(desk, vec![tokio::spawn(station.run(inbox))])
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

/// One engine's connection. One engine has one topic, but nothing forbids more.
async fn follow(incoming: Incoming, line: u64, awaited: Arc<Awaited>, config: Config) {
    let mut sub = match Sub::accept(incoming, b"", &config.socket).await {
        Ok(sub) => sub,
        Err(error) => return tracing::debug!(%error, "a stranger connected"),
    };
    let mut known: HashMap<Bytes, mpsc::Sender<Arrival>> = HashMap::new();
    let error = loop {
        match sub.receive().await {
            Ok(message) => pass(message, line, &awaited, &mut known).await,
            Err(error) => break error,
        }
    };
    tracing::debug!(%error, "an engine's connection ended");
    for arrivals in known.into_values() {
        let _ = arrivals.send(Arrival { line, news: News::Down }).await;
    }
}

async fn pass(
    message: Message,
    line: u64,
    awaited: &Awaited,
    known: &mut HashMap<Bytes, mpsc::Sender<Arrival>>,
) {
    let Some(topic) = message.first().cloned() else { return };
    let current = known.get(&topic).filter(|arrivals| !arrivals.is_closed()).cloned();
    let arrivals = match current {
        Some(arrivals) => arrivals,
        None => {
            let Some(arrivals) = awaited.find(&topic) else { return };
            let _ = arrivals.send(Arrival { line, news: News::Up }).await;
            known.insert(topic, arrivals.clone());
            arrivals
        }
    };
    let _ = arrivals.send(Arrival { line, news: News::Message(message) }).await;
}

impl Awaited {
    fn find(&self, topic: &Bytes) -> Option<mpsc::Sender<Arrival>> {
        let found = self.by_topic.lock().get(topic).filter(|arrivals| !arrivals.is_closed()).cloned();
        if found.is_none() {
            let mut strangers = self.strangers.lock();
            if strangers.len() < STRANGERS_MAX && strangers.insert(topic.clone()) {
                tracing::warn!(topic = %topic.escape_ascii(), "KV events of nobody we know");
            }
        }
        found
    }
}
