//! A bound listener for engines that connect to us: one socket for all of them, distinguished by topic.
//!
//! vLLM connects when its endpoint names a host (`tcp://router:5557`). A worker is expected under its configured
//! topic, and a connection is attributed to it from the first message on. If two workers claim one topic, the source
//! of its events is ambiguous: neither is listened to until one of them releases the topic.
//!
//! ZeroMQ as engines use it has no authentication. So a worker's events must come from the host in its URL, a connection
//! from any other address is closed before it has sent anything, and all unfinished messages together have a bound.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use warmroute_types::{Address, MAX_WORKERS};
use warmroute_zmtp::{
    ByteBudget, Endpoint, Error, IncomingConnection, Listener as Socket, Message, Options, Sub,
};

use crate::feed_handle::FeedHandle;
use crate::host_addresses::HostAddresses;
use crate::sink::EventSink;
use crate::source::host_of;
use crate::subscriber::Subscriber;
use crate::subscriber_task::{Config, ConnectionChange, Publishers, SubscriberTask, TaskSender};

/// Most unknown topics that are remembered for messages.
const UNKNOWN_TOPICS_MAX: usize = 64;
/// Most connections at one time.
const CONNECTIONS_MAX: usize = MAX_WORKERS;
/// Any host can connect, so messages are limited. An engine's step fills a tenth of this.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Most bytes of unfinished messages, of all connections together.
const UNFINISHED_BYTES_MAX: usize = 64 << 20;

/// A bound socket. Dropping it closes it; its subscribers then receive nothing more.
pub struct BoundListener {
    expected: Arc<ExpectedWorkers>,
    endpoint: Endpoint,
    config: Config,
    task: JoinHandle<()>,
}

/// Several workers claim one topic.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic `{topic}` is also that of {others}: give every engine its own topic")]
pub struct SharedTopic {
    topic: String,
    others: String,
}

struct ExpectedWorkers {
    endpoint: Endpoint,
    publishers: Publishers,
    topics: Mutex<Topics>,
    hosts: Arc<HostAddresses>,
}

#[derive(Default)]
struct Topics {
    by_topic: HashMap<Bytes, TopicEntry>,
    /// The workers that claim each topic, expected or refused.
    claims: BTreeMap<String, BTreeSet<Address>>,
    unknown_topics: BTreeSet<String>,
}

/// The destination of one worker's messages.
struct TopicEntry {
    feed_handle: Arc<FeedHandle>,
    sender: TaskSender,
}

impl BoundListener {
    /// Binds, on the current tokio runtime.
    pub async fn bind(endpoint: &Endpoint, config: Config) -> Result<BoundListener, Error> {
        Ok(BoundListener::of(Socket::bind(endpoint).await?, config))
    }

    /// Uses a socket that listens already.
    pub fn on(listener: TcpListener, config: Config) -> Result<BoundListener, Error> {
        Ok(BoundListener::of(Socket::on(listener)?, config))
    }

    fn of(socket: Socket, config: Config) -> BoundListener {
        let endpoint = socket.endpoint().clone();
        let expected = Arc::new(ExpectedWorkers {
            endpoint: endpoint.clone(),
            publishers: config.publishers,
            topics: Mutex::default(),
            hosts: HostAddresses::new(),
        });
        let task = tokio::spawn(accept(socket, Arc::clone(&expected), config.clone()));
        BoundListener { expected, endpoint, config, task }
    }

    /// The bound endpoint, with its actual port.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether a worker's endpoint means this one. A socket bound to every address has all names of this machine.
    pub fn is_meant_by(&self, endpoint: &Endpoint, worker_url: &str) -> bool {
        match (&self.endpoint, endpoint) {
            (Endpoint::Tcp { port: ours, .. }, Endpoint::Tcp { host, port }) if ours == port => {
                endpoint == &self.endpoint || self.endpoint.is_wildcard() && host != host_of(worker_url)
            }
            (ours, theirs) => ours == theirs,
        }
    }

