//! The replying side of dealers, which simulated engines use for replays.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Message;
use crate::connection::{Connection, Received, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{IncomingConnection, Listener};
use crate::options::Options;
use crate::peers::{OUT_BYTES_MAX, PeerNumber, Peers, SharedPeers};

/// Most requests that may wait.
const QUESTIONS_MAX: usize = 1_024;
/// Pause before accepting again when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The identity of a requesting peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerId(PeerNumber);

/// A bound router. Dropping it closes its connections.
pub struct Router {
    peers: SharedPeers,
    endpoint: Endpoint,
    questions: mpsc::Receiver<(PeerId, Message)>,
    task: JoinHandle<()>,
}

impl Router {
    /// Binds the endpoint and accepts dealers until the router is dropped.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> Result<Router, Error> {
        let listener = Listener::bind(endpoint).await?;
        let (peers, endpoint) = (SharedPeers::default(), listener.endpoint().clone());
        let (asked, questions) = mpsc::channel(QUESTIONS_MAX);
        let task = tokio::spawn(accept(listener, Arc::clone(&peers), options, asked));
        Ok(Router { peers, endpoint, questions, task })
    }

    /// Where it is bound.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next message and its sender.
    pub async fn receive(&mut self) -> Result<(PeerId, Message), Error> {
        self.questions.recv().await.ok_or(Error::Closed)
    }

    /// Sends a reply; waits while the peer's queue is full.
    pub async fn send(&self, to: PeerId, message: Message) -> Result<(), Error> {
        let queue = self.peers.lock().get(&to.0).map(|peer| peer.queue.clone()).ok_or(Error::Gone)?;
        queue.send(message).await.map_err(|_| Error::Gone)
    }

    /// Disconnects all peers, as the end of a process does.
    pub fn cut_all(&self) {
        self.peers.cut_all();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
        self.peers.cut_all();
    }
}

async fn accept(
    listener: Listener,
    peers: SharedPeers,
    options: Options,
    asked: mpsc::Sender<(PeerId, Message)>,
) {
    loop {
        match listener.accept().await {
            Ok(incoming) => welcome(incoming, &peers, &options, asked.clone()),
            Err(error) => {
                tracing::debug!(%error, "cannot accept a dealer");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn welcome(
    incoming: IncomingConnection,
    peers: &SharedPeers,
    options: &Options,
    asked: mpsc::Sender<(PeerId, Message)>,
) {
    let (number, queue) = peers.join(options.queue_max);
    let (shared, options) = (Arc::clone(peers), options.clone());
    let task = tokio::spawn(async move {
        if let Err(error) = serve(incoming, number, queue, &options, &asked).await {
            tracing::debug!(%error, "a dealer has gone");
        }
        Peers::leave(&shared, number);
    });
    peers.serve_by(number, task.abort_handle());
}

async fn serve(
    incoming: IncomingConnection,
    number: PeerNumber,
    mut queue: mpsc::Receiver<Message>,
    options: &Options,
    asked: &mpsc::Sender<(PeerId, Message)>,
) -> Result<(), Error> {
    let mut connection = Connection::open(incoming.stream, Role::Router, options).await?;
    loop {
        tokio::select! {
            answer = queue.recv(), if connection.queued() < OUT_BYTES_MAX => match answer {
                Some(answer) => connection.queue(&answer),
                None => return Ok(()),
            },
            arrived = connection.receive() => {
                if let Received::Message(message) = arrived?
                    && asked.send((PeerId(number), message)).await.is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}
