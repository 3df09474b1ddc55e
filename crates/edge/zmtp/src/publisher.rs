//! The sending end: what a simulated engine publishes with.
//!
//! As in libzmq a subscriber that does not keep up misses messages; nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Message;
use crate::connection::{Arrived, Connection, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{Incoming, Listener, connect};
use crate::options::Options;
use crate::peers::{Number, OUT_BYTES_MAX, Peers, Shared};

/// How long a publisher that connects waits before it tries again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Topics that one subscriber may have.
const TOPICS_MAX: usize = 1_024;

/// A publisher. Dropping it closes its connections.
pub struct Publisher {
    peers: Shared,
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Binds; subscribers connect.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> Result<Publisher, Error> {
        let listener = Listener::bind(endpoint).await?;
        let (peers, endpoint) = (Shared::default(), listener.endpoint().clone());
        let task = tokio::spawn(accept(listener, Arc::clone(&peers), options));
        Ok(Publisher { peers, endpoint, task })
    }

    /// Connects, again and again, to a subscriber that binds.
    pub fn connect(endpoint: Endpoint, options: Options) -> Publisher {
        let peers = Shared::default();
        let task = tokio::spawn(keep_connected(endpoint.clone(), Arc::clone(&peers), options));
        Publisher { peers, endpoint, task }
    }

    /// Where it is bound, or whom it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Publishes; its first part is the topic.
    pub fn send(&self, message: &Message) {
        self.peers.offer(message);
    }

    /// Waits until everything that was published is in the system's hands. A peer that does not read can make that long.
    pub async fn sent(&self) {
        self.peers.until_sent().await;
    }

    /// Peers that have subscribed to something.
    pub fn subscribers(&self) -> usize {
        self.peers.lock().values().filter(|peer| !peer.topics.is_empty()).count()
    }

    /// Messages that a slow peer missed.
    pub fn dropped(&self) -> u64 {
        self.peers.dropped.load(Ordering::Relaxed)
    }

    /// Cuts all connections, as a dying process does.
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

async fn accept(listener: Listener, peers: Shared, options: Options) {
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

fn welcome(incoming: Incoming, peers: &Shared, options: &Options) {
    let (number, queue) = peers.join(options.queue_max);
    let (shared, options) = (Arc::clone(peers), options.clone());
    let task = tokio::spawn(async move {
        let opened = Connection::open(incoming.carrier, Role::Pub, &options).await;
        let Err(error) = serve(opened, number, queue, &shared).await;
        tracing::debug!(%error, "a subscriber has gone");
        shared.leave(number);
    });
    peers.serve_by(number, task.abort_handle());
}

async fn keep_connected(endpoint: Endpoint, peers: Shared, options: Options) {
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
    number: Number,
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

fn note(arrived: Arrived, number: Number, peers: &Peers) {
    let mut open = peers.lock();
    let Some(peer) = open.get_mut(&number) else { return };
    match arrived {
        Arrived::Subscribed(topic) if peer.topics.len() < TOPICS_MAX => peer.topics.push(topic),
        Arrived::Subscribed(_) => tracing::debug!("a subscriber wants too many topics"),
        Arrived::Cancelled(topic) => {
            if let Some(at) = peer.topics.iter().position(|known| *known == topic) {
                peer.topics.swap_remove(at);
            }
        }
        // A subscriber has nothing else to say.
        Arrived::Message(_) | Arrived::Drained => {}
    }
}