    /// Expects a worker under its topic. If another worker claims the topic too, both are refused, and the one that
    /// was expected is no longer listened to.
    pub fn expect_worker(
        &self,
        worker: Address,
        topic: &str,
        replay: Option<Endpoint>,
        sink: Arc<dyn EventSink>,
    ) -> Result<Subscriber, SharedTopic> {
        let mut topics = self.expected.topics.lock();
        topics.claim(&worker, topic)?;
        if self.config.publishers == Publishers::WorkerHosts {
            self.expected.hosts.add(host_of(&worker.url));
        }
        let feed_handle = Arc::new(FeedHandle::new(worker, self.config.feed.clone(), sink));
        feed_handle.set_trouble(Some(topics.describe_absence(topic, &self.endpoint)));
        let config = self.config.clone();
        let subscriber_task = SubscriberTask::new(Arc::clone(&feed_handle), config, replay, topic);
        let (sender, inbox) = SubscriberTask::inbox();
        let entry = TopicEntry { feed_handle: Arc::clone(&feed_handle), sender };
        topics.by_topic.insert(Bytes::copy_from_slice(topic.as_bytes()), entry);
        Ok(Subscriber::of(feed_handle, vec![tokio::spawn(subscriber_task.run(inbox))]))
    }

    /// Stops expecting a worker.
    pub fn release(&self, worker: &Address) {
        let mut topics = self.expected.topics.lock();
        topics.release(worker);
        let workers = topics.by_topic.values().map(|entry| &entry.feed_handle.worker);
        let used: HashSet<&str> = workers.map(|worker| host_of(&worker.url)).collect();
        self.expected.hosts.keep(|host| used.contains(host));
    }
}

