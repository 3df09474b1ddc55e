//! The publishing side, which simulated engines use.
//!
//! As in libzmq, a subscriber that does not keep up misses messages; the publisher never waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Message;
use crate::connection::{Connection, Received, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{IncomingConnection, Listener, connect};
use crate::options::Options;
use crate::peers::{OUT_BYTES_MAX, PeerNumber, Peers, SharedPeers};

/// Pause before a connecting publisher tries again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Most topics of one subscriber.
const TOPICS_MAX: usize = 1_024;

/// A publisher. Dropping it closes its connections.
pub struct Publisher {
    peers: SharedPeers,
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Binds; subscribers connect.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> Result<Publisher, Error> {
        let listener = Listener::bind(endpoint).await?;
        let (peers, endpoint) = (SharedPeers::default(), listener.endpoint().clone());
        let task = tokio::spawn(accept(listener, Arc::clone(&peers), options));
        Ok(Publisher { peers, endpoint, task })
    }

    /// Connects, and reconnects, to a subscriber that binds.
    pub fn connect(endpoint: Endpoint, options: Options) -> Publisher {
        let peers = SharedPeers::default();
        let task = tokio::spawn(keep_connected(endpoint.clone(), Arc::clone(&peers), options));
        Publisher { peers, endpoint, task }
    }

    /// The bound endpoint, or the one it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Publishes a message; its first part is the topic.
    pub fn send(&self, message: &Message) {
        self.peers.offer(message);
    }

    /// Waits until every published message is handed to the system. A peer that does not read can delay this.
    pub async fn sent(&self) {
        self.peers.until_sent().await;
    }

    /// Peers with a subscription.
    pub fn subscribers(&self) -> usize {
        self.peers.lock().values().filter(|peer| !peer.topics.is_empty()).count()
    }

    /// Messages that slow peers missed.
    pub fn dropped(&self) -> u64 {
        self.peers.dropped.load(Ordering::Relaxed)
    }

    /// Disconnects all peers, as the end of a process does.
    pub fn cut_all(&self) {
        self.peers.cut_all();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
        self.peers.cut_all();
    }
}

async fn accept(listener: Listener, peers: SharedPeers, options: Options) {
    loop {
        match listener.accept().await {
            Ok(incoming) => welcome(incoming, &peers, &options),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a subscriber");
                tokio::time::sleep(RECONNECT).await;
            }
        }
    }
}

fn welcome(incoming: IncomingConnection, peers: &SharedPeers, options: &Options) {
    let (number, queue) = peers.join(options.queue_max);
    let (shared, options) = (Arc::clone(peers), options.clone());
    let task = tokio::spawn(async move {
        let opened = Connection::open(incoming.stream, Role::Pub, &options).await;
        let Err(error) = serve(opened, number, queue, &shared).await;
        tracing::debug!(%error, "a subscriber has gone");
        shared.leave(number);
    });
    peers.serve_by(number, task.abort_handle());
}

async fn keep_connected(endpoint: Endpoint, peers: SharedPeers, options: Options) {
    loop {
        let (number, queue) = peers.join(options.queue_max);
        let opened = connect(&endpoint, Role::Pub, &options).await;
        let Err(error) = serve(opened, number, queue, &peers).await;
        tracing::debug!(%error, "the subscriber has gone");
        peers.leave(number);
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn serve(
    opened: Result<Connection, Error>,
    number: PeerNumber,
    mut queue: mpsc::Receiver<Message>,
    peers: &Peers,
) -> Result<std::convert::Infallible, Error> {
    let (mut connection, mut taken) = (opened?, 0);
    loop {
        tokio::select! {
            message = queue.recv(), if connection.queued() < OUT_BYTES_MAX => match message {
                Some(message) => {
                    connection.queue(&message);
                    taken += 1;
                }
                None => return Err(Error::Gone),
            },
            arrived = connection.receive() => note(arrived?, number, peers),
        }
        if connection.queued() == 0 && taken > 0 {
            peers.sent(number, std::mem::take(&mut taken));
        }
    }
}

fn note(arrived: Received, number: PeerNumber, peers: &Peers) {
    let mut open = peers.lock();
    let Some(peer) = open.get_mut(&number) else { return };
    match arrived {
        Received::Subscribed(topic) if peer.topics.len() < TOPICS_MAX => peer.topics.push(topic),
        Received::Subscribed(_) => tracing::debug!("a subscriber wants too many topics"),
        Received::Cancelled(topic) => {
            if let Some(at) = peer.topics.iter().position(|known| *known == topic) {
                peer.topics.swap_remove(at);
            }
        }
        // Subscribers send nothing else.
        Received::Message(_) | Received::Drained => {}
    }
}