impl Drop for BoundListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(socket: Socket, expected: Arc<ExpectedWorkers>, config: Config) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    let mut count = 0;
    let budget = ByteBudget::new(UNFINISHED_BYTES_MAX);
    let limited =
        Options { message_bytes_max: MESSAGE_BYTES_MAX, budget: Some(budget), ..config.socket.clone() };
    loop {
        tokio::select! {
            incoming = socket.accept(), if connections.len() < CONNECTIONS_MAX => match incoming {
                Ok(incoming) => {
                    count += 1;
                    connections.spawn(follow(incoming, count, Arc::clone(&expected), limited.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an engine's connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One engine's connection, with its topics. An engine has one topic, but nothing forbids more.
struct Line {
    number: u64,
    peer: String,
    address: Option<IpAddr>,
    snapshot: HashMap<Bytes, TaskSender>,
}

async fn follow(incoming: IncomingConnection, number: u64, expected: Arc<ExpectedWorkers>, limited: Options) {
    let (peer, address) = (incoming.peer().to_owned(), incoming.address());
    if !expected.may_connect(address).await {
        return tracing::warn!(
            peer,
            "closed a connection to kv-events-bind: no worker's URL has this address (kv-events-publishers)"
        );
    }
    let mut connection = Line { number, peer, address, snapshot: HashMap::new() };
    let mut sub = match Sub::accept(incoming, b"", &limited).await {
        Ok(sub) => sub,
        Err(error) => return tracing::debug!(%error, "a connection failed the ZeroMQ handshake"),
    };
    let error = loop {
        match sub.receive().await {
            Ok(message) => connection.pass(message, &expected).await,
            Err(error) => break error,
        }
    };
    let why = format!("the engine's connection from {} ended: {error}", connection.peer);
    for sender in connection.snapshot.into_values() {
        let _ = sender.send(number, ConnectionChange::Down(why.clone())).await;
    }
}

impl Line {
    async fn pass(&mut self, message: Message, expected: &ExpectedWorkers) {
        let connection = self.number;
        let Some(topic) = message.first().cloned() else { return };
        let current = self.snapshot.get(&topic).filter(|sender| !sender.is_closed()).cloned();
        let sender = match current {
            Some(sender) => sender,
            None => {
                let Some(sender) = expected.find(&topic, &self.peer, self.address).await else { return };
                let _ = sender.send(connection, ConnectionChange::Up(self.peer.clone())).await;
                self.snapshot.insert(topic, sender.clone());
                sender
            }
        };
        let _ = sender.send_message(connection, message).await;
    }
}

impl ExpectedWorkers {
    /// The receiver of a topic, if the peer may publish under it.
    async fn find(&self, topic: &Bytes, peer: &str, address: Option<IpAddr>) -> Option<TaskSender> {
        let (sender, url) = {
            let mut topics = self.topics.lock();
            match topics.by_topic.get(topic).filter(|entry| !entry.sender.is_closed()) {
                Some(entry) => (entry.sender.clone(), entry.feed_handle.worker.url.clone()),
                None => {
                    topics.note_unknown_topic(topic, peer, &self.endpoint);
                    return None;
                }
            }
        };
        let topic = topic.escape_ascii();
        if self.is_from(address, &[url.to_string()]).await {
            return Some(sender);
        }
        tracing::debug!(%topic, peer, "ignored KV events under the topic of a worker at another address");
        None
    }

    /// Whether any expected worker has this address.
    async fn may_connect(&self, address: Option<IpAddr>) -> bool {
        let entries = |topics: &Topics| -> Vec<String> {
            topics.by_topic.values().map(|entry| entry.feed_handle.worker.url.to_string()).collect()
        };
        let urls = entries(&self.topics.lock());
        // Before the first worker is expected, a connection shows which topics exist.
        urls.is_empty() || self.is_from(address, &urls).await
    }

    /// Whether one of these workers has this address.
    async fn is_from(&self, address: Option<IpAddr>, worker_urls: &[String]) -> bool {
        let Some(address) = address.filter(|_| self.publishers == Publishers::WorkerHosts) else {
            return true;
        };
        let hosts: Vec<&str> = worker_urls.iter().map(|url| host_of(url)).collect();
        self.hosts.any_has(&hosts, address).await
    }
}

impl Topics {
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
        if let Some(entry) = self.by_topic.remove(topic.as_bytes()) {
            entry.feed_handle.mark_contested(others(&entry.feed_handle.worker).to_string());
        }
        Err(others(worker))
    }

    fn release(&mut self, worker: &Address) {
        self.by_topic.retain(|_, entry| entry.feed_handle.worker != *worker);
        self.claims.values_mut().for_each(|claims| _ = claims.remove(worker));
        self.claims.retain(|_, claims| !claims.is_empty());
    }

    /// Why no events arrive under a topic, and which other topics do.
    fn describe_absence(&self, topic: &str, endpoint: &Endpoint) -> String {
        let unknown_topics: Vec<String> =
            self.unknown_topics.iter().map(|topic| format!("`{topic}`")).collect();
        let instead = match unknown_topics.is_empty() {
            true => String::new(),
            false => format!("; received there and expected by no worker: {}", unknown_topics.join(", ")),
        };
        format!("no engine publishes to {endpoint} under topic `{topic}`{instead}")
    }

    fn note_unknown_topic(&mut self, topic: &Bytes, peer: &str, endpoint: &Endpoint) {
        let topic = topic.escape_ascii().to_string();
        if self.unknown_topics.len() >= UNKNOWN_TOPICS_MAX || !self.unknown_topics.insert(topic.clone()) {
            return;
        }
        tracing::warn!(
            topic,
            peer,
            "KV events under a topic that no worker is expected under: its kv-events must name the topic that the engine \
             has in its --kv-events-config"
        );
        for (expected, entry) in &self.by_topic {
            // A worker that has received events has no such trouble.
            if entry.feed_handle.counters().batches == 0 && entry.feed_handle.trouble().is_some() {
                let expected = expected.escape_ascii().to_string();
                entry.feed_handle.set_trouble(Some(self.describe_absence(&expected, endpoint)));
            }
        }
    }
}
